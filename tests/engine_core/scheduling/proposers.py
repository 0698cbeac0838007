"""Proposers that know how the checking worker draws: right, wrong, or now and then right."""

from __future__ import annotations

from array import array

from tests.engine_core.scheduling.checking_worker import draw

NUM_GUESSES = 3


def right(tokens: array[int], most: int) -> list[int]:
    """Guess what the first choice will say."""
    known = [*tokens]
    for _ in range(min(most, NUM_GUESSES)):
        known.append(draw(known, 0))
    return known[len(tokens) :]


def wrong(tokens: array[int], most: int) -> list[int]:
    """Guess what nobody says: tokens are below 16."""
    return [16] * NUM_GUESSES


def some_right(tokens: array[int], most: int) -> list[int]:
    """Guess right, then wrong, or not at all, as the tokens have it; more than is asked for."""
    guesses = right(tokens, NUM_GUESSES)
    num_right = sum(tokens) % (NUM_GUESSES + 2)
    return guesses[:num_right] + [16] * (len(tokens) % 2)
