"""The stages between logits and the draw, each a small class, in the one order of STAGES.

The order is vLLM's: min_tokens, logit_bias, penalties, temperature, min_p, top_k, top_p. A new
stage is a class with `create` (None when the parameters leave it idle) and `__call__`, and a line
in STAGES.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from protos import common_pb2
from worker.noise import Doubles, Ids

HEAD = 512
"""top_p first looks among this many likeliest tokens; sorting a whole vocabulary takes 10 ms."""


class Candidates(NamedTuple):
    """The tokens still in play, ids rising, and their logits so far (float64)."""

    ids: Ids
    logits: Doubles

    def keep(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Candidates:
        return Candidates(self.ids[mask], self.logits[mask])


class History(NamedTuple):
    """What the sequence is made of so far; int32 views."""

    prompt_ids: np.ndarray[Any, np.dtype[np.int32]]
    output_ids: np.ndarray[Any, np.dtype[np.int32]]


class Recipe(NamedTuple):
    """All that a request says about its tokens; the stages are created from it."""

    params: common_pb2.SamplingParams
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


class Stage(Protocol):
    """Narrows the candidates or bends their logits, which are the chain's own to overwrite.

    The stages before temperature see the whole vocabulary: an id is a place.
    """

    @classmethod
    def create(cls, recipe: Recipe) -> Stage | None: ...

    def __call__(self, candidates: Candidates, history: History) -> Candidates: ...


@dataclass(frozen=True, slots=True)
class MinTokens:
    """Forbids the stop ids before `min_tokens` output tokens."""

    min_tokens: int
    stop_token_ids: list[int]

    @classmethod
    def create(cls, recipe: Recipe) -> MinTokens | None:
        active = recipe.min_tokens and recipe.stop_token_ids
        return cls(recipe.min_tokens, list(recipe.stop_token_ids)) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        if len(history.output_ids) < self.min_tokens:
            candidates.logits[self.stop_token_ids] = -np.inf
        return candidates


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds a number to the logits of some ids."""

    ids: list[int]
    biases: list[float]

    @classmethod
    def create(cls, recipe: Recipe) -> LogitBias | None:
        biases = recipe.params.logit_bias
        return cls([b.token_id for b in biases], [b.bias for b in biases]) if biases else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        np.add.at(candidates.logits, self.ids, self.biases)
        return candidates


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Divides positive and multiplies negative logits of every id in prompt or output, once."""

    penalty: float

    @classmethod
    def create(cls, recipe: Recipe) -> RepetitionPenalty | None:
        penalty = recipe.params.repetition_penalty
        active = recipe.params.HasField("repetition_penalty") and penalty != 1
        return cls(penalty) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        seen = np.zeros(len(candidates.ids), bool)
        seen[history.prompt_ids] = True
        seen[history.output_ids] = True
        ids = np.flatnonzero(seen)
        logits = candidates.logits[ids]
        candidates.logits[ids] = np.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return candidates


@dataclass(frozen=True, slots=True)
class CountPenalties:
    """Subtracts `presence` once and `frequency` per occurrence from ids already generated."""

    presence: float
    frequency: float

    @classmethod
    def create(cls, recipe: Recipe) -> CountPenalties | None:
        presence, frequency = recipe.params.presence_penalty, recipe.params.frequency_penalty
        return cls(presence, frequency) if presence or frequency else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        ids, counts = np.unique(history.output_ids, return_counts=True)
        candidates.logits[ids] -= self.presence + self.frequency * counts
        return candidates


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides the logits; 0 never gets here (greedy)."""

    temperature: float

    @classmethod
    def create(cls, recipe: Recipe) -> Temperature | None:
        temperature = recipe.params.temperature
        active = recipe.params.HasField("temperature") and temperature not in (0, 1)
        return cls(temperature) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        return Candidates(candidates.ids, candidates.logits / self.temperature)


@dataclass(frozen=True, slots=True)
class MinP:
    """Keeps tokens at least `min_p` times as likely as the likeliest."""

    min_p: float

    @classmethod
    def create(cls, recipe: Recipe) -> MinP | None:
        return cls(recipe.params.min_p) if recipe.params.min_p > 0 else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        highest = candidates.logits.max()
        return candidates.keep(candidates.logits >= highest + min(0.0, math.log(self.min_p)))


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the k likeliest tokens, and those as likely as the k-th."""

    k: int

    @classmethod
    def create(cls, recipe: Recipe) -> TopK | None:
        return cls(recipe.params.top_k) if recipe.params.top_k else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        size = len(candidates.ids)
        if self.k >= size:
            return candidates
        lowest = np.partition(candidates.logits, size - self.k)[size - self.k]
        return candidates.keep(candidates.logits >= lowest)


@dataclass(frozen=True, slots=True)
class TopP:
    """Keeps the smallest set of likeliest tokens whose mass reaches `p`; at least one."""

    p: float

    @classmethod
    def create(cls, recipe: Recipe) -> TopP | None:
        active = recipe.params.HasField("top_p") and recipe.params.top_p < 1
        return cls(recipe.params.top_p) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        weights = np.exp(candidates.logits - candidates.logits.max())
        wanted = self.p * weights.sum()
        head = HEAD
        places, reached = _heaviest(weights, head)
        while reached[-1] < wanted and head < len(weights):
            head *= 8
            places, reached = _heaviest(weights, head)
        kept = np.sort(places[: int(np.searchsorted(reached, wanted)) + 1])
        return Candidates(candidates.ids[kept], candidates.logits[kept])


def _heaviest(weights: Doubles, count: int) -> tuple[Ids, Doubles]:
    """Return places of at least the `count` heaviest, falling (ties: lowest first), and sums."""
    places: Ids = np.arange(len(weights))
    if count < len(weights):
        lowest = np.partition(weights, len(weights) - count)[len(weights) - count]
        places = np.flatnonzero(weights >= lowest)
    places = places[np.argsort(-weights[places], kind="stable")]
    return places, np.cumsum(weights[places])


STAGES: tuple[type[Stage], ...] = (
    MinTokens,
    LogitBias,
    RepetitionPenalty,
    CountPenalties,
    Temperature,
    MinP,
    TopK,
    TopP,
)


def chain(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages that `recipe` needs, in order."""
    return tuple(stage for cls in STAGES if (stage := cls.create(recipe)) is not None)
