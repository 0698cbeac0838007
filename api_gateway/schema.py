"""The request bodies as OpenAI clients send them: which fields there are and of which type.

Bounds and meaning are validation.py's; fields that are known but not served are unserved.py's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries beside text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] | None = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """What an assistant once called; templates show it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """One tool call of an earlier assistant message."""

    function: FunctionCall
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation; parts are looked at one by one in validation.py."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[None] | None = None


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What chat and plain completions have in common."""

    model: str
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout_ms: int | None = None
    user: str | None = None


class ChatRequest(Fields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None


class CompletionRequest(Fields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/completions. Left out, max_tokens is 16, as OpenAI has it."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | None = 16
    logprobs: int | None = None
