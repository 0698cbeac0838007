"""What users may give as a prompt, and the TextRequest it becomes: the gateway's own message."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from common.errors import InvalidRequest
from millrace.params import SamplingParams
from protos.limits import MAX_U32
from protos.tokenizer_pb2 import ChatInput, TextRequest

Prompt: TypeAlias = str | Mapping[str, Any]
"""A text, {"prompt": text}, {"prompt_token_ids": ids} or {"messages": [...], chat options}."""
Messages: TypeAlias = Sequence[Mapping[str, Any]]
CHAT_OPTIONS = frozenset(
    {"tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
)


def text_request(
    prompt: Prompt, params: SamplingParams, model: str, request_id: str, seed: int
) -> TextRequest:
    """Return the request; raise InvalidRequest when `prompt` is none of the known forms."""
    request = TextRequest(
        request_id=request_id,
        model=model,
        limits=params.limits(),
        sampling=params.sampling(seed),
        text=params.text_options(),
    )
    if isinstance(prompt, str):
        request.prompt = prompt
    elif isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
        request.prompt_token_ids = _column(_only(prompt, "prompt_token_ids"))
    elif isinstance(prompt, Mapping) and "messages" in prompt:
        request.chat.CopyFrom(_chat(prompt))
    elif isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str):
        request.prompt = _only(prompt, "prompt")
    else:
        forms = "a string, {'prompt': str}, {'prompt_token_ids': [int]} or {'messages': [...]}"
        raise InvalidRequest(f"a prompt must be {forms}, got {prompt!r:.80}", param="prompt")
    return request


def prompt_text(prompt: Prompt) -> str | None:
    """Return the text the user gave, None for ids and messages."""
    if isinstance(prompt, str):
        return prompt
    text = prompt.get("prompt")
    return text if isinstance(text, str) else None


def given_ids(prompt: Prompt) -> list[int] | None:
    """Return the ids the user gave, None for text and messages."""
    ids = None if isinstance(prompt, str) else prompt.get("prompt_token_ids")
    return None if ids is None else list(ids)


def _only(prompt: Mapping[str, Any], key: str) -> Any:
    if unknown := sorted(set(prompt) - {key}):
        raise InvalidRequest(f"a prompt of {key} may not also have {unknown}", param="prompt")
    return prompt[key]


def _column(ids: Sequence[int]) -> bytes:
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequest(f"prompt_token_ids has {token_id!r}, no id", param="prompt")
        if not 0 <= token_id <= MAX_U32:
            raise InvalidRequest(f"prompt_token_ids has {token_id}, no id", param="prompt")
    return struct.pack(f"<{len(ids)}I", *ids)


def _chat(prompt: Mapping[str, Any]) -> ChatInput:
    if unknown := sorted(set(prompt) - CHAT_OPTIONS - {"messages"}):
        known = sorted(CHAT_OPTIONS)
        raise InvalidRequest(f"unknown chat options {unknown}; known: {known}", param=unknown[0])
    tools, kwargs = prompt.get("tools"), prompt.get("chat_template_kwargs")
    return ChatInput(
        messages_json=msgspec.json.encode([_plain(message) for message in prompt["messages"]]),
        tools_json=msgspec.json.encode(tools) if tools else b"",
        template_kwargs_json=msgspec.json.encode(kwargs) if kwargs else b"",
        no_generation_prompt=not prompt.get("add_generation_prompt", True),
        continue_final_message=bool(prompt.get("continue_final_message")),
    )


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Join the parts of a content list to one text, as the gateway does."""
    if not isinstance(message, Mapping) or "role" not in message:
        raise InvalidRequest(f"a message must have a role, got {message!r:.80}", param="messages")
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    if any(not isinstance(p, Mapping) or p.get("type") != "text" for p in content):
        raise InvalidRequest("message content may only have parts of type text", param="messages")
    return {**message, "content": "\n".join(str(part["text"]) for part in content)}
