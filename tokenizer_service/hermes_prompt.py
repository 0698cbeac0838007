"""Tools for ChatML templates that know none (Qwen2): spelled out in messages, in the Hermes format.

The words are those that Qwen2.5's template shows its models. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SYSTEM = "You are a helpful assistant."
BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

Message = dict[str, Any]
Read = Callable[[str], Any]
"""Returns the value of a JSON text; raises ValueError where it is none."""


def spelled(messages: Sequence[Message], tools: Sequence[Any] | None, read: Read) -> list[Message]:
    """Return `messages` without any tool role or call: all of it as content.

    `read` is for the arguments of calls.
    """
    joined: list[Message] = []
    previous = None
    for message in messages:
        role, plain = message.get("role"), spelled_message(message, read)
        if role == previous == "tool":
            joined[-1]["content"] += f"\n{plain['content']}"
        else:
            joined.append(plain)
        previous = role
    return with_signatures(joined, tools) if tools else joined


def with_signatures(messages: Sequence[Message], tools: Sequence[Any]) -> list[Message]:
    """Return `messages` with the tools' signatures at the end of the system message."""
    signatures = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    has_system = messages[0].get("role") == "system"
    system = messages[0].get("content") or "" if has_system else SYSTEM
    first = {"role": "system", "content": f"{system}{BEFORE}{signatures}{AFTER}"}
    return [first, *messages[has_system:]]


def spelled_message(message: Message, read: Read) -> Message:
    """Return an answer's calls, or a tool's result, as content."""
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    texts = [content] if content else []
    texts += [f"<tool_call>\n{spelled_call(call, read)}\n</tool_call>" for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}


def spelled_call(call: Any, read: Read) -> str:
    """Return a call as the model wrote it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, Mapping):
        return json.dumps(call, ensure_ascii=False)
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        try:
            known = {"name": name, "arguments": read(arguments or "{}")}
            return json.dumps(known, ensure_ascii=False)
        except ValueError:
            pass  # what a model wrote need not be JSON, nor shallow; it reads it as it was
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
