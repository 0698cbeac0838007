"""Stages against repetition: the three penalties, and DRY."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from common.automaton import Automaton
from worker.noise import Ids
from worker.sampling.candidates import Candidates, History, Recipe, column, counted, distinct

MAX_LOG = 88.7228391
"""DRY's penalties stay under the greatest float32, e to this power, as those of its reference."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition, then presence and frequency.

    `repetition` divides positive and multiplies negative logits of every id in prompt or output,
    once (Keskar et al. 2019). `presence` is subtracted once, `frequency` per occurrence, from ids
    of the output (OpenAI's definition).
    """

    repetition: float
    presence: float
    frequency: float

    @classmethod
    def create(cls, recipe: Recipe) -> Penalties | None:
        params = recipe.params
        repetition = params.repetition_penalty if params.HasField("repetition_penalty") else 1.0
        presence, frequency = params.presence_penalty, params.frequency_penalty
        active = repetition != 1 or presence or frequency
        return cls(repetition, presence, frequency) if active else None

    def touched(self, history: History) -> Ids:
        """Return the ids whose logits may change; all others are left alone, and not looked at."""
        parts = history[:2] if self.repetition != 1 else (history.output_ids,)
        return distinct(*parts)

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        logits = candidates.logits
        if self.repetition != 1:
            places, _ = candidates.find(distinct(history.prompt_ids, history.output_ids))
            seen = logits[places]
            logits[places] = np.where(seen > 0, seen / self.repetition, seen * self.repetition)
        if self.presence or self.frequency:
            ids, counts = counted(history.output_ids)
            places, found = candidates.find(ids)
            logits[places] -= self.presence + self.frequency * counts[found]
        return candidates


class Breakers:
    """Breaker sequences of DRY; the thousands in a vocabulary are nearly all of one token."""

    __slots__ = ("_longer", "single")

    def __init__(self, packed: Iterable[bytes]) -> None:
        """`packed`: each sequence's ids, uint32."""
        columns = [column(one).tolist() for one in packed if one]
        self.single = frozenset(ids[0] for ids in columns if len(ids) == 1)
        self._longer = Automaton(ids[::-1] for ids in columns if len(ids) > 1)

    def tokens_since(self, backwards: list[int]) -> int:
        """Return how many tokens follow the breaker that begins last, the longest of those.

        All of them where there is none. `backwards` has the last token first. Linear in its length,
        whatever the breakers are.
        """
        state = 0
        for place, token_id in enumerate(backwards, 1):
            state = self._longer.next(state, token_id)
            if size := self._longer.found[state] or token_id in self.single:
                return place - size
        return len(backwards)


@lru_cache(maxsize=4)  # the largest that the doors let in takes 20 MB
def breakers_of(packed: tuple[bytes, ...]) -> Breakers:
    """Return the same for all choices of a request, and for requests that name the same.

    Building takes 3 ms for llama.cpp's four in a large vocabulary and 0.3 s for the largest, in
    which no row has a step.
    """
    return Breakers(packed)


@dataclass(frozen=True, slots=True)
class Dry:
    """ "Don't repeat yourself", by p-e-w, with the rules of llama.cpp's implementation.

    A token that would make the end of the text repeat what stands earlier, over n tokens before
    it, loses multiplier · base^(n − allowed_length) where n ≥ allowed_length. The repetition is
    not followed beyond the last breaker sequence, and a breaker of one token is never penalised.
    """

    multiplier: float
    base: float
    allowed_length: int
    last_n: int | None
    breakers: Breakers

    @classmethod
    def create(cls, recipe: Recipe) -> Dry | None:
        dry = recipe.params.dry
        last_n = dry.last_n if dry.HasField("last_n") else None
        if not dry.multiplier or dry.base < 1 or last_n == 0:
            return None
        breakers = breakers_of(tuple(dry.breakers))
        return cls(dry.multiplier, dry.base, dry.allowed_length, last_n, breakers)

    def touched(self, history: History) -> Ids:
        """Return the ids whose logits may change; all others are left alone, and not looked at."""
        return distinct(*history[:2])

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        ids = np.concatenate(history[:2])
        backwards: list[int] = ids[::-1][: self.last_n].tolist()
        reach = self.breakers.tokens_since(backwards)
        if len(backwards) <= self.allowed_length or reach < self.allowed_length:
            return candidates
        longest: dict[int, int] = {}
        for place, length in _repeats(backwards):
            if (repeated := min(length, reach)) >= self.allowed_length:
                token_id = backwards[place - 1]
                longest[token_id] = max(repeated, longest.get(token_id, 0))
        for token_id in longest.keys() - self.breakers.single:
            places, _ = candidates.find(np.array([token_id]))
            candidates.logits[places] -= self._penalty(longest[token_id])
        return candidates

    def _penalty(self, length: int) -> float:
        most = int(MAX_LOG / math.log(self.base)) if self.base > 1.000001 else 0
        exponent = length - self.allowed_length
        penalty: float = self.multiplier * self.base ** (min(exponent, most) if most else exponent)
        return penalty


def _repeats(backwards: list[int]) -> list[tuple[int, int]]:
    """Return (place, length) wherever the text's end occurs again, `length` tokens of it.

    The Z-algorithm (Gusfield 1997) over the reversed text: linear in its length.
    """
    found: dict[int, int] = {}
    left = right = 0
    size = len(backwards)
    last = backwards[0] if backwards else -1
    for place in [i for i in range(1, size) if backwards[i] == last]:
        length = min(found.get(place - left, 0), right - place) if place < right else 0
        while place + length < size and backwards[length] == backwards[place + length]:
            length += 1
        if place + length > right:
            left, right = place, place + length
        found[place] = length
    return list(found.items())
