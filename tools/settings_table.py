"""Writes the settings table of the README from the descriptions in the settings structs.

`python -m tools.settings_table` rewrites the part of README.md between the two markers.
"""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec

from api_gateway.settings import Settings as GatewaySettings
from engine_core.settings import Settings as EngineSettings
from tokenizer_service.settings import Settings as TokenizerSettings
from worker.settings import Settings as WorkerSettings

SERVICES: dict[str, type[msgspec.Struct]] = {
    "gateway": GatewaySettings,
    "tokenizer": TokenizerSettings,
    "engine": EngineSettings,
    "worker": WorkerSettings,
}
START, END = "<!-- settings: start -->", "<!-- settings: end -->"
README = Path(__file__).resolve().parent.parent / "README.md"


def rows() -> list[tuple[str, str, str, str]]:
    """Return (service, field, default, description) of every setting of every tier."""
    found = []
    for service, cls in SERVICES.items():
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            default = "(required)" if field.required else repr(field.default).strip("'")
            metas = getattr(hints[field.name], "__metadata__", ())
            description = next((m.description for m in metas if m.description), "")
            found.append((service, field.name, default, description))
    return found


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| service | setting | default | what it is |", "|---|---|---|---|"]
    lines += [f"| {s} | `{n}` | `{d}` | {text} |" for s, n, d, text in rows()]
    return "\n".join(lines).replace("| `` |", "| – |")


def main() -> None:
    """Rewrite README.md in place."""
    before, _, rest = README.read_text().partition(START)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{START}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
