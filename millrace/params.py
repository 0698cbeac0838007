"""SamplingParams: how an answer is drawn and when it ends, with the names of the server's API.

Checked against the same table of limits as the two doors of the server. A field left None takes
what the model folder's generation_config.json says, then the neutral value: as on the server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from api_gateway.sampling import dry_breakers, dry_of, xtc_of
from common.errors import InvalidRequest
from millrace.params_checks import (
    WHOLE,
    check_biases,
    check_dynamic,
    check_flag,
    check_ids,
    check_number,
    check_texts,
    invalid,
    whole,
    whole_each,
)
from millrace.structure import grammar_of
from protos import common_pb2, tokenizer_pb2
from protos import limits as bounds
from protos.columns import pack


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Raises InvalidRequest that names the field when a value may not stand in it.

    None asks for the default wherever it has no meaning of its own, as null does over HTTP.
    """

    n: int = 1
    """Answers per prompt; each is drawn on its own, the prompt is computed once."""
    temperature: float | None = None
    """0 takes the likeliest token every time."""
    top_p: float | None = None
    top_k: int | None = None
    """0 (or -1) is off."""
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    dynamic_temperature: Mapping[str, float] | None = None
    """{"range": …, "exponent": …}: temperature ± range, by entropy."""
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    """-1 looks at the whole context."""
    dry_sequence_breakers: Sequence[str] | None = None
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
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens; the first has none."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    """None of these comes out."""
    allowed_token_ids: Sequence[int] | None = None
    """Nothing else comes out; None allows all."""
    samplers: Sequence[str] = ()
    """Stages of the chain in their order; empty = the default."""
    return_sampler_trace: bool = False
    """Report what each stage of the chain has left, for every token."""
    response_format: Mapping[str, Any] | None = None
    """OpenAI's {"type": "json_object"} or {"type": "json_schema", "json_schema": {…}}."""
    structured_outputs: Mapping[str, Any] | None = None
    """One of json, regex, choice, grammar (Lark), json_object."""
    n_keep: int | None = None
    """A full context drops its middle and keeps so many first tokens; None ends the answer."""
    rotate_kv: bool = False
    """With n_keep: turn the keys in place instead of computing them again. Inexact."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._set_plain_values()
        for each in fields(self):
            if each.name in bounds.LIMITS and each.name != "logit_bias":
                check_number(each.name, getattr(self, each.name))
            elif isinstance(each.default, bool):
                check_flag(each.name, getattr(self, each.name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid("min_tokens", f"is {self.min_tokens}, more than max_tokens")
        if self.rotate_kv and self.n_keep is None:
            raise invalid("rotate_kv", "needs n_keep")
        self._check_lists()
        self._check_chain()
        grammar_of(self.response_format, self.structured_outputs)

    def _set_plain_values(self) -> None:
        """Put one form of a value in place of the others that users may write."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.name != "max_tokens":
                made = each.default_factory
                value = each.default if made is MISSING else made()
            if each.name in WHOLE:
                value = whole(value)
            elif each.name in ("stop_token_ids", "allowed_token_ids"):
                value = whole_each(value)
            object.__setattr__(self, each.name, value)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))

    def _check_lists(self) -> None:
        breakers = self.dry_sequence_breakers or ()
        check_texts("stop", self.stop, bounds.MAX_STOP_STRINGS, bounds.MAX_STOP_STRING_CHARS)
        check_texts("bad_words", self.bad_words, bounds.MAX_BAD_WORDS, bounds.MAX_BAD_WORD_CHARS)
        check_texts(
            "dry_sequence_breakers", breakers, bounds.MAX_DRY_BREAKERS, bounds.MAX_DRY_BREAKER_CHARS
        )
        check_ids("stop_token_ids", self.stop_token_ids, bounds.MAX_STOP_TOKEN_IDS)
        if self.allowed_token_ids is not None:
            check_ids("allowed_token_ids", self.allowed_token_ids, bounds.MAX_ALLOWED_TOKEN_IDS)
            if not self.allowed_token_ids:
                raise invalid("allowed_token_ids", "is empty: no token could be drawn")
        check_biases(self.logit_bias)

    def _check_chain(self) -> None:
        if self.dynamic_temperature is not None:
            check_dynamic(self.dynamic_temperature)
        if isinstance(self.samplers, str) or not isinstance(self.samplers, Collection):
            raise invalid("samplers", f"must be a list of stages, got {self.samplers!r}")
        if why := bounds.samplers_violation(self.samplers, bounds.acting(self)):
            raise InvalidRequest(why, param="samplers")

    def limits(self) -> common_pb2.Limits:
        """Return the engine's share."""
        return common_pb2.Limits(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=pack(self.stop_token_ids),
            n=self.n,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            n_keep=self.n_keep,
            rotate_kv=self.rotate_kv,
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
            typical_p=self.typical_p,
            top_n_sigma=self.top_n_sigma,
            dynamic_temperature=self._dynamic(),
            xtc=xtc_of(self),
            dry=dry_of(self),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=(seed if self.seed is None else self.seed) % 2**64,
            logit_bias=biases,
            allowed_token_ids=pack(self.allowed_token_ids or ()),
            samplers=self.samplers,
            return_sampler_trace=self.return_sampler_trace,
        )

    def _dynamic(self) -> common_pb2.DynamicTemperature | None:
        if self.dynamic_temperature is None:
            return None
        default = {"exponent": bounds.DYNAMIC_TEMPERATURE_EXPONENT}
        return common_pb2.DynamicTemperature(**default | dict(self.dynamic_temperature))

    def text_options(self) -> tokenizer_pb2.TextOptions:
        """Return the text tier's share, with what it makes ids of for the sampler."""
        return tokenizer_pb2.TextOptions(
            stop=list(self.stop),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            keep_special_tokens=not self.skip_special_tokens,
            stop_token_ids=list(self.stop_token_ids),
            bad_words=list(self.bad_words),
            dry_breakers=dry_breakers(self),
            grammar=grammar_of(self.response_format, self.structured_outputs),
        )
