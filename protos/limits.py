"""The one table of bounds that both doors check: the gateway and the engine."""

from __future__ import annotations

import math
from typing import NamedTuple


class Bound(NamedTuple):
    low: float
    high: float


MAX_U32 = 2**32 - 1

LIMITS: dict[str, Bound] = {
    "temperature": Bound(0, 2),
    "top_p": Bound(0, 1),
    "top_k": Bound(0, MAX_U32),
    "min_p": Bound(0, 1),
    "presence_penalty": Bound(-2, 2),
    "frequency_penalty": Bound(-2, 2),
    "repetition_penalty": Bound(0.01, 10),
    "seed": Bound(-(2**63), 2**64 - 1),
    "max_tokens": Bound(1, 2**24),
    "min_tokens": Bound(0, 2**24),
    "n": Bound(1, 8),
    "logprobs": Bound(0, 20),
    "priority": Bound(-1000, 1000),
    "timeout_ms": Bound(1, 86_400_000),
    "logit_bias": Bound(-100, 100),
}
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIASES = 1024
MAX_REQUEST_ID_CHARS = 128


def violation(name: str, value: float) -> str | None:
    """Return why `value` may not stand in field `name`, or None when it may."""
    low, high = LIMITS[name]
    if not math.isfinite(value):
        return f"{name} must be a finite number, got {value}"
    if not low <= value <= high:
        return f"{name} must be between {low:g} and {high:g}, got {value}"
    return None
