"""Why a peer is not beaten, as far as it was looked into. Shown where that is so."""

REASONS: dict[tuple[str, str], str] = {}
