"""What the types of the bodies say: the fields of an object, the words that a field may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[[^\]]*\]")
shape_of = cache(inspect.type_info)


def drop_unknown(value: Any, shape: inspect.Type, nulls_only: bool = False) -> None:
    """Remove from `value`, decoded JSON, what objects of that shape have no field for.

    `nulls_only` leaves all but what is null.
    """
    for option in _options(shape):
        if isinstance(option, inspect.StructType) and isinstance(value, dict):
            if option.tag_field and value.get(option.tag_field) != option.tag:
                continue  # one of the others
            fields = {field.encode_name: field.type for field in option.fields}
            for name in value.keys() - fields.keys() - {option.tag_field}:
                if not nulls_only or value[name] is None:
                    del value[name]
            for name in value.keys() & fields.keys():
                drop_unknown(value[name], fields[name], nulls_only)
        elif isinstance(option, inspect.ListType) and isinstance(value, list):
            for inner in value:
                drop_unknown(inner, option.item_type, nulls_only)


def with_whole_numbers(value: Any, shape: inspect.Type) -> Any:
    """Return `value`, decoded JSON, with integers for whole floats where a shape has no floats."""
    options = _options(shape)
    if isinstance(value, float):
        kinds = [type(option) for option in options]
        is_whole = value.is_integer() and inspect.IntType in kinds
        return int(value) if is_whole and inspect.FloatType not in kinds else value
    for option in options:
        if isinstance(option, inspect.ListType) and isinstance(value, list):
            value = [with_whole_numbers(inner, option.item_type) for inner in value]
        elif isinstance(option, inspect.StructType) and isinstance(value, dict):
            fields = {field.encode_name: field.type for field in option.fields}
            changed = {name: with_whole_numbers(value[name], fields[name])
                       for name in value.keys() & fields.keys()}  # fmt: skip
            value = {**value, **changed}
    return value


def words_of(shape: inspect.Type, path: str) -> list[Any]:
    """Return the values a field of listed ones may have; `path` is msgspec's, without `$`."""
    places = [shape]
    for step in _STEP.finditer(path):
        places = [inner for place in places for inner in _within(place, step["field"])]
    return [word for place in places for kind in _options(place)
            if isinstance(kind, inspect.LiteralType) for word in kind.values]  # fmt: skip


def _within(shape: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yield what stands in the field of that name, or, without one, in an array."""
    for option in _options(shape):
        if isinstance(option, inspect.StructType):
            yield from (one.type for one in option.fields if one.encode_name == field)
            if option.tag_field == field is not None:
                yield inspect.LiteralType((option.tag,))
        elif isinstance(option, inspect.ListType) and field is None:
            yield option.item_type


def _options(shape: inspect.Type) -> tuple[inspect.Type, ...]:
    return shape.types if isinstance(shape, inspect.UnionType) else (shape,)
