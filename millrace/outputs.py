"""What LLM returns: a RequestOutput per prompt, with a CompletionOutput for each of n answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import common_pb2

FINISH_REASONS = {
    common_pb2.STOPPED: "stop",
    common_pb2.LENGTH: "length",
    common_pb2.ABORTED: "abort",
    common_pb2.DEADLINE: "deadline",
}


@dataclass(frozen=True)
class Logprob:
    """One candidate for a place in the answer."""

    logprob: float
    token: str
    token_bytes: bytes


@dataclass
class CompletionOutput:
    """One answer, or in a stream what is new of it."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """One dict per token: the chosen token first, then the alternatives, likeliest first."""
    finish_reason: str | None = None
    """stop, length, abort or deadline; None while the answer goes on."""
    stop_reason: int | str | None = None
    """The stop string or the id of `stop_token_ids` that ended it; None for the model's own end."""


@dataclass
class RequestOutput:
    """All about one prompt. `prompt` is None when ids or messages were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    """None when a remote server has made them."""
    outputs: list[CompletionOutput]
    finished: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed again."""
