"""Tool calls as Lark rules in llguidance's dialect, where `%json {…}` stands for a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ANY_OBJECT: dict[str, Any] = {"type": "object"}
VALUES = frozenset({"enum", "const", "default", "examples", "properties", "allOf", "if", "not"})
"""Keywords under which closed() changes nothing, or which it looks at apart."""
OPEN = frozenset(
    {
        "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
        "allOf", "if", "$ref", "dependentSchemas", "anyOf", "oneOf", "minProperties",
    }
)  # fmt: skip
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Calls on one line, as chat templates write them. The worker bounds white space elsewhere."""


def rules(
    tools: Sequence[Mapping[str, Any]],
    is_single: bool,
    key: str,
    around: tuple[str, str],
    between: str,
) -> str:
    """Return the rules of `calls`, each `{"name": …, key: {…}}` with Lark before and after it."""
    before, after = around
    lines = [f"calls: call ({quoted(between)} call)*" if not is_single else "calls: call"]
    lines.append("call: " + " | ".join(f"call_{k}" for k in range(len(tools))))
    for k, tool in enumerate(tools):
        head = quoted(f'{{"name": {json.dumps(tool["name"])}, "{key}": ')
        schema = json.dumps(spaced(closed(ANY_OBJECT | (tool.get("parameters") or {}))))
        body = f"{head} arguments_{k} {quoted('}')}"
        lines.append(" ".join(filter(None, (f"call_{k}:", before, body, after))))
        lines.append(f"arguments_{k}: %json {schema}")
    return "\n".join(lines) + "\n"


def forced(calls: str, schema: Mapping[str, Any] | None = None) -> str:
    """Return a whole grammar: calls, or, with a `schema`, calls or JSON of that schema."""
    if schema is None:
        return f"start: calls\n{calls}"
    return f"start: calls | answer\nanswer: %json {json.dumps(spaced(schema))}\n{calls}"


def closed(schema: Any) -> Any:
    """Return `schema` without properties that it does not name, where it does not speak of them.

    As the strict modes of other engines: what comes out still fits the schema, and a weak model
    comes to an end. Under allOf and its like an object is described in parts: those stay open.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {key: value if key in VALUES else closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict):
        shown["properties"] = {k: closed(v) for k, v in schema["properties"].items()}
        if not OPEN & schema.keys():
            shown["additionalProperties"] = False
    return shown


def spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with our spacing, unless it says how it wants white space."""
    return {"x-guidance": SPACING, **schema}


def quoted(text: str) -> str:
    return json.dumps(text)
