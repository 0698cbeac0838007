"""SamplingParams: how an answer is drawn and when it ends, with the names offline users know.

Checked against the same table of limits as the two doors of the server. A field left None takes
what the model folder's generation_config.json says, then the neutral value: as on the server.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from common.errors import InvalidRequest
from protos import common_pb2, tokenizer_pb2
from protos.limits import (
    LIMITS,
    MAX_LOGIT_BIASES,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_U32,
    violation,
)

WHOLE = ("top_k", "seed", "max_tokens", "min_tokens", "n", "logprobs")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Raises InvalidRequest that names the field when a value may not stand in it."""

    n: int = 1
    """Answers per prompt; each is drawn on its own, the prompt is computed once."""
    temperature: float | None = None
    """0 takes the likeliest token every time."""
    top_p: float | None = None
    top_k: int | None = None
    """0 (or -1) is off."""
    min_p: float | None = None
    max_tokens: int | None = 16
    """Small, as offline users expect; None means as long as the model allows."""
    min_tokens: int = 0
    seed: int | None = None
    """The same seed gives the same answer; None takes the next seed of the LLM."""
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives reported per token; 0 reports the chosen token only."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for each in fields(self):
            if each.name in LIMITS and each.name != "logit_bias":
                _check_number(each.name, getattr(self, each.name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", f"is {self.min_tokens}, more than max_tokens")
        _check_stops(self.stop, self.stop_token_ids)
        _check_biases(self.logit_bias)

    def limits(self) -> common_pb2.Limits:
        """Return the engine's share."""
        ids = self.stop_token_ids
        return common_pb2.Limits(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=struct.pack(f"<{len(ids)}I", *ids),
            n=self.n,
            logprobs=self.logprobs,
        )

    def sampling(self, seed: int) -> common_pb2.SamplingParams:
        """Return the sampler's share; `seed` is used when none is set here."""
        biases = [
            common_pb2.LogitBias(token_id=token_id, bias=bias)
            for token_id, bias in self.logit_bias.items()
        ]
        return common_pb2.SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=(seed if self.seed is None else self.seed) % 2**64,
            logit_bias=biases,
        )

    def text_options(self) -> tokenizer_pb2.TextOptions:
        """Return the text tier's share."""
        return tokenizer_pb2.TextOptions(
            stop=list(self.stop),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            keep_special_tokens=not self.skip_special_tokens,
            stop_token_ids=list(self.stop_token_ids),
        )


def _invalid(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {message}", param=param)


def _check_number(name: str, value: float | None) -> None:
    if value is None:
        return
    kinds = (int,) if name in WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        whole = "a whole number" if name in WHOLE else "a number"
        raise _invalid(name, f"must be {whole}, got {value!r}")
    if why := violation(name, value):
        raise InvalidRequest(why, param=name)


def _check_stops(stop: Sequence[str], stop_token_ids: Sequence[int]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise _invalid("stop", f"has {len(stop)} strings, at most {MAX_STOP_STRINGS} are allowed")
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            allowed = f"1 to {MAX_STOP_STRING_CHARS} characters"
            raise _invalid("stop", f"must be strings of {allowed}, got {text!r}")
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise _invalid("stop_token_ids", f"has more than {MAX_STOP_TOKEN_IDS} ids")
    for token_id in stop_token_ids:
        _check_id("stop_token_ids", token_id)


def _check_biases(biases: Mapping[int, float]) -> None:
    if len(biases) > MAX_LOGIT_BIASES:
        raise _invalid("logit_bias", f"has more than {MAX_LOGIT_BIASES} entries")
    for token_id, bias in biases.items():
        _check_id("logit_bias", token_id)
        _check_number("logit_bias", bias)


def _check_id(name: str, token_id: int) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id <= MAX_U32:
        raise _invalid(name, f"must hold token ids, got {token_id!r}")
