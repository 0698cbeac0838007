"""The replies as types, for the OpenAPI document and the tests that hold replies to it.

The replies themselves are built as plain objects, which is faster.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class Error(msgspec.Struct):
    """What went wrong. `param` is the path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET


class ErrorReply(msgspec.Struct):
    error: Error


class PromptTokens(msgspec.Struct):
    cached_tokens: int


class CompletionTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens read and written; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Timings(msgspec.Struct):
    """Where the time went."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    tokens_per_s: float
    cached: int
    preemptions: int


class FunctionCalled(msgspec.Struct):
    name: str
    arguments: str


class ToolCalled(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: FunctionCalled


class AssistantMessage(msgspec.Struct):
    """The answer; `reasoning` and `reasoning_content` are the same."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCalled] | msgspec.UnsetType = msgspec.UNSET


class AnyChoice(msgspec.Struct):
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    sampler_trace: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(AnyChoice, kw_only=True):
    message: AssistantMessage


class TextChoice(AnyChoice, kw_only=True):
    text: str
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Head(msgspec.Struct):
    """`system_fingerprint` says which replicas answer alike, bit for bit."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    timings: Timings


class ChatReply(Head, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET


class CompletionReply(Head, kw_only=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class InputTokens(PromptTokens):
    """Writing to the prefix cache is nobody's extra cost."""

    cache_write_tokens: Literal[0]


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: CompletionTokens
    total_tokens: int


class ResponseReply(msgspec.Struct):
    """A response, and what it repeats of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    background: Literal[False]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    store: Literal[False]
    temperature: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    usage: ResponseUsage | None
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class MessageUsage(msgspec.Struct):
    """The three parts of the input add up; nothing is counted as written to the cache."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


class MessageReply(msgspec.Struct):
    """An answer in Anthropic's form."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal[
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
    ]
    stop_sequence: str | None
    usage: MessageUsage
    timings: Timings


class MessageTokens(msgspec.Struct):
    input_tokens: int


class MessageError(msgspec.Struct):
    """What went wrong, in Anthropic's words and ours."""

    type: str
    message: str
    param: str | None
    code: str | None
    details: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class MessageErrorReply(msgspec.Struct):
    type: Literal["error"]
    error: MessageError
    request_id: str


class Vector(msgspec.Struct):
    """One input's embedding: numbers, or base64 of float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsReply(msgspec.Struct):
    object: Literal["list"]
    model: str
    data: list[Vector]
    usage: EmbeddingUsage
    timings: Timings


class ModelObject(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelObject]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(msgspec.Struct):
    prompt: str


class TokenizerInfo(msgspec.Struct):
    """What the model folder says; tokens that it names and this does not come as well."""

    tokenizer_class: str
    chat_template: str | None
    bos_token: str | msgspec.UnsetType = msgspec.UNSET
    eos_token: str | msgspec.UnsetType = msgspec.UNSET
    unk_token: str | msgspec.UnsetType = msgspec.UNSET
    pad_token: str | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class RequestState(msgspec.Struct):
    """What the engines do with a live request, one entry a choice."""

    id: str
    object: Literal["request"]
    choices: list[dict[str, Any]]


class Cancelled(msgspec.Struct):
    id: str
    cancelled: int


class ExplainedPrompt(msgspec.Struct):
    prompt_tokens: int
    engines: list[dict[str, Any]]


class Explanation(msgspec.Struct):
    object: Literal["request.explanation"]
    model: str
    prompts: list[ExplainedPrompt]


class CacheReply(msgspec.Struct):
    object: Literal["cache"]
    engines: list[dict[str, Any]]


class Live(msgspec.Struct):
    status: Literal["live"]


class Ready(msgspec.Struct):
    status: Literal["ready", "not ready"]
    reasons: list[str]
    engines: list[dict[str, Any]]


class Version(msgspec.Struct):
    service: str
    version: str
