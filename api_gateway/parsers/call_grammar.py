"""Tool calls as Lark rules in llguidance's dialect, where `%json {…}` stands for a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from api_gateway.checks import refuse
from api_gateway.parsers.json_schema import binding, closed
from protos.limits import MAX_GRAMMAR_CHARS

ANY_OBJECT: dict[str, Any] = {"type": "object"}
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Calls on one line, as chat templates write them. The worker bounds white space elsewhere."""


def rules(
    tools: Sequence[Mapping[str, Any]],
    is_single: bool,
    key: str,
    around: tuple[str, str],
    between: str,
    brackets: tuple[str, str] = ("", ""),
) -> str:
    """Return the rules of `calls`, each `{"name": …, key: {…}}` with Lark before and after it.

    `between` two calls and the `brackets` around all are text. Raises InvalidRequest for more than
    a grammar may have.
    """
    before, after = around
    first, last = (quoted(bracket) if bracket else "" for bracket in brackets)
    more = "" if is_single else f"({quoted(between)} call)*"
    lines = [" ".join(filter(None, ("calls:", first, "call", more, last)))]
    lines.append("call: " + " | ".join(f"call_{k}" for k in range(len(tools))))
    num_chars = 0
    for k, tool in enumerate(tools):
        head = quoted(f'{{"name": {json.dumps(tool["name"])}, "{key}": ')
        schema = json.dumps(spaced(arguments_of(tool)))
        body = f"{head} arguments_{k} {quoted('}')}"
        lines.append(" ".join(filter(None, (f"call_{k}:", before, body, after))))
        lines.append(f"arguments_{k}: %json {schema}")
        num_chars += len(schema)
        if num_chars > MAX_GRAMMAR_CHARS:  # all streams would wait for the rest of it
            raise refuse(f"tools has over {MAX_GRAMMAR_CHARS} characters", "tools")
    return "\n".join(lines) + "\n"


def forced(calls: str, schema: Mapping[str, Any] | None = None) -> str:
    """Return a whole grammar: calls, or, with a `schema`, calls or JSON of that schema."""
    if schema is None:
        return f"start: calls\n{calls}"
    return f"start: calls | answer\nanswer: %json {json.dumps(spaced(schema))}\n{calls}"


def arguments_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments; without one it takes none."""
    return dict(binding(closed(ANY_OBJECT | (tool.get("parameters") or {"properties": {}}))))


def spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with our spacing, unless it says how it wants white space."""
    return {"x-guidance": SPACING, **schema}


def quoted(text: str) -> str:
    return json.dumps(text)
