"""Stages that flatten or sharpen the distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from worker.sampling.candidates import Candidates, History, Recipe

COLDEST = 1e-6
"""Colder than this is as good as greedy; quotients stay far from overflow."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides the logits; 0 never gets here (greedy), nor a temperature that is dynamic."""

    temperature: float

    @classmethod
    def create(cls, recipe: Recipe) -> Temperature | None:
        params = recipe.params
        fixed = params.HasField("temperature") and not params.dynamic_temperature.range
        active = fixed and params.temperature not in (0, 1)
        return cls(max(COLDEST, params.temperature)) if active else None

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        return Candidates(candidates.ids, candidates.logits / self.temperature)


@dataclass(frozen=True, slots=True)
class DynamicTemperature:
    """Divides by a temperature that grows with the entropy, from `coldest` to `hottest`.

    coldest + (hottest − coldest) · (entropy / ln(number of candidates))^exponent, as llama.cpp's
    dynatemp: these are temperature ± range, not below 0.
    """

    coldest: float
    hottest: float
    exponent: float

    @classmethod
    def create(cls, recipe: Recipe) -> DynamicTemperature | None:
        params, dynamic = recipe.params, recipe.params.dynamic_temperature
        base = params.temperature if params.HasField("temperature") else 1.0
        if not dynamic.range or not base:
            return None
        return cls(max(0.0, base - dynamic.range), base + dynamic.range, dynamic.exponent)

    def __call__(self, candidates: Candidates, history: History) -> Candidates:
        left = candidates.possible()
        if len(left.ids) < 2:
            return candidates
        exact = left.logits - left.logits.max()
        weights = np.exp(exact)
        total = weights.sum()
        entropy = float(np.log(total) - (weights * exact).sum() / total)
        share = min(1.0, max(0.0, entropy / math.log(len(left.ids))))
        temperature = self.coldest + (self.hottest - self.coldest) * share**self.exponent
        return Candidates(left.ids, left.logits / max(COLDEST, temperature))
