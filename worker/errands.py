"""Errands: what a worker does beside the steps, each answered once.

Compiling runs in a thread and ends whenever it ends. The steps do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from protos import worker as wire


class Errands:
    """Those of one life. `answer` is called from any thread."""

    def __init__(
        self, rank: int, prepare: Callable[[bytes], str], answer: Callable[[wire.ErrandDone], None]
    ) -> None:
        """`prepare` compiles what serialized SamplingParams ask for; it returns what is wrong."""
        self._rank = rank
        self._prepare = prepare
        self._answer = answer
        self._threads = ThreadPoolExecutor(1, "errand")

    def run(self, errand: wire.Errand | wire.DropKeys) -> None:
        """Do `errand`, or begin to."""
        if isinstance(errand, wire.CompileGrammar):
            errand_id = errand.errand_id
            compiled = self._threads.submit(self._prepare, errand.sampling)
            compiled.add_done_callback(lambda future: self._compiled(errand_id, future))

    def _compiled(self, errand_id: int, future: Future[str]) -> None:
        if future.cancelled():
            return
        failed = future.exception()
        error = f"compiling failed: {failed!r}" if failed else future.result()
        self._answer(wire.ErrandDone(self._rank, errand_id, error))

    def close(self) -> None:
        """Begin nothing more; what runs in a thread is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
