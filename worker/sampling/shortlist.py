"""Shortlist: all that a chain's first truncation may leave, found in the raw float32 logits.

The chain then gives the same survivors, bit for bit, from some dozens of candidates as from a whole
vocabulary, and copies, divides and partitions nothing of that size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from worker.kernels.checks import Floats
from worker.noise import Ids
from worker.sampling.candidates import Stage
from worker.sampling.temperature import Temperature
from worker.sampling.truncation import MinP, TopK, low_bound

SLACK = 1e-5
"""Relative; the chain computes in float64, and only it decides."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """For a chain that begins with min_p or top_k or both, with at most a temperature before."""

    span: float
    """No survivor's logit lies farther below the highest; min_p in raw logits."""
    k: int
    """Survivors are among so many highest and their equals; 0 = no such bound."""

    @classmethod
    def create(cls, stages: tuple[tuple[str, Stage], ...]) -> Shortlist | None:
        """Return what is known of the survivors of `stages`, or None when it is nothing."""
        order = [stage for _, stage in stages]
        temperature = 1.0
        first = order[0] if order else None
        if isinstance(first, Temperature):
            temperature, order = first.temperature, order[1:]
        span, k = math.inf, 0
        for stage in order:
            if isinstance(stage, MinP):
                span = -temperature * min(0.0, math.log(stage.min_p))
            elif isinstance(stage, TopK):
                k = stage.k
            else:
                break
        return cls(span, k) if k or span < math.inf else None

    def places(self, logits: Floats, highest: float) -> Ids:
        """Return places, rising, that hold every survivor of float32 logits."""
        bound = highest - self.span - SLACK * (abs(highest) + self.span + 1)
        if self.k:
            bound = max(bound, low_bound(logits, self.k))
        return np.flatnonzero(logits >= np.nextafter(np.float32(bound), np.float32(-np.inf)))
