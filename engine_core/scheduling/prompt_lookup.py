"""Guesses from the text itself: what once followed the last tokens may follow them again.

Prompt lookup decoding (A. Saxena, 2023), which vLLM calls `ngram`: answers that quote, edit or sum
up what they are given repeat long runs of it.
"""

from __future__ import annotations

from array import array

from engine_core.scheduling.speculation import Proposer

LONGEST, SHORTEST = 5, 3
"""Tokens that must be the same; fewer are the same by chance too often."""
WINDOW = 8192
"""So many of the last tokens are searched, in about a microsecond for a thousand."""
MOST_GUESSES = 16
_BYTES = array("I").itemsize


def prompt_lookup(num_guesses: int) -> Proposer | None:
    """Return what guesses up to `num_guesses` tokens a row and step; None = no guesses."""

    def propose(tokens: array[int], most: int) -> list[int]:
        seen = tokens[-WINDOW:]
        start = _after_the_same(seen)
        period = len(seen) - start  # what repeats itself goes on doing so
        return [seen[start + i % period] for i in range(min(most, num_guesses) if period else 0)]

    return propose if num_guesses else None


def _after_the_same(seen: array[int]) -> int:
    """Return where the last tokens' nearest earlier likeness ends; the end when there is none."""
    raw = seen.tobytes()
    for length in range(min(LONGEST, len(seen) - 1), SHORTEST - 1, -1):
        tail = raw[-length * _BYTES :]
        place = raw.rfind(tail, 0, -1)
        while place % _BYTES and place > 0:  # across the borders of tokens
            place = raw.rfind(tail, 0, place + len(tail) - 1)
        if place >= 0 and place % _BYTES == 0:
            return place // _BYTES + length
    return len(seen)
