"""Shortlists: what a chain may leave, found in the raw float32 logits before it runs.

The chain then gives the same survivors, bit for bit, from some dozens of candidates as from a whole
vocabulary, and copies, divides and partitions nothing of that size. float32 only ever decides what
is beyond its error; only float64 decides the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.kernels.checks import Floats
from worker.noise import Ids
from worker.sampling.candidates import Stage
from worker.sampling.temperature import Temperature
from worker.sampling.truncation import HEAD, MinP, TopK, TopP, low_bound

SLACK = 1e-5
"""Relative error that is granted to float32: of a logit, and of a sum of weights."""
MANY = 4096

Links = tuple[tuple[str, Stage], ...]


class Shortlist(Protocol):
    """Knows the first truncation of one chain."""

    @property
    def links(self) -> Links:
        """What is left of the chain for the tokens of the shortlist."""
        ...

    def places(self, logits: Floats, highest: float) -> Ids | None:
        """Return places, rising, for `links` to work on; None when float32 cannot tell.

        `highest` is the highest of float32 [V] logits.
        """
        ...


def shortlist(links: Links) -> Shortlist | None:
    """Return what finds the survivors of a chain; None when only the chain itself can."""
    scaled = bool(links) and isinstance(links[0][1], Temperature)
    temperature = links[0][1].temperature if scaled else 1.0  # type: ignore[attr-defined]
    first = links[scaled][1] if len(links) > scaled else None
    if isinstance(first, TopP):
        return Nucleus(links[:scaled] + links[scaled + 1 :], temperature, first.p)
    if isinstance(first, MinP | TopK):
        return _extremes(links, links[scaled:], temperature)
    return None


@dataclass(frozen=True, slots=True)
class Extremes:
    """For a chain that begins with min_p or top_k or both, with at most a temperature before."""

    links: Links
    span: float
    """No survivor's logit lies farther below the highest; min_p in raw logits."""
    k: int
    """Survivors are among so many highest and their equals; 0 = no such bound."""

    def places(self, logits: Floats, highest: float) -> Ids:
        if self.span < math.inf:
            near = _reaching(logits, highest - self.span - SLACK * (abs(highest) + self.span + 1))
            if not self.k or len(near) < MANY:
                return near
        return _reaching(logits, low_bound(logits, self.k))


def _extremes(links: Links, truncations: Links, temperature: float) -> Extremes:
    span, k = math.inf, 0
    for _, stage in truncations:
        if isinstance(stage, MinP):
            span = -temperature * min(0.0, math.log(stage.min_p))
        elif isinstance(stage, TopK):
            k = stage.k
        else:
            break
    return Extremes(links, span, k)


def _reaching(logits: Floats, bound: float) -> Ids:
    """Return places of logits that reach `bound`, which is rounded down."""
    return np.flatnonzero(logits >= np.nextafter(np.float32(bound), np.float32(-np.inf)))


@dataclass(frozen=True, slots=True)
class Nucleus:
    """For a chain that begins with top_p, with at most a temperature before.

    The mass of a vocabulary is summed in float32. Where the last token that is needed would be the
    same for any mass within the error, and is among the HEAD likeliest, the survivors are known.
    """

    links: Links
    temperature: float
    p: float

    def places(self, logits: Floats, highest: float) -> Ids | None:
        powers = logits - np.float32(highest)
        powers *= np.float32(1 / self.temperature)
        wanted = self.p * float(np.exp(powers, out=powers).sum())
        head = np.flatnonzero(logits >= low_bound(logits, HEAD))
        exact = logits[head].astype(np.float64) / self.temperature
        weights = np.exp(exact - exact.max())
        order = np.argsort(-weights, kind="stable")
        reached = np.cumsum(weights[order])
        least, most = np.searchsorted(reached, [wanted * (1 - SLACK), wanted * (1 + SLACK)])
        if least != most or most == len(reached):
            return None
        return np.sort(head[order[: int(least) + 1]])
