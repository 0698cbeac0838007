"""Shortlists: what a chain may leave, found in the raw float32 logits before it runs.

The chain then gives the same survivors, bit for bit, from some dozens of candidates as from a whole
vocabulary, and copies, divides and partitions nothing of that size. float32 only ever decides what
is beyond its error; only float64 decides the rest.

A chain has three parts here: stages that touch single ids (masks, penalties), at most one
temperature, and what begins with a truncation. The touched tokens, some hundreds, are computed
first and stand apart; all others still have their raw logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from worker.kernels.checks import Floats
from worker.kernels.draw_passes import DrawPasses
from worker.noise import Ids
from worker.sampling.candidates import Candidates, History, Stage, distinct
from worker.sampling.constraints import BadWords, LogitBias
from worker.sampling.repetition import Dry, Penalties
from worker.sampling.temperature import Temperature
from worker.sampling.truncation import HEAD, MinP, TopK, TopP, low_bound

SLACK = 1e-5
"""Relative error that is granted to float32: of a logit, and of a sum of weights."""
MANY = 4096
REACH = 9.0
"""Powers of e below the likeliest token, within which top_p is looked for first."""

Links = tuple[tuple[str, Stage], ...]
Touching = LogitBias | BadWords | Penalties | Dry
NOTHING = Candidates(np.zeros(0, np.int64), np.zeros(0))


class Truncation(Protocol):
    """The first truncation of a chain."""

    def places(
        self, logits: Floats, highest: float, touched: Candidates, passes: DrawPasses | None
    ) -> Ids | None:
        """Return places, rising, of all that may survive; None when float32 cannot tell.

        logits: float32 [N], -inf where a token is touched. `touched` has places for ids, and the
        logits that the stages before have made. `highest` is the highest of all these.
        """
        ...


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Of one chain."""

    touching: tuple[Touching, ...]
    truncation: Truncation
    links: Links
    """What is left of the chain for the tokens that are listed."""

    def candidates(
        self,
        ids: Ids,
        logits: Floats,
        highest: float,
        history: History,
        passes: DrawPasses | None = None,
    ) -> Candidates | None:
        """Return the tokens to list, touched; None when the whole chain must see them all.

        `ids` rise, logits are float32 of the same length, and `highest` is the highest of them.
        """
        touched = self._touch(ids, logits, history)
        if len(touched.ids):
            logits = logits.copy()
            logits[touched.ids] = -np.inf
            highest = max(float(logits.max()), float(touched.logits.max()))
        if highest == -np.inf:
            return None
        places = self.truncation.places(logits, highest, touched, passes)
        if places is None:
            return None
        listed = Candidates(places, logits[places].astype(np.float64))
        at, found = listed.find(touched.ids)
        listed.logits[at] = touched.logits[found]
        return Candidates(ids[places], listed.logits)

    def _touch(self, ids: Ids, logits: Floats, history: History) -> Candidates:
        """Return places and new logits of what the first stages change."""
        if not self.touching:
            return NOTHING
        marked = distinct(*[stage.touched(history) for stage in self.touching])
        places, _ = Candidates(ids, NOTHING.logits).find(marked)
        touched = Candidates(ids[places], logits[places].astype(np.float64))
        for stage in self.touching:
            touched = stage(touched, history)
        return Candidates(places, touched.logits)


def shortlist(links: Links) -> Shortlist | None:
    """Return what finds the survivors of a chain; None when only the chain itself can."""
    touching: list[Touching] = []
    for _, stage in links:
        if not isinstance(stage, Touching):
            break
        touching.append(stage)
    links = links[len(touching) :]
    scale = links[0][1] if links else None
    temperature = scale.temperature if isinstance(scale, Temperature) else 1.0
    rest = [stage for _, stage in links[isinstance(scale, Temperature) :]]
    first = rest[0] if rest else None
    if isinstance(first, TopP):
        others = tuple(link for link in links if link[1] is not first)
        return Shortlist(tuple(touching), Nucleus(temperature, first.p), others)
    if isinstance(first, MinP | TopK):
        return Shortlist(tuple(touching), _extremes(rest, temperature), links)
    return None


@dataclass(frozen=True, slots=True)
class Extremes:
    """min_p or top_k or both."""

    span: float
    """No survivor's logit lies farther below the highest; min_p in raw logits."""
    k: int
    """Survivors are among so many highest and their equals; 0 = no such bound."""

    def places(
        self, logits: Floats, highest: float, touched: Candidates, passes: DrawPasses | None
    ) -> Ids:
        bound = highest - self.span
        bound -= SLACK * (abs(highest) + self.span + 1) if self.span < math.inf else 0
        near = _reaching(logits, bound) if self.span < math.inf else None
        if near is None or (self.k and len(near) >= MANY):
            bound = low_bound(logits, self.k)
            near = _reaching(logits, bound)
        bent = touched.ids[touched.logits >= bound]
        return np.union1d(near, bent) if len(bent) else near


def _extremes(stages: list[Stage], temperature: float) -> Extremes:
    span, k = math.inf, 0
    for stage in stages:
        if isinstance(stage, MinP):
            span = -temperature * min(0.0, math.log(stage.min_p))
        elif isinstance(stage, TopK):
            k = stage.k
        else:
            break
    return Extremes(span, k)


def _reaching(logits: Floats, bound: float) -> Ids:
    """Return places of logits that reach `bound`, which is rounded down."""
    return np.flatnonzero(logits >= np.nextafter(np.float32(bound), np.float32(-np.inf)))


def _float32_below(value: float) -> np.float32:
    """Return the highest float32 that is not above `value`, which a touched logit may have raised.

    Above it, the difference of the two over a low temperature would be a power beyond all floats.
    """
    near = np.float32(value)
    return np.nextafter(near, np.float32(-np.inf)) if float(near) > value else near


@dataclass(frozen=True, slots=True)
class Nucleus:
    """top_p.

    The mass of a vocabulary is summed in float32. Where the last token that is needed would be the
    same for any mass within the error, and is among the HEAD likeliest, the survivors are known.
    """

    temperature: float
    p: float

    def places(
        self, logits: Floats, highest: float, touched: Candidates, passes: DrawPasses | None
    ) -> Ids | None:
        mass, head, bound = self._survey(logits, highest, passes)
        places = np.concatenate([head, touched.ids])
        raw = np.concatenate([logits[head].astype(np.float64), touched.logits])
        if len(touched.ids):  # ties go to the lowest place
            rising = places.argsort()
            places, raw = places[rising], raw[rising]
        exact = raw / self.temperature
        weights = np.exp(exact - exact.max())
        apart = np.exp((touched.logits - highest) / self.temperature)
        wanted = self.p * (mass + float(apart.sum()))
        order = np.argsort(-weights, kind="stable")
        reached = np.cumsum(weights[order])
        least, most = np.searchsorted(reached, [wanted * (1 - SLACK), wanted * (1 + SLACK)])
        if least != most or most == len(reached) or raw[order[least]] < bound:
            return None
        return np.sort(places[order[: int(least) + 1]])

    def _survey(
        self, logits: Floats, highest: float, passes: DrawPasses | None
    ) -> tuple[float, Ids, float]:
        """Return nearly the sum of exp((logit − highest) / temperature), the places of the
        likeliest, rising, and a bound that all of these, and no others, reach."""
        near = _float32_below(highest)
        rounding = math.exp((float(near) - highest) / self.temperature)
        if passes is not None:
            bound = float(near - np.float32(REACH * self.temperature))
            mass, head = passes.nucleus(logits, float(near), self.temperature, bound)
            if head is not None:
                return mass * rounding, head, bound
        else:
            powers = logits - near
            powers *= np.float32(1 / self.temperature)
            mass = float(np.exp(powers, out=powers).sum())
        bound = low_bound(logits, HEAD)
        head = _reaching(logits, bound)
        return mass * rounding, head[logits[head] > -np.inf], bound
