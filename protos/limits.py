"""The one table of bounds that both doors check: the gateway and the engine."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple


class Bound(NamedTuple):
    low: float
    high: float


MAX_U32 = 2**32 - 1
SLOT_LIMIT = MAX_U32 - 2**20
"""Slots are counted on a stream, in 32 bits: one that has come so far is ended for a new one."""
LONGEST_SHOWN = 2**64
"""A whole number of any length may come; Python itself refuses to write the longest."""

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
    "thinking_token_budget": Bound(-1, 2**24),  # -1 = as many as there are
    "min_tokens": Bound(0, 2**24),
    "n": Bound(1, 128),
    "logprobs": Bound(0, 20),
    "priority": Bound(-1000, 1000),
    "timeout_ms": Bound(1, 86_400_000),
    "logit_bias": Bound(-100, 100),
    "prompt_logprobs": Bound(0, 20),
    "dimensions": Bound(1, 65_536),
    "n_keep": Bound(0, 2**24),
    "typical_p": Bound(0, 1),
    "top_n_sigma": Bound(0, 100),
    "dynamic_temperature.range": Bound(0, 2),
    "dynamic_temperature.exponent": Bound(0, 10),
    "xtc_probability": Bound(0, 1),
    "xtc_threshold": Bound(0, 1),
    "dry_multiplier": Bound(0, 100),
    "dry_base": Bound(1, 10),
    "dry_allowed_length": Bound(1, 2**24),
    "dry_penalty_last_n": Bound(-1, 2**24),  # -1 = the whole context, 0 = off
}
MAX_HEADER_BYTES = 16_384
"""Request line and headers together; larger ones are refused before they are parsed."""
MAX_CONNECTIONS = 16_384
"""Of one gateway."""
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 256
MAX_TOOLS = 128
MAX_TOOL_NAME_CHARS = 128
"""As Anthropic has it: names of MCP servers' tools begin with the server's."""
MAX_SCHEMA_DEPTH = 32
MAX_TEMPLATE_KWARGS = 32
MAX_CACHE_SALT_CHARS = 1024
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
MAX_NOTE_CHARS = 64
"""Of `prompt_cache_key` and `safety_identifier`, as OpenAI has it."""
MAX_PROMPT_CHOICES = 256
"""Prompts of a request times its n."""
MAX_REPEATED_BYTES = 2**25
"""Of a request's fields, as each of its prompts is sent with them: enough for the longest grammar
of ASCII 256 times, or for the longest list of allowed ids 100 times."""
MAX_ECHO_CHARS = 2**24
"""In one reply: each choice repeats its prompt."""
MAX_PROMPT_LOGPROBS = 2**19
"""In one reply. Choices repeat their prompt's, so that a small request can ask for any number."""
MAX_EMBEDDING_INPUTS = 2048
MAX_CONVERTED_TOKENS = 2**20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_EOS_TOKEN_IDS = 256
"""Of a model folder; they end a request beside those it names."""
MAX_LOGIT_BIASES = 1024
MAX_REQUEST_ID_CHARS = 128
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_DRY_BREAKERS = 64
MAX_DRY_BREAKER_CHARS = 64
MAX_GRAMMAR_CHARS = 65_536
MAX_CHOICES = 1024
"""Strings of a grammar that is a choice."""

STAGES: dict[str, tuple[str, ...]] = {
    "logit_bias": ("logit_bias",),
    "allowed_token_ids": ("allowed_token_ids",),
    "bad_words": ("bad_words",),
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "dry": ("dry_multiplier",),
    "temperature": ("temperature",),
    "dynamic_temperature": ("dynamic_temperature",),
    "top_n_sigma": ("top_n_sigma",),
    "min_p": ("min_p",),
    "top_k": ("top_k",),
    "typical_p": ("typical_p",),
    "top_p": ("top_p",),
    "xtc": ("xtc_probability",),
}
"""Stages of the sampler's chain in their default order, and the fields that need each.

`min_tokens` and a grammar act before all of them and cannot be moved. Temperature 0 needs no stage.
"""

MAX_ATTEMPTS = 3
"""After so many losses without progress a request fails."""
ATTEMPTS_EXHAUSTED = "attempts_exhausted"
"""The code of its end then."""
PROOF_TOKENS = 8
"""A request that gained so many tokens did not cause the loss: its attempts count anew."""
PROOF_S = 1.0
"""If a tier still spoke so long after it was sent a request, that was not what killed it."""
MAX_WAITS = 8
"""Losses in a row that may count as waiting: a request that kills slowly looks the same."""
AFTERMATH_S = 0.1
"""What is lost goes to one that spoke so long after the loss: another may have died with it, and
what that one said before may be unread."""


def attempts(before: int, num_tokens: int) -> int:
    """Return what `attempt` is after a loss, `num_tokens` after it was sent for the last time.

    0 is a new request, which may be turned away; 1 one that was let in before.
    """
    return 1 if num_tokens >= PROOF_TOKENS else before + 1


def waits(before: int, num_tokens: int, sent_s: float, heard_s: float) -> int:
    """Return how many losses in a row found the request waiting; 0 = this one did not.

    It was sent at `sent_s` and has got `num_tokens` since; the lost tier was last heard at
    `heard_s`. A request that had been there for a while without a token stood in a queue, most
    likely, and the loss is no attempt.
    """
    has_waited = num_tokens == 0 and heard_s - sent_s >= PROOF_S
    return before + 1 if has_waited and before < MAX_WAITS else 0


class Age:
    """How long something has waited, all its waits together; to be served makes nobody older.

    Each tier keeps its own, on its own clock, and sends what it is (`waited_ms`).
    """

    __slots__ = ("_since", "_waited_s")

    def __init__(self, now: float, waited_s: float = 0.0) -> None:
        """It waits, and had waited `waited_s` before."""
        self._since: float | None = now
        self._waited_s = waited_s

    def wait(self, now: float) -> None:
        """It waits from now on, if it did not already."""
        if self._since is None:
            self._since = now

    def serve(self, now: float) -> None:
        """It waits no more."""
        self._waited_s, self._since = self.at(now), None

    def at(self, now: float) -> float:
        """Return the seconds."""
        return self._waited_s + (0.0 if self._since is None else now - self._since)


def fair_part(most: int, tenant: str, there: Collection[str]) -> int:
    """Return how many of `most` places are `tenant`'s when others have taken them all.

    All who are `there` have equal parts. So one alone may have all places, and nobody can shut
    others out.
    """
    return most // len({*there, tenant})


def given_up(attempt: int) -> str:
    """Say why what was lost so often has ended; beside ATTEMPTS_EXHAUSTED."""
    return f"lost {attempt} times under way; it is not tried again"


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (0, 1), "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "typical_p": (1,),
    "top_n_sigma": (0, -1), "xtc_probability": (0,), "dry_multiplier": (0,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "logit_bias": ({},), "bad_words": ([],), "allowed_token_ids": (), "dynamic_temperature": (),
}  # fmt: skip
"""Values of the sampler's fields that ask the chain for nothing, beside None."""

DRY_DEFAULTS = {"dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1}
DRY_BREAKERS = ("\n", ":", '"', "*")
XTC_DEFAULTS = {"xtc_threshold": 0.1}
DYNAMIC_TEMPERATURE_EXPONENT = 1.0
"""What the sampler's fields are when a request does not say; llama.cpp's values."""


def violation(name: str, value: float) -> str | None:
    """Return why `value` may not stand in field `name`, or None when it may."""
    low, high = LIMITS[name]
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} must be a finite number, got {value}"
    if not low <= value <= high:
        got = f", got {value}" if abs(value) <= LONGEST_SHOWN else ""
        return f"{name} must be between {low} and {high}{got}"
    return None


def acting(request: object) -> list[str]:
    """Return the sampler's fields that `request`, which has them all, asks something of."""
    return [
        name
        for name, nothing in NEUTRAL.items()
        if (value := getattr(request, name)) is not None and value not in nothing
    ]


def samplers_violation(names: Sequence[str], acting: Collection[str] = ()) -> str | None:
    """Return why `names` may not be a chain, or None when it may.

    A stage that is not named does not act. So `acting`, the fields that the client has set to
    something that is not neutral, must all have their stage among the names.
    """
    if unknown := [name for name in names if name not in STAGES]:
        return f"samplers must be among {', '.join(STAGES)}; got {unknown[0][:64]!r}"
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        return f"samplers names {twice} more than once"
    for stage, fields in STAGES.items():
        lost = [field for field in fields if field in acting]
        if names and stage not in names and lost:
            return f"{lost[0]} does not act: samplers does not name {stage}"
    return None
