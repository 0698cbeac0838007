"""The tools of a request for a response: functions, some of them in namespaces.

A model is shown one name of a function in a namespace, and the client is told the two that it is
made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api_gateway.checks import refuse
from api_gateway.responses.schema import Namespace, ResponseTool, WebSearch
from api_gateway.schema import Function, Tool
from protos.limits import MAX_TOOL_NAME_CHARS


@dataclass(slots=True)
class Offered:
    """What may be called."""

    functions: list[Tool] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    """As the response repeats them."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and name of each function that is in one, by its full name."""


def offered(tools: Sequence[ResponseTool | Namespace | WebSearch]) -> Offered:
    """Return the tools; raise InvalidRequest for a name that is too long."""
    found = Offered()
    for index, tool in enumerate(tools):
        if isinstance(tool, WebSearch):
            continue
        found.shown.append(msgspec.to_builtins(tool))
        if isinstance(tool, ResponseTool):
            found.functions.append(function_of(tool, tool.name))
            continue
        for place, inner in enumerate(tool.tools):
            name = full_name(tool.name, inner.name)
            if len(name) > MAX_TOOL_NAME_CHARS:
                where = f"tools[{index}].tools[{place}].name"
                most = f"at most {MAX_TOOL_NAME_CHARS} characters"
                raise refuse(f"{where}: with its namespace {name[:80]!r} must have {most}", where)
            found.namespaces[name] = (tool.name, inner.name)
            found.functions.append(function_of(inner, name))
    return found


def function_of(tool: ResponseTool, name: str) -> Tool:
    given = (tool.returns or None, tool.response or None)
    return Tool(function=Function(name, tool.description, tool.parameters, tool.strict, *given))


def full_name(namespace: str | None, name: str) -> str:
    """Return the name that a model is shown."""
    return f"{namespace}__{name}" if namespace else name
