"""The tools of a request for a response: functions, some of them in namespaces.

Codex offers the functions of each MCP server in a namespace. A model is shown one name, and the
client is told the two that it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from api_gateway.checks import refuse
from api_gateway.items import typed
from api_gateway.responses.schema import Namespace, ResponseTool
from api_gateway.schema import Function, Tool
from protos.limits import MAX_TOOL_NAME_CHARS

KINDS: dict[str, type[ResponseTool] | type[Namespace]] = {
    "function": ResponseTool,
    "namespace": Namespace,
}
WHY = "the tools are functions"
NOT_OFFERED = ("web_search", "web_search_preview")
"""Kinds that Codex always sends. The model is not told of them, so it does not call any."""


@dataclass(slots=True)
class Offered:
    """What may be called."""

    functions: list[Tool] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    """As the response repeats them."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and name of each function that is in one, by its full name."""


def offered(tools: list[dict[str, Any]] | None) -> Offered:
    """Return the tools; raise InvalidRequest that names the one at fault."""
    found = Offered()
    for index, raw in enumerate(tools or []):
        if raw.get("type") in NOT_OFFERED:
            continue
        param = f"tools[{index}]"
        tool = typed(raw, KINDS, param, WHY)
        found.shown.append(msgspec.to_builtins(tool))
        if isinstance(tool, ResponseTool):
            found.functions.append(function_of(tool, tool.name))
            continue
        for place, inner in enumerate(tool.tools):
            name = full_name(tool.name, inner.name)
            if len(name) > MAX_TOOL_NAME_CHARS:
                where = f"{param}.tools[{place}].name"
                most = f"at most {MAX_TOOL_NAME_CHARS} characters"
                raise refuse(f"{where}: with its namespace {name[:80]!r} must have {most}", where)
            found.namespaces[name] = (tool.name, inner.name)
            found.functions.append(function_of(inner, name))
    return found


def function_of(tool: ResponseTool, name: str) -> Tool:
    return Tool(function=Function(name, tool.description, tool.parameters, tool.strict))


def full_name(namespace: str | None, name: str) -> str:
    """Return the name that a model is shown."""
    return f"{namespace}__{name}" if namespace else name
