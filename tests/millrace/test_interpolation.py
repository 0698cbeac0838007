"""Compose's interpolation, case by case."""

from __future__ import annotations

import pytest

from millrace.interpolation import InterpolationError, interpolate

VARIABLES = {"A": "a", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$A-$A", "a-a"),
        ("${A}b", "ab"),
        ("${B}", ""),
        ("$$A", "$A"),
        ("${B:-x y}", "x y"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${A:-x}", "a"),
        ("${A:+/run/key}", "/run/key"),
        ("${EMPTY:+/run/key}", ""),
        ("${EMPTY+set}", "set"),
        ("${B:-${C:-${A}}}!", "a!"),
        ("${A:?needed}", "a"),
        ("${A:-}${B:-}", "a"),
    ],
)
def test_forms(text: str, value: str) -> None:
    assert interpolate(text, VARIABLES) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${B:?give a port}", "B is required: give a port"),
        ("${EMPTY:?no}", "EMPTY is required"),
        ("${A", "no closing brace"),
        ("${A/x/y}", "known forms are"),
        ("${1}", "does not begin with a variable's name"),
        ("a $ b", "lone \\$"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InterpolationError, match=message):
        interpolate(text, VARIABLES)
