"""What the stages of the chain work on: the candidates, the history, and what the request says."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from protos import common_pb2
from worker.kernels.checks import Ints
from worker.noise import Doubles, Ids

MANY = 4096
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Candidates(NamedTuple):
    """The tokens still in play, ids rising and distinct, and their logits so far (float64).

    A forbidden token may be gone, or here with a logit of -inf.
    """

    ids: Ids
    logits: Doubles

    def keep(self, mask: Flags) -> Candidates:
        return self.at(np.flatnonzero(mask))

    def at(self, places: Ids) -> Candidates:
        """Return the candidates at these places, which rise."""
        return Candidates(self.ids[places], self.logits[places])

    def possible(self) -> Candidates:
        """Return those that are not forbidden: what statistics are made of."""
        allowed = self.logits > -np.inf
        return self if bool(allowed.all()) else self.keep(allowed)

    def find(self, ids: Ids) -> tuple[Ids, Flags]:
        """Return the places of those `ids` that are candidates, and which these are."""
        if len(ids) == 0 or len(self.ids) == 0:
            return np.zeros(0, np.int64), np.zeros(len(ids), bool)
        if self.ids[-1] == len(self.ids) - 1:  # nobody is missing: an id is its place
            places = ids
            found = ids < len(self.ids)
        else:
            places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            found = self.ids[places] == ids
        return places[found], found


class History(NamedTuple):
    """What the sequence is made of before the token that is to be drawn; int32 views."""

    prompt_ids: Ints
    output_ids: Ints
    key: int = 0
    """Of this token's noise: see `worker.noise.stream`."""


class Recipe(NamedTuple):
    """All that a request says about its tokens; the stages are created from it."""

    params: common_pb2.SamplingParams
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


class Stage(Protocol):
    """Narrows the candidates or bends their logits, which are the chain's own to overwrite.

    At least one candidate is given and one is left, though all may be forbidden.
    """

    @classmethod
    def create(cls, recipe: Recipe) -> Stage | None:
        """Return the stage, or None when the parameters leave it idle."""
        ...

    def __call__(self, candidates: Candidates, history: History) -> Candidates: ...


def column(packed: bytes) -> Ids:
    """Return the ids of a column of little-endian u32."""
    return np.frombuffer(packed, "<u4").astype(np.int64)


def distinct(*parts: Ids | Ints) -> Ids:
    """Return the ids that occur, rising."""
    ids = np.concatenate(parts, dtype=np.int64)
    if len(ids) > MANY:  # then a flag for each id of the vocabulary is cheaper than sorting
        seen = np.zeros(int(ids.max()) + 1, bool)
        seen[ids] = True
        return np.flatnonzero(seen)
    ids.sort()
    return ids[_firsts(ids)]


def counted(ids: Ints) -> tuple[Ids, Ids]:
    """Return the ids that occur, rising, and how often each does."""
    rising = np.sort(ids).astype(np.int64)
    places = np.append(np.flatnonzero(_firsts(rising)), len(rising))
    return rising[places[:-1]], places[1:] - places[:-1]


def _firsts(rising: Ids) -> Flags:
    """Return where a number stands for the first time."""
    flags = np.ones(len(rising), bool)
    np.not_equal(rising[1:], rising[:-1], out=flags[1:])
    return flags
