"""Bounds and meaning of a typed request. Every check raises InvalidRequest that names the field."""

from __future__ import annotations

import math
import re
from typing import Any

from api_gateway.schema import ChatRequest, CompletionRequest, Fields, Message
from common.errors import InvalidRequest
from protos import limits

BOUNDED = (
    "max_tokens", "min_tokens", "temperature", "top_p", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "seed", "n", "priority", "timeout_ms",
)  # fmt: skip
MAX_CHOICES = 256
MAX_TEMPLATE_KWARGS = 32
SALT = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "documents", "messages", "return_dict", "return_tensors", "tokenize", "tools",
    }
)  # fmt: skip


def refuse(message: str, param: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(message, param=param, code=code)


def check_bound(name: str, value: float | None, bound: str | None = None) -> None:
    """Check `value` against the shared table; `bound` is its name there when another."""
    if value is None:
        return
    if isinstance(value, int) and abs(value) > 2**64:  # too large for a float, or for a message
        raise refuse(f"{name} is out of range", name)
    if (why := limits.violation(bound or name, value)) is not None:
        raise refuse(why.replace(bound, name, 1) if bound else why, name)


def check_fields(body: Fields) -> None:
    """Check what both kinds of request share."""
    for name in BOUNDED:
        check_bound(name, getattr(body, name))
    if body.top_k != -1:
        check_bound("top_k", body.top_k)
    if body.min_tokens and body.max_tokens is not None and body.min_tokens > body.max_tokens:
        raise refuse(
            f"min_tokens {body.min_tokens} is more than max_tokens {body.max_tokens}", "min_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise refuse("stream_options is only for stream=true", "stream_options")
    if body.cache_salt is not None and not SALT.fullmatch(body.cache_salt):
        raise refuse("cache_salt must be 1 to 64 characters of A-Z a-z 0-9 _ -", "cache_salt")
    check_stops(body)
    check_logit_bias(body.logit_bias or {})


def check_stops(body: Fields) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > limits.MAX_STOP_STRINGS:
        raise refuse(f"stop has {len(stops)} strings, {limits.MAX_STOP_STRINGS} allowed", "stop")
    for index, stop in enumerate(stops):
        param = "stop" if isinstance(body.stop, str) else f"stop[{index}]"
        if not stop:
            raise refuse(f"{param} is empty", param)
        if len(stop) > limits.MAX_STOP_STRING_CHARS:
            raise refuse(f"{param} has over {limits.MAX_STOP_STRING_CHARS} characters", param)
    ids = body.stop_token_ids or []
    if len(ids) > limits.MAX_STOP_TOKEN_IDS:
        raise refuse(f"stop_token_ids has over {limits.MAX_STOP_TOKEN_IDS} ids", "stop_token_ids")
    check_token_ids(ids, "stop_token_ids")


def check_token_ids(ids: list[int], param: str) -> None:
    """Check that `ids` fit the wire; whether the vocabulary has them is the text tier's."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id <= limits.MAX_U32:
            raise refuse(f"{param}[{index}] is not a token id", f"{param}[{index}]")


def check_logit_bias(biases: dict[str, float]) -> None:
    if len(biases) > limits.MAX_LOGIT_BIASES:
        raise refuse(f"logit_bias has over {limits.MAX_LOGIT_BIASES} entries", "logit_bias")
    for key, bias in biases.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= 10
        if not is_id or int(key) > limits.MAX_U32:
            raise refuse(f"logit_bias: {key[:20]!r} is not a token id", "logit_bias")
        check_bound("logit_bias", bias)


def check_chat(body: ChatRequest) -> None:
    """Check a chat request and bring its messages to plain text contents."""
    check_bound("max_completion_tokens", body.max_completion_tokens, "max_tokens")
    if None not in (body.max_tokens, body.max_completion_tokens):
        if body.max_tokens != body.max_completion_tokens:
            raise refuse("max_tokens and max_completion_tokens disagree", "max_completion_tokens")
    if body.max_tokens is None:
        body.max_tokens = body.max_completion_tokens
    check_fields(body)
    check_bound("top_logprobs", body.top_logprobs, "logprobs")
    if body.top_logprobs and not body.logprobs:
        raise refuse("top_logprobs needs logprobs=true", "top_logprobs")
    if body.continue_final_message and body.add_generation_prompt:
        raise refuse(
            "continue_final_message excludes add_generation_prompt", "continue_final_message"
        )
    check_template_kwargs(body.chat_template_kwargs or {})
    if not body.messages:
        raise refuse("messages is empty", "messages")
    for index, message in enumerate(body.messages):
        check_message(message, f"messages[{index}]")


def check_template_kwargs(kwargs: dict[str, Any]) -> None:
    param = "chat_template_kwargs"
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise refuse(f"{param} has over {MAX_TEMPLATE_KWARGS} entries", param)
    for name, value in kwargs.items():
        if name in RESERVED_KWARGS or name.startswith("_"):
            raise refuse(f"{param}: {name[:40]!r} is reserved", param, "reserved_name")
        if (
            isinstance(value, int)
            and abs(value) > 2**63
            or isinstance(value, float)
            and (not math.isfinite(value))
        ):
            raise refuse(f"{param}: {name[:40]!r} is out of range", param)


def check_message(message: Message, param: str) -> None:
    """Check one message; its parts, if any, become one text."""
    if isinstance(message.content, list):
        texts = [
            part_text(part, f"{param}.content[{index}]")
            for index, part in enumerate(message.content)
        ]
        message.content = "\n".join(texts)
    if message.tool_calls and message.role != "assistant":
        raise refuse(f"{param}.tool_calls is only for assistants", f"{param}.tool_calls")
    if message.content is None:
        if message.role != "assistant":
            raise refuse(f"{param}.content is required", f"{param}.content", "missing_field")
        message.content = ""
    if message.role == "developer":  # OpenAI's newer word for system; templates know the older
        message.role = "system"


def part_text(part: dict[str, Any], param: str) -> str:
    """Return the text of a content part; anything but text is refused by its name."""
    kind = part.get("type")
    if not isinstance(kind, str):
        raise refuse(f"{param}.type is required", f"{param}.type", "missing_field")
    if kind != "text":
        raise refuse(
            f"content parts of type {kind[:40]!r} are not supported: this server reads text",
            f"{param}.{kind[:40]}",
            "unsupported_content",
        )
    for name in part.keys() - {"type", "text"}:
        raise refuse(f"unknown field {name[:40]!r}", f"{param}.{name[:40]}", "unknown_field")
    if not isinstance(part.get("text"), str):
        raise refuse(f"{param}.text must be a string", f"{param}.text", "invalid_type")
    return str(part["text"])


def check_completion(body: CompletionRequest) -> list[str | list[int]]:
    """Check a completion request; return its prompts."""
    check_fields(body)
    check_bound("logprobs", body.logprobs)
    prompts = prompts_of(body.prompt)
    if len(prompts) * (body.n or 1) > MAX_CHOICES:
        raise refuse(f"prompts times n is more than {MAX_CHOICES}", "prompt")
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, list):
            param = "prompt" if prompt is body.prompt else f"prompt[{index}]"
            if not prompt:
                raise refuse(f"{param} is empty", param)
            check_token_ids(prompt, param)
    return prompts


def prompts_of(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts of any of the four shapes OpenAI allows."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise refuse("prompt is empty", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise refuse("prompt mixes strings, ids and lists", "prompt", "invalid_type")
    return [prompt] if kinds == {int} else prompt
