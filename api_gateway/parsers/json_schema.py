"""What of a client's JSON schema binds an answer, and what cannot be kept to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

WORDS = frozenset({"title", "description", "$comment"})
DATA = frozenset({"enum", "const", "default", "examples"})
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
LEAST = 1024 - 2**63
"""The float64 behind -2**63."""
HAIR = 1e-20
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords that hold data, and those that hold schemas by names of the client's."""
VALUES = DATA | {"properties", "allOf", "if", "not"}
"""Keywords under which closed() changes nothing, or which it looks at apart."""
OPEN = frozenset(
    {
        "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
        "allOf", "if", "$ref", "dependentSchemas", "anyOf", "oneOf", "minProperties",
    }
)  # fmt: skip
OWN = OPEN - {"allOf", "if", "$ref", "anyOf", "oneOf"} | {"properties", "required", "maxProperties"}
"""Keywords with which a schema itself describes an object."""
COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "if")
FORMATS = frozenset(
    {
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    }
)  # fmt: skip
"""Those that are kept to. By the standard a format is a remark unless somebody checks it."""

NEGATED = re.compile(r"(\\.)|\[\^([-\]]?)", re.DOTALL)
"""An escape, passed over, or the begin of a class of all characters but those that follow."""
SECONDS = "^[0-9Tt-]*:[0-9]*:[0-5]"
"""Of a time: llguidance knows a second 60 in every minute, and checks of the format do not."""
LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
DAYS = f"^(?:{YEAR}-(?:0[13-9]|1[0-2]|02-(?:[01]|2[0-8]))|{LEAP}-02-29)"
"""Of a date: llguidance knows a 29 February of every year, and a year 0."""
NARROWED = {"time": [SECONDS], "date": [DAYS], "date-time": [DAYS, SECONDS]}
"""Patterns that make of llguidance's reading of a format what checks of it take."""
DRAFT = re.compile(
    r"http://json-schema\.org/draft-0[3467]/schema#?"
    r"|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)
"""Dialects as llguidance knows them. It reads others, and none, in the same way."""
URI_CHARS = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
URI = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?![^/?#]*:)){URI_CHARS}(?:#{URI_CHARS})?")


def binding(schema: Any) -> Any:
    """Return `schema` without what asks for nothing: `is_remark`.

    Bounds of numbers, patterns, references and times are those that llguidance can keep to.
    """
    if isinstance(schema, list):
        return [binding(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown: dict[str, Any] = {}
    for key, value in schema.items():
        if is_remark(key, value):
            continue
        if key in BY_NAME and isinstance(value, dict):
            shown[key] = {name: binding(part) for name, part in value.items()}
        elif key == "pattern" and isinstance(value, str):
            shown[key] = kept_pattern(value)
        elif key == "$ref" and isinstance(value, str):
            shown[key] = quote(value, safe="%#!$&'()*+,;=:@/?~")
        elif key in LOWER + UPPER:
            is_whole = schema.get("type") == "integer"
            shown[key] = kept_bound(key, value if is_whole else off_whole(key, schema), is_whole)
        else:
            shown[key] = value if key in DATA else binding(value)
    named = shown.get("format")
    if isinstance(named, str) and named in NARROWED:
        parts, more = shown.get("allOf", []), [{"pattern": text} for text in NARROWED[named]]
        shown["allOf"] = [*parts, *more] if isinstance(parts, list) else parts
    return shown


def is_remark(key: str, value: Any) -> bool:
    """Tell whether a keyword asks for nothing.

    So do words for people, often the greater part of a schema, a name of the schema that is no URI,
    which no reference can mean, and a dialect that nobody knows: llguidance would look for it.
    """
    if not isinstance(value, str):
        return key == "uniqueItems" and value is False
    if key in WORDS:
        return True
    if key == "$id":
        return not URI.fullmatch(value)
    return (key == "format" and value not in FORMATS) or (
        key == "$schema" and not DRAFT.fullmatch(value)
    )


def kept_pattern(pattern: str) -> str:
    """Return a pattern whose negated classes leave out the character 0 too.

    Of a class that holds all control characters llguidance allows every escape of JSON, so that
    `[^"]` would let a quote through.
    """
    if "&&" in pattern:  # an intersection of classes, which it would fall into
        return pattern
    return NEGATED.sub(without_zero, pattern)


def without_zero(found: re.Match[str]) -> str:
    escape, literal = found.groups()
    return escape or "[^\\x00" + (f"\\{literal}" if literal else "")


def off_whole(key: str, schema: Mapping[str, Any]) -> Any:
    """Return a bound of `schema`; an excluded whole number a hair inside where the other is near.

    llguidance lets 7 through between an excluded 7 and a bound that is nearer than 1.
    """
    value, others = schema[key], UPPER if key in LOWER else LOWER
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or key in ("minimum", "maximum") or abs(value) > 2**53 or value % 1:
        return value
    bounds = [schema.get(other) for other in others]
    gaps = [bound - value for bound in bounds if isinstance(bound, float)]
    near = [gap for gap in gaps if 0 < abs(gap) < 1]
    if not near:
        return value
    gap = min(near, key=abs)
    step = math.copysign(4 * math.ulp(value), gap)  # one might be lost when the digits are read
    return value + step if value else gap * HAIR


def kept_bound(key: str, value: Any, is_whole: bool) -> Any:
    """Return a bound that lets nothing through which `value` keeps out.

    llguidance reads bounds as float64, which would round that of 64 bits outwards, steps from one
    that is excluded to the next by adding 1, and knows no whole numbers from -2**63 down.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**1000:
        return value
    if is_whole and key in LOWER:
        value = max(value, LEAST)
    if abs(value) < 2**53 or isinstance(value, float):
        return value
    rounded, is_strict = float(value), key not in ("minimum", "maximum")
    inside = math.inf if key in LOWER else -math.inf
    is_outside = rounded < value if key in LOWER else rounded > value
    if is_outside or (is_strict and rounded == value):
        rounded = math.nextafter(rounded, inside)
    return int(rounded)


def closed(schema: Any) -> Any:
    """Return `schema` without properties that it does not name, where it does not speak of them.

    As the strict modes of other engines: what comes out still fits the schema, and a weak model
    comes to an end. An object that is described in parts (under allOf and its like) stays open, for
    each part would shut the others out; so does all, where a part is what a $ref names, for the
    same definition may be a part here and a whole elsewhere.
    """
    return schema if any(map(has_named_part, subschemas(schema))) else shut(schema)


def shut(schema: Any) -> Any:
    """Do what closed() says in a schema of which no part is a $ref."""
    if isinstance(schema, list):
        return [shut(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = VALUES.union(COMBINING) if is_in_parts(schema) else VALUES
    shown = {key: value if key in kept else shut(value) for key, value in schema.items()}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        shown["properties"] = {k: shut(v) for k, v in properties.items()}
        required = schema.get("required")
        names = required if isinstance(required, list) else []  # any JSON: its reader refuses it
        is_whole = all(isinstance(name, str) and name in properties for name in names)
        if is_whole and not OPEN & schema.keys():
            shown["additionalProperties"] = False
    return shown


def is_in_parts(schema: Mapping[str, Any]) -> bool:
    """Whether what fits `schema` must fit several descriptions at once."""
    parts = [key for key in COMBINING if key in schema]
    together = schema.get("allOf")
    num_together = len(together) if isinstance(together, list) else 0
    return len(parts) + bool(OWN & schema.keys()) > 1 or num_together > 1


def has_named_part(schema: Mapping[str, Any]) -> bool:
    """Whether `schema` is in parts and one of them, or something in one, is what a $ref names."""
    if not is_in_parts(schema):
        return False
    parts = {key: schema[key] for key in COMBINING if key in schema}
    return any("$ref" in part for part in subschemas(parts))


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and all schemas in it."""
    below: list[Any] = schema if isinstance(schema, list) else []
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in BY_NAME and isinstance(value, dict):
                below.extend(value.values())
            elif key not in DATA:
                below.append(value)
    for item in below:
        yield from subschemas(item)


def inexact(schema: Any) -> int | None:
    """Return an integer of an enum or const that would come out as another, None without one.

    llguidance writes numbers as the shortest digits of a float64.
    """
    for part in subschemas(schema):
        for value in integers([part.get("enum"), part.get("const")]):
            is_small = abs(value) <= 2**53
            if not is_small and (abs(value) > 2**1000 or Decimal(repr(float(value))) != value):
                return value
    return None


def beyond_64_bits(schema: Any) -> float | None:
    """Return a bound that leaves no integer of 64 bits, which llguidance would not keep to."""
    for part in subschemas(schema):
        for key in LOWER + UPPER if part.get("type") == "integer" else ():
            value = part.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if value >= 2**63 if key in LOWER else value < -(2**63):
                    return value
    return None


def integers(value: Any) -> Iterator[int]:
    """Yield all integers in a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from integers(item)
