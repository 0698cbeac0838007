"""Sampler: raw logits and rows → the next token of each row, and its logprobs.

A row's draw depends on its own logits, history, seed and output index alone. Greedy rows without a
chain share one argmax; all others are drawn one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protos import worker as wire
from worker.errors import RowError
from worker.kernels.checks import Floats
from worker.noise import Doubles, gumbel, stream
from worker.rows import Row
from worker.sampling_stages import Candidates


class Drawn(NamedTuple):
    """Outcome of one row: a token, or why there is none."""

    row: Row
    token_id: int = -1
    logprobs: wire.Logprobs | None = None
    fault: str = ""


class Sampler:
    """Draws tokens; keeps only the ids of the vocabulary between calls."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size)

    def sample(self, logits: Floats, rows: Sequence[Row]) -> list[Drawn]:
        """Draw one token per row; logits: float32 [len(rows), V], not changed."""
        likeliest = logits.argmax(axis=1)
        finite = np.all(np.isfinite(logits), axis=1).tolist()
        return [
            self._guarded(logits[i], rows[i], int(likeliest[i]), finite[i])
            for i in range(len(rows))
        ]

    def _guarded(self, logits: Floats, row: Row, likeliest: int, finite: bool) -> Drawn:
        """Draw for one row; whatever goes wrong stays with it."""
        if not finite:
            return Drawn(row, fault="the model's logits are not finite")
        try:
            plain = row.draw.is_greedy and not row.draw.stages
            token_id = likeliest if plain else self._draw(logits, row)
            return Drawn(row, token_id, _logprobs(logits, row, token_id))
        except Exception as error:
            return Drawn(row, fault=f"sampling failed: {error!r}")

    def _draw(self, logits: Floats, row: Row) -> int:
        left = self.survivors(logits, row)
        keys = left.logits
        if not row.draw.is_greedy:
            key = stream(row.draw.seed, row.draw.choice, row.num_output_tokens)
            keys = np.add(keys, gumbel(key, left.ids))
        best = int(keys.argmax())
        if left.logits[best] == -np.inf:
            raise RowError("every token is forbidden")
        return int(left.ids[best])

    def survivors(self, logits: Floats, row: Row) -> Candidates:
        """Return what the row's chain leaves of float32 [V] logits."""
        left = Candidates(self._ids, logits.astype(np.float64))
        history = row.history
        for stage in row.draw.stages:
            left = stage(left, history)
        return left


def _logprobs(logits: Floats, row: Row, token_id: int) -> wire.Logprobs | None:
    """Return log-softmax of the raw logits: the drawn token, then the wanted alternatives."""
    wanted = row.draw.logprobs
    if wanted is None:
        return None
    exact = logits.astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    ids = [token_id, *_likeliest(exact, min(wanted, len(exact)))]
    return wire.Logprobs(
        key=row.seq_id,
        index=row.num_output_tokens,
        token_ids=tuple(ids),
        logprobs=tuple(exact[ids].tolist()),
    )


def _likeliest(logprobs: Doubles, count: int) -> list[int]:
    """Return the ids of the `count` likeliest, falling; ties by lowest id."""
    if count == 0:
        return []
    lowest = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    places = np.flatnonzero(logprobs >= lowest)
    falling = np.argsort(-logprobs[places], kind="stable")
    ids: list[int] = places[falling[:count]].tolist()
    return ids
