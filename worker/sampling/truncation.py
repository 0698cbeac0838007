"""Stages that drop tokens by their probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.noise import Doubles, Ids, coin
from worker.sampling.candidates import Candidates, History, Recipe

HEAD = 512
"""Sorting a whole vocabulary takes 10 ms: a set is first looked for among this many tokens."""
GROUP = 128
"""top_k finds its first bound among the maxima of groups of this many tokens."""


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
        if self.k >= len(candidates.ids):
            return candidates
        left = candidates.keep(candidates.logits >= low_bound(candidates.logits, self.k))
        lowest = np.partition(left.logits, len(left.ids) - self.k)[len(left.ids) - self.k]
        return left.keep(left.logits >= lowest)


def low_bound(logits: np.ndarray[Any, np.dtype[np.floating[Any]]], k: int) -> float:
    """Return a number that at least k of the logits reach: the k-th highest of group maxima."""
    num_groups = len(logits) // GROUP
    if num_groups < k:
        return -math.inf
    highest = logits[: num_groups * GROUP].reshape(GROUP, num_groups).max(axis=0)
    return float(np.partition(highest, num_groups - k)[num_groups - k])


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
        places = _until(-weights, weights, self.p * weights.sum())
        return candidates.at(np.sort(places))


@dataclass(frozen=True, slots=True)
class TypicalP:
    """Keeps the most typical tokens until their mass reaches `p` (Meister et al. 2022).

    Typical is a surprise near the expected one: |−ln(probability) − entropy|. Those as typical as
    the last one stay too.
    """

    p: float

    @classmethod
    def create(cls, recipe: Recipe) -> TypicalP | None:
        active = recipe.params.HasField("typical_p") and recipe.params.typical_p < 1
        return cls(recipe.params.typical_p) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        left = candidates.possible()
        if len(left.ids) == 0:
            return candidates
        logprobs = left.logits - left.logits.max()
        masses = np.exp(logprobs)
        total = masses.sum()
        logprobs -= np.log(total)
        masses /= total
        strangeness = np.abs(logprobs - (masses * logprobs).sum())
        last = strangeness[_until(strangeness, masses, self.p)[-1]]
        return left.keep(strangeness <= last)


def _until(keys: Doubles, masses: Doubles, wanted: float) -> Ids:
    """Return places by rising key (ties: lowest place first) until their masses reach `wanted`."""
    head = HEAD
    places, reached = _lowest(keys, masses, head)
    while reached[-1] < wanted and head < len(keys):
        head *= 8
        places, reached = _lowest(keys, masses, head)
    return places[: int(np.searchsorted(reached, wanted)) + 1]


def _lowest(keys: Doubles, masses: Doubles, count: int) -> tuple[Ids, Doubles]:
    """Return at least `count` places by rising key, and the sums of their masses."""
    places: Ids = np.arange(len(keys))
    if count < len(keys):
        few = count <= len(keys) // GROUP
        bound = -low_bound(-keys, count) if few else np.partition(keys, count - 1)[count - 1]
        places = np.flatnonzero(keys <= bound)
    places = places[np.argsort(keys[places], kind="stable")]
    return places, np.cumsum(masses[places])


@dataclass(frozen=True, slots=True)
class TopNSigma:
    """Keeps logits within `n` standard deviations of the highest (Tang et al. 2024)."""

    n: float

    @classmethod
    def create(cls, recipe: Recipe) -> TopNSigma | None:
        return cls(recipe.params.top_n_sigma) if recipe.params.top_n_sigma > 0 else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        left = candidates.possible()
        if len(left.ids) == 0:
            return candidates
        return left.keep(left.logits >= left.logits.max() - self.n * left.logits.std())


@dataclass(frozen=True, slots=True)
class Xtc:
    """ "Exclude top choices", by p-e-w, with the rules of llama.cpp's implementation.

    With `probability`, of all tokens at least as likely as `threshold` only the least likely stays.
    The coin is a function of the token's place, like all noise.
    """

    probability: float
    threshold: float

    @classmethod
    def create(cls, recipe: Recipe) -> Xtc | None:
        xtc = recipe.params.xtc
        return cls(xtc.probability, xtc.threshold) if xtc.probability > 0 else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        if coin(history.key) > self.probability:
            return candidates
        left = candidates.possible()  # a threshold of 0 would count forbidden ones as likely
        weights = np.exp(left.logits - left.logits.max())
        likely = np.flatnonzero(weights >= self.threshold * weights.sum())
        if len(likely) < 2:
            return candidates
        falling = likely[np.argsort(-weights[likely], kind="stable")]
        stays = np.ones(len(weights), bool)
        stays[falling[:-1]] = False
        return left.keep(stays)
