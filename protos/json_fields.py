"""The JSON that fields of the messages carry, as clients wrote it.

Whole numbers of any size stay what they are, and nesting has an end.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_DEPTH = 250
"""What a template, and whoever writes it as text again, can walk down."""
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError for what is none, or is nested too deep."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if depth(value, MAX_DEPTH) > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    return value


def dumps(value: Any) -> bytes:
    """Return the JSON text of a value that is nested no deeper than `loads` allows."""
    return msgspec.json.encode(value)


def depth(value: Any, enough: int) -> int:
    """Return how deep lists and objects are nested, or `enough` + 1 as soon as it is more."""
    layer, levels = [value], 0
    while layer and levels <= enough:
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        levels += 1
        layer = [item for item in inner if isinstance(item, dict | list)]
    return levels
