"""What LLM returns: a RequestOutput per prompt, with a CompletionOutput for each of n answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    reasoning: str = ""
    """What a chat's model thought before the text; `text` has none of it."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """OpenAI's objects, of a chat with tools; in a stream its chunks. `text` has none of them."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """One dict per token: the chosen token first, then the alternatives, likeliest first."""
    finish_reason: str | None = None
    """stop, length, tool_calls, abort or deadline; None while the answer goes on."""
    stop_reason: int | str | None = None
    """The stop string or the id of `stop_token_ids` that ended it; None for the model's own end."""
    num_reasoning_tokens: int = 0
    """Tokens of the thoughts, end tag included; known at the end."""
    sampler_trace: list[dict[str, Any]] | None = None
    """Per token, what each stage of the sampler's chain has left; when it was asked for."""


@dataclass
class RequestOutput:
    """All about one prompt. `prompt` is None when ids or messages were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed again."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """One entry per prompt token, the first of them None; at the end, when it was asked for."""


@dataclass(frozen=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    request_id: str
    embedding: list[float]
    num_prompt_tokens: int
