"""The tools of a request of Anthropic's: which may be called, and which the template shows.

The loading of some may be deferred: they may be called once the result of a call, a search among
them, has referred to them. The model is told of those there, and not before the conversation, where
a new tool would leave nothing of the cached prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api_gateway.anthropic.schema import REFERENCE, OfferedTool, Prompted, Turn
from api_gateway.checks import refuse
from api_gateway.schema import Function, FunctionName, NamedTool, Tool
from protos.json_fields import dumps


def as_function(tool: OfferedTool) -> Tool:
    return Tool(function=Function(tool.name, tool.description, tool.input_schema, tool.strict))


def offered(body: Prompted) -> dict[str, OfferedTool]:
    """Return the tools that may be called, by their places in the request."""
    found = referred_to(body.messages) if any(t.defer_loading for t in body.tools or []) else set()
    tools = enumerate(body.tools or [])
    return {f"tools[{k}]": t for k, t in tools if not t.defer_loading or t.name in found}


def tools_of(body: Prompted, offered: Mapping[str, OfferedTool]) -> dict[str, Any]:
    """Return the tools that may be called, and which must."""
    tools = [as_function(tool) for tool in offered.values()]
    choice = body.tool_choice
    if choice is None:
        return {"tools": tools or None}
    if (choice.type == "tool") != (choice.name is not None):
        wrong = "not allowed" if choice.name is not None else "required"
        raise refuse(f"tool_choice.name is {wrong} with type {choice.type}", "tool_choice.name")
    chosen: Any = "required" if choice.type == "any" else choice.type
    if choice.name is not None:
        chosen = NamedTool(function=FunctionName(choice.name))
    return {
        "tools": tools or None,
        "tool_choice": chosen,
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


def shown_tools(body: Prompted) -> bytes:
    """Return the tools that the template shows, JSON; empty = all that may be called."""
    if not any(tool.defer_loading for tool in body.tools or []):
        return b""
    shown = [as_function(tool) for tool in body.tools or [] if not tool.defer_loading]
    return dumps(shown) if shown else b""


def referred_to(messages: Sequence[Turn]) -> set[str]:
    """Return the names of the tools that results refer to."""
    contents = [turn.content for turn in messages if isinstance(turn.content, list)]
    blocks = [block for content in contents for block in content]
    results = [block.get("content") for block in blocks if block.get("type") == "tool_result"]
    parts = [part for result in results if isinstance(result, list) for part in result]
    found = [part for part in parts if isinstance(part, dict) and part.get("type") == REFERENCE]
    return {name for part in found if isinstance(name := part.get("tool_name"), str)}
