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
    places: list[str] = field(default_factory=list)
    """Of the functions in the request."""
    shown: list[dict[str, Any]] = field(default_factory=list)
    """As the response repeats them."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and name of each function that is in one, by its full name."""

    def add(self, tool: ResponseTool, name: str, place: str) -> None:
        self.functions.append(function_of(tool, name))
        self.places.append(place)


def offered(tools: Sequence[ResponseTool | Namespace | WebSearch]) -> Offered:
    """Return the tools; raise InvalidRequest for a name that is too long."""
    found = Offered()
    for index, tool in enumerate(tools):
        if isinstance(tool, WebSearch):
            continue
        found.shown.append(msgspec.to_builtins(tool))
        place = f"tools[{index}]"
        if isinstance(tool, ResponseTool):
            found.add(tool, tool.name, place)
            continue
        for number, inner in enumerate(tool.tools):
            name, of_inner = full_name(tool.name, inner.name), f"{place}.tools[{number}]"
            if len(name) > MAX_TOOL_NAME_CHARS:
                where, most = f"{of_inner}.name", f"at most {MAX_TOOL_NAME_CHARS} characters"
                raise refuse(f"{where}: with its namespace {name[:80]!r} must have {most}", where)
            found.namespaces[name] = (tool.name, inner.name)
            found.add(inner, name, of_inner)
    return found


def function_of(tool: ResponseTool, name: str) -> Tool:
    given = (tool.returns or None, tool.response or None)
    return Tool(function=Function(name, tool.description, tool.parameters, tool.strict, *given))


def full_name(namespace: str | None, name: str) -> str:
    """Return the name that a model is shown."""
    return f"{namespace}__{name}" if namespace else name
