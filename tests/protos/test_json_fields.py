"""JSON as clients write it: numbers that are kept, nesting that ends."""

from __future__ import annotations

import pytest

from protos.json_fields import MAX_DEPTH, dumps, loads


@pytest.mark.parametrize("value", [10**30, -(10**19), 1.5, "é", None, {"a": [1, {"b": 10**25}]}])
def test_values_come_back_as_they_were(value: object) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"1e400", b"1 2", b'"\\ud800"', b"[" * 100_000 + b"]" * 100_000]
)
def test_what_is_no_value_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        loads(text)


def test_nesting_has_an_end() -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    loads(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}"):
        loads(nested(MAX_DEPTH + 1))
