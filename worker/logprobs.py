"""Log-probabilities of the raw logits: of a token, and of the likeliest beside it."""

from __future__ import annotations

import numpy as np

from worker.kernels.checks import Floats
from worker.noise import Doubles
from worker.sampling.truncation import low_bound


def log_softmax(logits: Floats) -> Doubles:
    """Return the log-probabilities, float64 [V], of float32 [V] logits."""
    exact = logits.astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    return exact


def with_alternatives(
    logits: Floats, token_id: int, count: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return ids and log-probabilities: of the token, then of the `count` likeliest, falling.

    logits: float32 [V]. Ties by lowest id.
    """
    exact = log_softmax(logits)
    ids = [token_id, *_likeliest(exact, min(count, len(exact)))]
    return tuple(ids), tuple(exact[ids].tolist())


def _likeliest(logprobs: Doubles, count: int) -> list[int]:
    if count == 0:
        return []
    places = np.flatnonzero(logprobs >= low_bound(logprobs, count))
    falling = np.argsort(-logprobs[places], kind="stable")
    ids: list[int] = places[falling[:count]].tolist()
    return ids
