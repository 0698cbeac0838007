"""The words of every check: bounds of the shared table, errors that name the field."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from common.errors import InvalidRequest
from protos import limits
from protos.json_fields import depth, dumps


def refuse(message: str, param: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(message, param=param, code=code)


def check_bound(name: str, value: float | None, bound: str | None = None) -> None:
    """Check `value` against the shared table; `bound` is its name there when another."""
    if value is None:
        return
    if (why := limits.violation(bound or name, value)) is not None:
        raise refuse(why.replace(bound, name, 1) if bound else why, name)


def check_count(items: Sized | None, allowed: int, param: str) -> None:
    if items is not None and len(items) > allowed:
        raise refuse(f"{param} has {len(items)} entries, {allowed} are allowed", param)


def check_texts(texts: list[str], param: str, max_count: int, max_chars: int) -> None:
    """Check a list of strings that must not be empty."""
    check_count(texts, max_count, param)
    for index, text in enumerate(texts):
        check_text(text, f"{param}[{index}]", max_chars)


def check_text(text: str, param: str, max_chars: int) -> None:
    if not text:
        raise refuse(f"{param} is empty", param)
    if len(text) > max_chars:
        raise refuse(f"{param} has over {max_chars} characters", param)


def check_token_ids(ids: list[int], param: str) -> None:
    """Check that `ids` fit the wire; whether the vocabulary has them is the text tier's."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id <= limits.MAX_U32:
            raise refuse(f"{param}[{index}] is not a token id", f"{param}[{index}]")


def schema_text(schema: Any, param: str) -> str:
    """Return a JSON Schema as text; refuse one that is too deep or too long."""
    if depth(schema, limits.MAX_SCHEMA_DEPTH) > limits.MAX_SCHEMA_DEPTH:
        raise refuse(f"{param} is nested deeper than {limits.MAX_SCHEMA_DEPTH}", param)
    text = dumps(schema).decode()
    if len(text) > limits.MAX_GRAMMAR_CHARS:
        raise refuse(f"{param} has over {limits.MAX_GRAMMAR_CHARS} characters", param)
    return text
