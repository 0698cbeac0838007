"""What a text has said before is what prompt lookup guesses."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from engine_core.scheduling.prompt_lookup import WINDOW, prompt_lookup


def guess(tokens: Sequence[int], num_guesses: int = 4, most: int = 99) -> list[int]:
    propose = prompt_lookup(num_guesses)
    assert propose is not None
    return [*propose(array("I", tokens), most)]


@pytest.mark.parametrize(
    ("tokens", "guesses"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], [4, 5, 6, 7]),
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 8, 1, 2, 3], [5, 9, 8, 1]),  # the nearest
        ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 8, 0, 1, 2, 3], [4, 9, 1, 2]),  # but for a longer one
        ([7, 1, 2, 7, 1, 2, 7, 1], [2, 7, 1, 2]),  # a loop goes on
        ([5, 5, 5, 5], [5, 5, 5, 5]),
        ([2, 3, 4, 9, 2, 3], []),  # two alike are chance
        ([5, 5, 5], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_once_is_guessed(tokens: list[int], guesses: list[int]) -> None:
    assert guess(tokens) == guesses


def test_bounds() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert guess(text, most=2) == [4, 5] and guess(text, most=0) == []
    assert guess(text, num_guesses=1) == [4]
    assert prompt_lookup(0) is None
    far = [1, 2, 3, 4, *range(10, 10 + WINDOW), 1, 2, 3]
    assert guess(far) == []


def test_bytes_that_are_alike_across_tokens_are_no_likeness() -> None:
    tail = [0x01010101] * 3
    assert guess([0x01000000, *[0x01010101] * 2, 0x00000001, 9, *tail]) == []
    assert guess([0x01000000, *tail, 0x00000001, 9, *tail]) == [1, 9, *tail[:2]]
