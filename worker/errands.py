"""Errands: what a worker does beside the steps, each answered once.

Compiling runs in a thread and ends whenever it ends. Blocks are stored at once and loaded a few at
a time, between the steps. No step waits for an errand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from protos import worker as wire
from worker.host_tier import HostTier

BLOCKS_A_TURN = 8
"""About 2 ms of copying for a model of half a billion parameters."""


@dataclass(slots=True)
class _Load:
    """A load under way: its first `num_blocks` are good."""

    errand: wire.LoadBlocks
    num_blocks: int = 0


class Errands:
    """Those of one life. `answer` is called from any thread."""

    def __init__(
        self,
        rank: int,
        tier: HostTier | None,
        prepare: Callable[[bytes], str],
        answer: Callable[[wire.ErrandDone], None],
    ) -> None:
        """`prepare` compiles what serialized SamplingParams ask for; it returns what is wrong."""
        self._rank = rank
        self._tier = tier
        self._loads: deque[_Load] = deque()
        self._prepare = prepare
        self._answer = answer
        self._threads = ThreadPoolExecutor(1, "errand")

    def run(self, errand: wire.Errand | wire.DropKeys) -> None:
        """Do `errand`, or begin to."""
        if isinstance(errand, wire.CompileGrammar):
            errand_id = errand.errand_id
            compiled = self._threads.submit(self._prepare, errand.sampling)
            compiled.add_done_callback(lambda future: self._compiled(errand_id, future))
        elif isinstance(errand, wire.DropKeys):
            if self._tier is not None:
                self._tier.drop(errand.keys)
        elif self._tier is None:
            self._answer(wire.ErrandDone(self._rank, errand.errand_id, "there is no host memory"))
        elif isinstance(errand, wire.StoreBlocks):  # at once: the next plan may write there
            count = self._tier.store(errand.block_ids, errand.keys)
            self._answer(wire.ErrandDone(self._rank, errand.errand_id, num_blocks=count))
        else:
            self._loads.append(_Load(errand))

    @property
    def is_busy(self) -> bool:
        """True while `turn` has something to do."""
        return bool(self._loads)

    def turn(self) -> None:
        """Load up to BLOCKS_A_TURN blocks: the next step does not wait for a whole prompt."""
        left = BLOCKS_A_TURN
        while left > 0 and self._loads:
            load, tier = self._loads[0], self._tier
            errand = load.errand
            assert tier is not None
            some = slice(load.num_blocks, load.num_blocks + left)
            wanted = len(errand.keys[some])
            count = tier.load(errand.block_ids[some], errand.keys[some])
            load.num_blocks += count
            left -= max(count, 1)
            if count < wanted or load.num_blocks == len(errand.keys):
                self._loads.popleft()
                done = wire.ErrandDone(self._rank, errand.errand_id, num_blocks=load.num_blocks)
                self._answer(done)

    def _compiled(self, errand_id: int, future: Future[str]) -> None:
        if future.cancelled():
            return
        failed = future.exception()
        error = f"compiling failed: {failed!r}" if failed else future.result()
        self._answer(wire.ErrandDone(self._rank, errand_id, error))

    def close(self) -> None:
        """Begin nothing more; what runs in a thread is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
