"""Compose's `${NAME:-default}` in strings. Knows the grammar; knows nothing of YAML or services."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")


class InterpolationError(Exception):
    """The text has no meaning, or a variable it requires is not set."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$NAME`, `${NAME}` and `${NAME:-d}`, `:?`, `:+` in `text`; `$$` is a dollar."""
    done: list[str] = []
    rest = text
    while True:
        head, dollar, rest = rest.partition("$")
        done.append(head)
        if not dollar:
            return "".join(done)
        value, rest = _expression(rest, variables)
        done.append(value)


def _expression(rest: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the value of what stands after a dollar, and the text behind it."""
    if rest.startswith("$"):
        return "$", rest[1:]
    if rest.startswith("{"):
        end = _closing(rest)
        return _braced(rest[1:end], variables), rest[end + 1 :]
    if name := _NAME.match(rest):
        return variables.get(name[0], ""), rest[name.end() :]
    raise InterpolationError(f"a lone $ before {rest[:20]!r}; write $$ for a dollar")


def _closing(text: str) -> int:
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
    raise InterpolationError(f"no closing brace in ${text}")


def _braced(inner: str, variables: Mapping[str, str]) -> str:
    name = _NAME.match(inner)
    if name is None:
        raise InterpolationError(f"${{{inner}}} does not begin with a variable's name")
    rest = inner[name.end() :]
    value = variables.get(name[0])
    if not rest:
        return value or ""
    operator = next((o for o in _OPERATORS if rest.startswith(o)), None)
    if operator is None:
        raise InterpolationError(f"${{{inner}}}: known forms are ${{X}}, ${{X:-default}}, ${{X:?}}")
    present = bool(value) if operator.startswith(":") else value is not None
    return _applied(name[0], operator[-1], rest[len(operator) :], value or "", present, variables)


def _applied(
    name: str, operator: str, operand: str, value: str, present: bool, variables: Mapping[str, str]
) -> str:
    if operator == "+":
        return interpolate(operand, variables) if present else ""
    if present:
        return value
    if operator == "?":
        raise InterpolationError(f"{name} is required: {interpolate(operand, variables)}")
    return interpolate(operand, variables)
