"""A conversation in the form that a model's template takes → the text of its prompt.

Templates differ in what they read: arguments of calls as objects or strings, contents as texts or
parts, null or nothing. Knows the OpenAI message shapes as far as templates need them; no token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest
from protos.json_fields import dumps
from protos.tokenizer_pb2 import ChatInput
from tokenizer_service.content_parts import as_parts, roles_of_parts
from tokenizer_service.formats import needs_of
from tokenizer_service.guarded_text import unused
from tokenizer_service.hermes_prompt import Read, spelled
from tokenizer_service.template_process import TemplateProcess
from tokenizer_service.turns import Asker

PRIVATE_USE = range(0xE000, 0xF900)
SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class Renderer:
    """Renders the conversations of one model."""

    def __init__(self, template: TemplateProcess, templates: Mapping[str, str]) -> None:
        """`templates` are the sources of `template`, by name."""
        self._template = template
        self._needs = needs_of(templates)
        self._parts_roles = None if self._needs.parts else frozenset[str]()

    async def render(
        self, chat: ChatInput, messages: Any, tools: Any, kwargs: Any, asker: Asker, read: Read
    ) -> str:
        """Return the text of a conversation; raise InvalidRequest for what the template refuses.

        `read` is for the arguments of calls.
        """
        prompt = not (chat.no_generation_prompt or chat.continue_final_message)
        is_open = chat.continue_final_message
        mark = unused(PRIVATE_USE, dumps(messages).decode()) if is_open else ""
        if mark:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": f"{last['content']}{mark} "}]
        if self._needs.spelled_tools:
            messages, tools = spelled(messages, tools, read), None
        if self._needs.short_ids:
            messages = [with_short_ids(message) for message in messages]
        if self._parts_roles is None:
            self._parts_roles = await roles_of_parts(self._template.render)
        messages = [with_parts(message, self._parts_roles) for message in messages]
        nothing = None if self._needs.null_content else ""
        rest = (tools, prompt, kwargs, asker)
        try:
            text = await self._render_calls(messages, nothing, read, *rest)
        except InvalidRequest as error:
            if nothing is not None or "None" not in error.message:
                raise
            text = await self._render_calls(messages, "", read, *rest)  # it asks, and fails
        return cut_at(text, mark) if mark else text

    async def _render_calls(
        self, messages: list[Any], nothing: str | None, read: Read, *rest: Any
    ) -> str:
        """Give templates tool arguments as objects; those that want strings get strings."""
        messages = [with_content(message, nothing) for message in messages]
        with_objects = [with_parsed_arguments(message, read) for message in messages]
        try:
            return await self._template.render(with_objects, *rest)
        except InvalidRequest:
            if with_objects == messages:
                raise
            return await self._template.render(messages, *rest)


def with_content(message: dict[str, Any], nothing: str | None) -> dict[str, Any]:
    """Return `message`, its content `nothing` when it is calls only.

    Many templates join strings with the content, or would write "None" or fail.
    """
    if message.get("content") is None and message.get("tool_calls"):
        return {**message, "content": nothing}
    return message


def with_parts(message: dict[str, Any], roles: frozenset[str]) -> dict[str, Any]:
    """Return `message`, its text as the one part of its content if it is one of these roles'."""
    match message:
        case {"role": str(role), "content": str(content)} if role in roles:
            return {**message, "content": as_parts(content)}
    return message


def with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return `message`, its ids of calls as nine letters and digits: the same for the same id."""
    if isinstance(answered := message.get("tool_call_id"), str):
        message = {**message, "tool_call_id": short_id(answered)}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message = {**message, "tool_calls": [with_short_id(call) for call in calls]}
    return message


def with_short_id(call: Any) -> Any:
    match call:
        case {"id": str(told)}:
            return {**call, "id": short_id(told)}
    return call


def short_id(told: str) -> str:
    return told if SHORT_ID.fullmatch(told) else hashlib.sha256(told.encode()).hexdigest()[:9]


def with_parsed_arguments(message: dict[str, Any], read: Read) -> dict[str, Any]:
    """Return `message` with its tool calls' JSON arguments as objects."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    return {**message, "tool_calls": [with_parsed_call(call, read) for call in calls]}


def with_parsed_call(call: Any, read: Read) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = read(function["arguments"] or "{}")
    except ValueError:
        return call  # what a model wrote need not be JSON; the template gets it as it is
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def cut_at(text: str, mark: str) -> str:
    """Return the text before the mark; without trailing blanks when the template trims them."""
    before, found, after = text.rpartition(mark)
    if not found:
        raise InvalidRequest(
            "continue_final_message: the chat template leaves the final message out",
            param="messages",
        )
    return before if after.startswith(" ") else before.rstrip()
