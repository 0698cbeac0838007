"""SamplingParams: how an answer is drawn and when it ends, with the names of the server's API.

Read by the reader of the server's bodies, so that both refuse the same. A field left None takes
what the model folder's generation_config.json says, then the neutral value: as on the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from api_gateway.parsing import offences, read
from api_gateway.sampling import given_seed
from api_gateway.schema import CompletionRequest
from api_gateway.structure import grammar_of
from api_gateway.translate import Caller, text_request
from api_gateway.validation import check_completion
from millrace.plain_values import as_json, invalid, plain
from protos.common_pb2 import ModelInfo
from protos.tokenizer_pb2 import TextRequest

FORMS = ("response_format", "structured_outputs")


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
    """0 (or -1) is off."""
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
    """The same seed gives the same answer; None and -1 take the next seed of the LLM."""
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
    """None of these comes out as tokens of its own; a longer token may hold one."""
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
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in FORMS:
                value = plain(value)
            if value is None and each.name != "max_tokens":
                made = each.default_factory
                value = plain(each.default if made is MISSING else made())
            object.__setattr__(self, each.name, value)
        body = self.body
        for each in fields(self):
            if isinstance(getattr(self, each.name), float):  # 2.0 may stand for 2
                object.__setattr__(self, each.name, getattr(body, each.name))

    @cached_property
    def body(self) -> CompletionRequest:
        """The same as the server reads it; raises InvalidRequest."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        given = {name: value for name, value in named if value is not None}
        return body_of({"max_tokens": None, **given})

    def request(self, info: ModelInfo, request_id: str, seed: int) -> TextRequest:
        """Return the request without its prompt; `seed` is used when none is set here."""
        body = self.body
        request = text_request(body, Caller(request_id, "", info), body.logprobs)
        request.limits.ClearField("cache_salt")  # as vectors: one prefix cache
        if given_seed(body) is None:
            request.sampling.seed = seed
        if (grammar := grammar_of(body, None)) is not None:
            request.text.grammar.CopyFrom(grammar)
        return request


def body_of(given: Mapping[str, Any]) -> CompletionRequest:
    """Return the fields as the server reads them in a body; raise InvalidRequest as it does."""
    raw = {"model": "", "prompt": "", **given}
    if isinstance(raw.get("logit_bias"), dict):  # JSON has no numbers for keys
        raw["logit_bias"] = {str(key): bias for key, bias in raw["logit_bias"].items()}
    for name in FORMS:
        if name in raw:
            raw[name] = as_json(name, raw[name])
    match raw.get("response_format"):
        case {"json_schema": dict(wanted)}:
            wanted.setdefault("name", "schema")  # only the server's clients need one
    body = read(raw, CompletionRequest)
    check_completion(body)
    for path, _ in offences(raw):  # of a text: numbers have been checked
        raise invalid(path, "is not Unicode text")
    grammar_of(body, None)  # whether it can be compiled is found out where it is
    return body
