"""Sampler: raw logits and rows → the next token of each row, its logprobs and its trace.

A row's draw depends on its own logits, history, seed and output index alone. Greedy rows without a
chain share one argmax; all others are drawn one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from protos import worker as wire
from worker.errors import NothingLeft, RowError
from worker.kernels.checks import Floats
from worker.kernels.draw_passes import DrawPasses
from worker.logprobs import with_alternatives
from worker.noise import Ids, gumbel, stream
from worker.rows import Row
from worker.sampling.candidates import Candidates, History
from worker.sampling.draw import Draw
from worker.sampling.shortlist import Links
from worker.sampling.trace import Trace

FORBIDDING = ("allowed_token_ids", "bad_words")
"""Stages after which nothing may be left."""
LOGITS_NOT_FINITE = "the model's logits are not finite"


class Drawn(NamedTuple):
    """Outcome of one row: a token, or why there is none."""

    row: Row
    token_id: int = -1
    logprobs: wire.Logprobs | None = None
    error: RowError | None = None
    trace: bytes = b""


class Launched(NamedTuple):
    """Draws that have begun."""

    drawn: Callable[[], list[Drawn]]
    """Waits for them, in the order of the rows; may be called once."""
    wait: Callable[[], None] | None = None
    """Returns when they are done, in any thread; None = they are."""
    places: Sequence[int] = ()
    """Where the tokens stand in the device's list of draws, until then."""
    seconds: Callable[[], tuple[float, float]] | None = None
    """How long a device has taken for the pass and for the draws, once they are done."""


class Sampler:
    """Draws tokens; keeps only the ids of the vocabulary between calls."""

    def __init__(self, vocab_size: int, passes: DrawPasses | None = None) -> None:
        self._ids = np.arange(vocab_size)
        self._passes = passes

    def draws_later(self, rows: Sequence[Row]) -> bool:
        """The host draws at once."""
        return False

    def launch(self, logits: Floats, rows: Sequence[Row]) -> Launched:
        """Draw one token per row; see `sample`."""
        drawn = self.sample(logits, rows)
        return Launched(lambda: drawn)

    def sample(self, logits: Floats, rows: Sequence[Row]) -> list[Drawn]:
        """Draw one token per row; logits: float32 [len(rows), V], not changed."""
        likeliest = logits.argmax(axis=1).tolist()
        return [self._guarded(logits[i], rows[i], likeliest[i]) for i in range(len(rows))]

    def _guarded(self, logits: Floats, row: Row, likeliest: int) -> Drawn:
        """Draw for one row; whatever goes wrong stays with it."""
        if not np.isfinite(logits[likeliest]):  # of NaN among others, argmax finds the NaN
            return Drawn(row, error=RowError(LOGITS_NOT_FINITE))
        try:
            if row.draw.is_plain:
                return Drawn(row, likeliest, self._told(logits, row, likeliest))
            trace = Trace() if row.draw.is_traced else None
            token_id = self._draw(logits, row, likeliest, trace)
            told = trace.to_json(row.num_output_tokens, token_id) if trace else b""
            return Drawn(row, token_id, self._told(logits, row, token_id), trace=told)
        except RowError as error:
            return Drawn(row, error=error)
        except Exception as error:
            return Drawn(row, error=RowError(f"sampling failed: {error!r}"))

    def _draw(self, logits: Floats, row: Row, likeliest: int, trace: Trace | None) -> int:
        draw, key = row.draw, self.key(row)
        left = self._contending(logits, draw, likeliest, key)
        if left is None:
            history, highest = row.history._replace(key=key), float(logits[likeliest])
            left = self.survivors(logits, draw, history, highest, trace)
        keys = left.logits
        if not draw.is_greedy:
            keys = np.add(keys, gumbel(key, left.ids))
        return int(left.ids[int(keys.argmax())])

    def _contending(
        self, logits: Floats, draw: Draw, likeliest: int, key: int
    ) -> Candidates | None:
        """Return those of all tokens that may win, where any token may be drawn."""
        temperature = draw.free_temperature
        if self._passes is None or temperature is None:
            return None
        ids = self._passes.contenders(logits, likeliest, temperature, key)
        if ids is None:
            return None
        return Candidates(ids, logits[ids].astype(np.float64) / temperature)

    def _told(self, logits: Floats, row: Row, token_id: int) -> wire.Logprobs | None:
        """Return what the row wants to know of the raw logits."""
        if row.draw.logprobs is None:
            return None
        told = self.logprobs(logits, token_id, row.draw.logprobs)
        return wire.Logprobs(row.seq_id, row.num_output_tokens, *told)

    def logprobs(
        self, logits: Floats, token_id: int, count: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return ids and log-probabilities, of float32 [V] logits; see `with_alternatives`."""
        return with_alternatives(logits, token_id, count, self._passes)

    @staticmethod
    def key(row: Row) -> int:
        """Return the key of the noise of the row's next token."""
        return stream(row.draw.seed, row.draw.choice, row.num_output_tokens)

    def survivors(
        self,
        logits: Floats,
        draw: Draw,
        history: History,
        highest: float,
        trace: Trace | None = None,
    ) -> Candidates:
        """Return what the chain leaves of float32 [V] logits; RowError when that is nothing.

        `highest` is the highest of them.
        """
        if trace is not None:
            trace.note("logits", Candidates(self._ids, logits.astype(np.float64)))
        ids = self._ids
        allowed = draw.allowed(history.output_ids)
        if allowed is not None:
            if len(allowed) == 0:
                raise NothingLeft("every token is forbidden by the grammar")
            ids, logits = allowed, logits[allowed]
            highest = float(logits.max())
        left, links = self._listed(ids, logits, highest, draw, history)
        if trace is not None and allowed is not None:
            trace.note("grammar", left)
        for name, stage in links:
            left = stage(left, history)
            if name in FORBIDDING and left.logits.max() == -np.inf:
                raise NothingLeft(f"every token is forbidden, the last ones by {name}")
            if trace is not None:
                trace.note(name, left)
        return left

    def _listed(
        self, ids: Ids, logits: Floats, highest: float, draw: Draw, history: History
    ) -> tuple[Candidates, Links]:
        """Return what the chain begins with, and its stages: few candidates when that can be."""
        if draw.shortlist is not None:
            few = draw.shortlist.candidates(ids, logits, highest, history, self._passes)
            if few is not None:
                return few, draw.shortlist.links
        return Candidates(ids, logits.astype(np.float64)), draw.stages
