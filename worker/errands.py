"""Errands: what the scheduler asks for beside the steps, done in a thread, in order.

The answer is handed to `done` from that thread. A grammar takes up to a second to compile; no step
waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from protos import worker as wire
from worker.grammar import Grammars

log = logging.getLogger(__name__)


class Errands:
    """Of one life of a worker; `close` leaves what is not done undone."""

    def __init__(
        self, grammars: Grammars, rank: int, done: Callable[[wire.ErrandDone], None]
    ) -> None:
        self._grammars = grammars
        self._rank = rank
        self._done = done
        self._executor = ThreadPoolExecutor(1, "errands")

    def begin(self, errand: wire.CompileGrammar) -> None:
        """Return at once; `done` gets exactly one answer, with an error that says what is wrong."""
        self._executor.submit(self._compile, errand)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _compile(self, errand: wire.CompileGrammar) -> None:
        try:
            error = self._grammars.prepare(errand.sampling)
        except Exception as failure:
            log.exception("errand failed", extra={"errand_id": errand.errand_id})
            error = f"the grammar cannot be compiled: {failure!r}"
        self._done(wire.ErrandDone(self._rank, errand.errand_id, error))
