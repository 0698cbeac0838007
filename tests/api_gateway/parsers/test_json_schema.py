"""What of a schema binds."""

from __future__ import annotations

import json
from datetime import date
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from api_gateway.parsers.json_schema import FORMATS, beyond_64_bits, binding, closed
from api_gateway.schema import JsonSchema, ResponseFormat
from api_gateway.structure import wanted_schema


def test_objects_are_closed_where_the_schema_does_not_speak_of_it() -> None:
    point = {"properties": {"x": {"type": "integer"}}}
    shut = {**point, "additionalProperties": False}
    assert closed({"items": point, "enum": [point]}) == {"items": shut, "enum": [point]}
    assert closed({"properties": {"properties": point}})["properties"] == {"properties": shut}
    for left in (
        {**point, "additionalProperties": True},
        {"allOf": [point, point]},
        {**point, "if": point},
        {"type": "object"},
    ):
        assert closed(left) == left


@pytest.mark.parametrize("name", [[], {}, ["x"], {"type": "string"}, 1, None])
def test_a_required_name_that_is_none_is_left_to_the_reader(name: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x", name]}
    assert binding(closed(schema)) == schema
    compiled = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    assert LLMatcher.validate_grammar(compiled)


def test_objects_that_are_described_in_parts_stay_open() -> None:
    """A part that is shut would shut the others out: nothing would fit the schema any more."""
    x, y = ({"properties": {name: True}, "required": [name]} for name in "xy")
    named = {"$defs": {"X": x}, "$ref": "#/$defs/X"}
    for left in (
        {**x, "anyOf": [y]},
        {"anyOf": [x], "oneOf": [y]},
        {**named, **y},
        {"$defs": {"X": x}, "properties": {"a": {"allOf": [{"$ref": "#/$defs/X"}, y]}}},
        {"$defs": {"X": x}, **y, "anyOf": [{"anyOf": [{"$ref": "#/$defs/X"}]}]},
        {"properties": {"x": True}, "required": ["x", "y"]},
    ):
        assert closed(left) == left
    shut = {**x, "additionalProperties": False}
    assert closed({**named, "title": "one"}) == {**named, "title": "one", "$defs": {"X": shut}}
    assert closed({"type": "object", "anyOf": [x]})["anyOf"] == [shut]
    assert closed({**x, "enum": [{**named, **y}]}) == {**shut, "enum": [{**named, **y}]}


def test_what_asks_for_nothing_is_left_out() -> None:
    secret = {"type": "string", "format": "password"}
    mail = {"type": "string", "format": "email"}
    unbound = {"type": "string"}
    items = {"type": "array", "items": secret, "uniqueItems": False}
    assert binding({"properties": {"format": secret, "uniqueItems": mail}}) == {
        "properties": {"format": unbound, "uniqueItems": mail}
    }
    assert binding({"anyOf": [items, {"uniqueItems": True}]}) == {
        "anyOf": [{"type": "array", "items": unbound}, {"uniqueItems": True}]
    }
    data = {"enum": [secret], "const": secret, "default": secret}
    assert binding(data) == data


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"$id": "Output Format"}, False),
        ({"$id": "Box<string>"}, False),
        ({"$id": "form:v1"}, True),
        ({"$id": "my_form:v1"}, False),
        ({"$id": "100%"}, False),
        ({"$id": "https://example.com/form%20one.json"}, True),
        ({"$schema": "https://json-schema.org/draft-07/schema#"}, False),
        ({"$schema": "http://json-schema.org/schema#"}, False),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, True),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, True),
    ],
)
def test_a_name_or_dialect_that_cannot_be_looked_up_is_a_remark(
    given: dict[str, Any], kept: bool
) -> None:
    """griptape names every schema "Output Format", and people write dialects from memory."""
    asked = {"type": "integer"} | given
    assert binding(asked) == (asked if kept else {"type": "integer"})
    assert accepts(json.dumps(binding(asked)), "7")


def test_a_reference_may_be_written_as_the_definition_is_named() -> None:
    """Generators of schemas from types write `#/definitions/Box<string>` as it is."""
    for name in ("Box<string>", "Box[str]", "a box", "Bücher", "100%25", "a/b"):
        pointer = name.replace("%", "%25").replace("/", "~1")
        asked = {"$ref": f"#/definitions/{pointer}", "definitions": {name: {"type": "integer"}}}
        schema = json.dumps(binding(asked))
        assert accepts(schema, "7") and not accepts(schema, '"7"')
    assert binding({"properties": {"$ref": {"$ref": "#"}}}) == {
        "properties": {"$ref": {"$ref": "#"}}
    }


def test_the_formats_are_those_that_the_engine_of_grammars_keeps_to() -> None:
    for name in FORMATS:
        schema = json.dumps({"type": "string", "format": name})
        assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema)), name


INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}


def test_bounds_of_64_bits_let_nothing_through_that_they_keep_out() -> None:
    """Read as float64 they would be rounded outwards; the whole range of int64 is often asked."""
    low, high = 2**53 + 1, 2**53 + 7
    inside = {"minimum": low + 1, "maximum": high - 1}
    for kind in ("integer", "number"):
        asked = {"type": kind, "minimum": low, "maximum": high}
        assert binding(asked) == {"type": kind, **inside}
        asked = {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}
        told = {"exclusiveMinimum": low + 1, "exclusiveMaximum": high - 1}
        assert binding(asked) == {"type": kind, **told}
        asked = {"type": kind, "exclusiveMinimum": low + 1, "exclusiveMaximum": high + 1}
        told = {"exclusiveMinimum": low + 3, "exclusiveMaximum": high - 1}
        assert binding(asked) == {"type": kind, **told}
    assert binding({"exclusiveMinimum": 2**53}) == {"exclusiveMinimum": 2**53 + 2}
    for left in (
        {"minimum": -(2**53)},
        {"minimum": 0.1},
        {"exclusiveMinimum": True},
        {"const": low},
        {"maximum": 10**400},
        {"minimum": -1e30},
        {"properties": {"minimum": {}}},
    ):
        assert binding(left) == left
    for shown in ({"type": "integer", **INT64}, {"type": "integer", "minimum": -1e30}):
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(binding(shown)))
        assert not LLMatcher.validate_grammar(grammar)


def test_an_excluded_zero_beside_a_near_bound_is_kept_out() -> None:
    """llguidance would let 0 through there; -0 on the other side."""
    asked: dict[str, object] = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    assert binding(asked) == asked | {"exclusiveMinimum": 0.5 * 1e-20}
    asked = {"minimum": -0.25, "exclusiveMaximum": 0.0}
    assert binding(asked) == asked | {"exclusiveMaximum": -0.25 * 1e-20}
    for left in (
        {"exclusiveMinimum": 0, "maximum": 1},
        {"exclusiveMinimum": False, "maximum": 0.5},
        {"minimum": 0, "maximum": 0.5},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "integer", "exclusiveMinimum": 7, "maximum": 7.5},
        {"exclusiveMinimum": 7.25, "maximum": 7.5},
        {"exclusiveMinimum": 7, "maximum": 8.5},
        {"exclusiveMinimum": 10**400, "maximum": 0.5},
    ):
        assert binding(left) == left


@cache
def matching(schema: str) -> LLMatcher:
    return LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(schema))


def accepts(schema: str, text: str) -> bool:
    matcher, ids = matching(schema).deep_copy(), list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("whole", "near"),
    [(7, 7.5), (100, 100.75), (1000.0, 1000.001), (-7, -7.5), (10**6, 10**6 + 0.5)],
)
def test_an_excluded_whole_number_beside_a_near_bound_is_kept_out(
    whole: float, near: float
) -> None:
    """llguidance would let it through there, as it does with 0."""
    words = ("exclusiveMinimum", "maximum") if near > whole else ("exclusiveMaximum", "minimum")
    schema = json.dumps(binding({"type": "number", words[0]: whole, words[1]: near}))
    assert not accepts(schema, str(int(whole)))
    assert not accepts(schema, f"{whole:.1f}")
    assert accepts(schema, str((whole + near) / 2))
    assert accepts(schema, str(near))


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        (r'^[^"\\]{1}$', "aé \n", '"\\'),
        (r"^[^\\/]$", 'a"\t', "\\/"),
        (r"^[^ -~]$", "é\n", 'a"\\'),
        (r'^[^\n"]$', "a\\\t", '"\n'),
        (r'^[^-"]$', "a\\", '-"'),
        (r'^[^]"]$', "a\\", ']"'),
        (r'^\\?[^"]$', "a\\", '"'),
        (r"^\[?[^\]a\"]$", "c\\", '"a'),
    ],
)
def test_what_a_class_leaves_out_stays_out(pattern: str, fits: str, others: str) -> None:
    """llguidance would let quotes and backslashes through."""
    schema = json.dumps(binding({"type": "string", "pattern": pattern}))
    for character in fits:
        assert accepts(schema, json.dumps(character, ensure_ascii=False))
    for character in others:
        assert not accepts(schema, json.dumps(character))


def test_a_time_beside_a_reference_opens_no_object() -> None:
    """What keeps its seconds is a part of ours, and none of the client's."""
    at = {"format": "time", "anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}]}
    asked = {"type": "object", "properties": {"at": at}, "$defs": {"S": {"type": "string"}}}
    form = ResponseFormat("json_schema", JsonSchema("a", asked))
    wanted = wanted_schema(form)
    assert wanted is not None and wanted["additionalProperties"] is False


def test_an_intersection_of_classes_stays_as_it_is() -> None:
    assert binding({"pattern": "[^a&&b]"}) == {"pattern": "[^a&&b]"}


@pytest.mark.parametrize("also", [{}, {"pattern": "Z$"}, {"allOf": [{"maxLength": 30}]}])
@pytest.mark.parametrize(("form", "day"), [("time", ""), ("date-time", "2026-02-28T")])
def test_no_minute_has_a_second_60(also: dict[str, Any], form: str, day: str) -> None:
    schema = json.dumps(binding({"type": "string", "format": form} | also))
    assert accepts(schema, f'"{day}23:59:59Z"')
    assert accepts(schema, f'"{day}23:59:59.60Z"') and accepts(schema, f'"{day.lower()}23:59:59Z"')
    assert not accepts(schema, f'"{day}23:59:60Z"')


@pytest.mark.parametrize("also", [{}, {"pattern": "[0-9]"}, {"allOf": [{"maxLength": 30}]}])
@pytest.mark.parametrize(("form", "time"), [("date", ""), ("date-time", "T23:59:59Z")])
def test_a_date_is_one_of_the_calendar(also: dict[str, Any], form: str, time: str) -> None:
    schema = json.dumps(binding({"type": "string", "format": form} | also))
    for year in (0, 1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9996, 9999):
        for month in (1, 2, 3, 4, 12):
            for number in (1, 10, 20, 28, 29, 30, 31):
                day = f"{year:04}-{month:02}-{number:02}"
                assert accepts(schema, f'"{day}{time}"') is is_day(day), day


def is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("schema", "bound"),
    [
        ({"type": "integer", "minimum": 1e29, "maximum": 1e30}, 1e29),
        ({"type": "integer", "exclusiveMaximum": -1e20}, -1e20),
        ({"properties": {"a": {"type": "integer", "minimum": 2**63}}}, 2**63),
        ({"type": "integer", "minimum": -1e30, "maximum": 1e30}, None),
        ({"type": "number", "minimum": 1e29}, None),
    ],
)
def test_a_range_beyond_64_bits_is_found(schema: dict[str, Any], bound: float | None) -> None:
    assert beyond_64_bits(schema) == bound
