"""Completes a request: what the client left open comes from the model folder, then from neutrality.

Raises InvalidRequest or NotFound naming the field. Pure: no tokenizer, no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.errors import InvalidRequest, NotFound
from protos.columns import pack, unpack
from protos.common_pb2 import EMBED, GENERATE, LAST, Grammar, Limits, Pooling, SamplingParams
from protos.tokenizer_pb2 import TextRequest

NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True)
class Completion:
    """What one model adds to every request."""

    model: str
    vocab_size: int
    """0 = unknown: ids are not checked here, the engine does."""
    eos_token_ids: frozenset[int]
    sampling_defaults: Mapping[str, float]
    max_new_tokens: int | None
    has_tokenizer: bool
    pooling: Pooling = LAST

    def check(self, request: TextRequest) -> None:
        """Refuse what can be refused before the prompt is built."""
        self.check_model(request.model)
        if request.text.stop and not self.has_tokenizer:
            raise InvalidRequest("stop strings need a tokenizer; use stop_token_ids", param="stop")
        biased = [bias.token_id for bias in request.sampling.logit_bias]
        check_ids("stop_token_ids", request.text.stop_token_ids, self.vocab_size)
        check_ids("logit_bias", biased, self.vocab_size)
        if len(request.sampling.allowed_token_ids) % 4:
            raise InvalidRequest("allowed_token_ids is torn", param="allowed_token_ids")
        allowed = unpack(request.sampling.allowed_token_ids)
        check_ids("allowed_token_ids", allowed, self.vocab_size)

    def check_model(self, name: str) -> None:
        """Raise NotFound for another model than this."""
        if name != self.model:
            raise NotFound(
                f"the model {name!r} does not exist; this service has {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def defaults(self) -> SamplingParams:
        """Return what is drawn by where a request says nothing."""
        found = SamplingParams()
        for name, neutral in NEUTRAL.items():
            setattr(found, name, self.sampling_defaults.get(name, neutral))
        return found

    def sampling(self, given: SamplingParams) -> bytes:
        """Return the complete SamplingParams, serialized."""
        complete = self.defaults()
        complete.MergeFrom(given)
        if given.HasField("grammar"):
            complete.grammar.end_token_ids = pack(sorted(self.eos_token_ids))
        return complete.SerializeToString(deterministic=True)

    def stop_token_ids(self, request: TextRequest) -> frozenset[int]:
        """Return every id that ends the request."""
        eos = frozenset() if request.text.ignore_eos else self.eos_token_ids
        return eos | frozenset(request.text.stop_token_ids)

    def limits(self, request: TextRequest, num_prompt_tokens: int, max_model_len: int) -> Limits:
        """Return the complete Limits; `max_model_len` is the engine's, in tokens."""
        room = max_model_len - num_prompt_tokens
        # clients that shorten a prompt, or ask a larger model, go by 400, the code and these words
        context = f"this model's maximum context length is {max_model_len} tokens"
        draws = request.limits.kind == GENERATE
        if room < 0 or (room == 0 and draws):
            is_embed = request.limits.kind == EMBED
            together, what = (
                ("", "input") if is_embed else (", prompt and answer together", "prompt")
            )
            raise InvalidRequest(
                f"{context}{together}, but the {what} has {num_prompt_tokens}",
                param=input_param(request),
                code="context_length_exceeded",
            )
        limits = Limits()
        limits.CopyFrom(request.limits)
        limits.has_grammar = draws and request.text.grammar.kind != Grammar.NONE
        if not draws:
            limits.max_tokens = 1  # the least that the engine takes; none is drawn
        elif not request.limits.HasField("max_tokens"):
            limits.max_tokens = min(room, self.max_new_tokens or room)
            limits.max_is_ours = True
        elif request.limits.max_tokens > room and not request.limits.HasField("n_keep"):
            if request.limits.max_tokens > max_model_len and not request.text.cut_max_tokens:
                raise InvalidRequest(
                    f"{context}, and max_tokens is {request.limits.max_tokens}",
                    param="max_tokens",
                    code="context_length_exceeded",
                )
            limits.max_tokens = room
        limits.n = max(1, request.limits.n)
        if request.limits.kind == EMBED and not request.limits.HasField("pooling"):
            limits.pooling = self.pooling
        if request.text.stop:  # we end it: what the engine's end would tell must be told before
            limits.report_progress = True
        limits.stop_token_ids = pack(sorted(self.stop_token_ids(request)))
        return limits

    def shown_stop_id(self, request: TextRequest, token_id: int) -> int | None:
        """Return the id a client is told; None for the end of sequence it does not know about."""
        ended_by_eos = token_id in self.eos_token_ids and not request.text.ignore_eos
        return None if ended_by_eos else token_id


def check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raise InvalidRequest when an id is none of the vocabulary, whose size may be 0 = unknown."""
    largest = max(token_ids, default=-1)
    if vocab_size and largest >= vocab_size:
        raise InvalidRequest(
            f"{param} has token id {largest}, but the vocabulary has {vocab_size} entries",
            param=param,
        )


def input_param(request: TextRequest) -> str:
    """Return the field that the client gave its text in."""
    if request.HasField("chat"):
        return "messages"
    return "input" if request.limits.kind == EMBED else "prompt"
