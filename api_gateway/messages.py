"""The messages of a conversation: brought to the plain form that chat templates know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api_gateway.checks import check_count, refuse
from api_gateway.schema import UNSEEN, ChatPrompt, ChatRequest, Message, Scalar, TokenizeRequest
from protos import limits

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "documents", "messages", "return_dict", "return_tensors", "tokenize", "tools",
    }
)  # fmt: skip


def check_conversation(body: ChatRequest | ChatPrompt | TokenizeRequest) -> None:
    """Check all that a prompt is made of but the tools; contents become plain text."""
    if body.continue_final_message and body.add_generation_prompt:
        raise refuse(
            "continue_final_message excludes add_generation_prompt", "continue_final_message"
        )
    check_template_kwargs(body.chat_template_kwargs or {})
    if not body.messages:
        raise refuse("messages is empty", "messages")
    check_count(body.messages, limits.MAX_MESSAGES, "messages")
    for index, message in enumerate(body.messages):
        check_message(message, f"messages[{index}]")


def check_template_kwargs(kwargs: Mapping[str, Scalar]) -> None:
    param = "chat_template_kwargs"
    check_count(kwargs, limits.MAX_TEMPLATE_KWARGS, param)
    for name, value in kwargs.items():
        if name in RESERVED_KWARGS or name.startswith("_"):
            raise refuse(f"{param}: {name[:40]!r} is reserved", param, "reserved_name")
        is_huge = isinstance(value, int) and abs(value) > 2**63
        if is_huge or isinstance(value, float) and not math.isfinite(value):
            raise refuse(f"{param}: {name[:40]!r} must be between -2**63 and 2**63", param)


def check_message(message: Message, param: str) -> None:
    """Check one message; its parts, if any, become one text."""
    if message.role == "tool" and message.tool_call_id is None:
        message.tool_call_id = message.id  # the name that Qwen-Agent has for it
    for name in UNSEEN:
        setattr(message, name, None)
    if isinstance(message.content, list):
        check_count(message.content, limits.MAX_CONTENT_PARTS, f"{param}.content")
        passed_over = CACHE_MARKS + (ECHOES if message.role == "assistant" else ())
        texts = [
            part_text(part, f"{param}.content[{index}]", passed_over)
            for index, part in enumerate(message.content)
        ]
        message.content = "\n".join(texts)
    check_calls(message, param)
    if message.content is None or message.content is msgspec.UNSET:
        if message.role != "assistant":
            raise refuse(f"{param}.content is required", f"{param}.content", "missing_field")
        message.content = None if message.tool_calls else ""
    if message.role == "developer":  # OpenAI's newer word for system; templates know the older
        message.role = "system"
    if message.reasoning is not None:  # the other name of the same thing
        message.reasoning_content = message.reasoning_content or message.reasoning
        message.reasoning = None


def check_calls(message: Message, param: str) -> None:
    """Check the fields that belong to tools."""
    message.tool_calls = message.tool_calls or None
    for call in message.tool_calls or []:
        call.function.parsed_arguments = msgspec.UNSET
        call.id = msgspec.UNSET if call.id is None else call.id
        call.index = msgspec.UNSET if call.index is None else call.index
    if message.tool_calls and message.role != "assistant":
        raise refuse(f"{param}.tool_calls is only for assistants", f"{param}.tool_calls")
    check_count(message.tool_calls, limits.MAX_TOOLS, f"{param}.tool_calls")
    if message.role == "tool" and message.tool_call_id is None:
        raise refuse(f"{param}.tool_call_id is required", f"{param}.tool_call_id", "missing_field")
    if message.role != "tool" and message.tool_call_id is not None:
        raise refuse(f"{param}.tool_call_id is only for tools", f"{param}.tool_call_id")


TEXTS = ("text", "refusal")
"""Kinds of parts, each with its text in a field of that name; a refusal is an assistant's."""
CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
"""What Anthropic's and OpenAI's clients mark a part with: prefixes are cached without it."""
ECHOES = ("role", "reasoning_content", "reasoning", "annotations", "tool_calls")
"""Fields of our answer that OpenAI's agents for Node repeat in its text part when it comes back."""


def drop_beside_texts(messages: Any) -> None:
    """Remove from the content parts of raw `messages` what stands there beside kind and text."""
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") in TEXTS:
                for name in part.keys() - {"type", part["type"]}:
                    del part[name]


def part_text(part: dict[str, Any], param: str, passed_over: Sequence[str]) -> str:
    """Return the text of a content part; anything but text is refused by its name."""
    kind = part.get("type")
    if not isinstance(kind, str):
        raise refuse(f"{param}.type is required", f"{param}.type", "missing_field")
    if kind not in TEXTS:
        raise refuse(
            f"content parts of type {kind[:40]!r} are not supported: this server reads text",
            f"{param}.{kind[:40]}",
            "unsupported_content",
        )
    for name in part.keys() - {"type", kind, *passed_over}:
        if part[name] is not None:
            raise refuse(f"unknown field {name[:40]!r}", f"{param}.{name[:40]}", "unknown_field")
    if not isinstance(part.get(kind), str):
        raise refuse(f"{param}.{kind} must be a string", f"{param}.{kind}", "invalid_type")
    return str(part[kind])
