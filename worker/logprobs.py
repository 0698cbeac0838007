"""Log-probabilities of the raw logits: of a token, and of the likeliest beside it."""

from __future__ import annotations

import math

import numpy as np

from worker.kernels.checks import Floats
from worker.kernels.draw_passes import DrawPasses
from worker.noise import Ids
from worker.sampling.truncation import low_bound


def with_alternatives(
    logits: Floats, token_id: int, count: int, passes: DrawPasses | None = None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return ids and log-probabilities: of the token, then of the `count` likeliest, falling.

    logits: float32 [V]. Ties by lowest id. With `passes` the mass of the vocabulary is right within
    1e-6, so that log-probabilities are; without, within float64.
    """
    count = min(count, len(logits))
    bound = low_bound(logits, count) if count else math.inf
    log_mass, places = _survey(logits, bound, passes)
    falling = places[np.argsort(-logits[places], kind="stable")[:count]]
    ids = [token_id, *falling.tolist()]
    return tuple(ids), tuple((logits[ids].astype(np.float64) - log_mass).tolist())


def _survey(logits: Floats, bound: float, passes: DrawPasses | None) -> tuple[float, Ids]:
    """Return the logarithm of the sum of all powers, and the places that reach `bound`, rising."""
    highest = float(logits.max())
    mass, places = 0.0, None
    if passes is not None and math.isfinite(highest):
        mass, places = passes.nucleus(logits, highest, 1.0, bound)
    else:
        mass = float(np.exp(logits.astype(np.float64) - highest).sum())
    if places is None:
        places = np.flatnonzero(logits >= bound)
    return highest + math.log(mass), places
