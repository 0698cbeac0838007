"""Words and a time that tiers must agree on, beside the messages themselves."""

from __future__ import annotations

REPLICA_LOST = "replica_lost"
"""Code of an end that tells the tier above to send the request again; an attempt is counted."""
REPLICA_LEFT = "replica_left"
"""The same of a replica that went of itself: no mark against the request."""
NO_ENGINE = "none"
"""What a tokenizer without an engine calls it in the state that it tells."""
STALE_S = 1.5
"""A tier tells its state twice a second; one that has not for so long may hang."""
