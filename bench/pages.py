"""Page tables for a measurement: as the scheduler gives them, or in no order at all."""

from __future__ import annotations

import random
from array import array

import numpy as np

from bench.scheduler_step import answer
from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.scheduler import Scheduler
from protos.worker import Add, Limits

KINDS = ("served", "shuffled")
VOCAB_SIZE = 1 << 16
BUDGET = 2048
"""Tokens of a step."""
TURNS = 4
"""How many times its size goes through the pool before the sequences that count."""


def page_tables(
    kind: str, count: int, num_pages: int, block_size: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Return [count, num_pages] page numbers: of sequences that lie in a cache of twice their size,
    full of what came before, or a permutation."""
    if kind == "served":
        return _Traffic(count, num_pages, block_size).tables()
    shuffled = np.random.default_rng(0).permutation(count * num_pages)
    return shuffled.astype(np.int32).reshape(count, num_pages)


def pages_per_piece(tables: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> float:
    """Return how many pages lie side by side, in order, on average."""
    num_pieces = len(tables) + int((np.diff(tables) != 1).sum())
    return round(tables.size / num_pieces, 1)


class _Traffic:
    """Requests of random lengths through one scheduler, `count` at a time, tokens made up."""

    def __init__(self, count: int, num_pages: int, block_size: int) -> None:
        self._count, self._num_pages, self._length = count, num_pages, num_pages * block_size
        self._num_blocks = 2 * count * num_pages
        self._scheduler = Scheduler(
            num_blocks=self._num_blocks, block_size=block_size, vocab_size=VOCAB_SIZE,
            max_model_len=2 * self._length, bounds=Bounds(count, BUDGET, count),
            prefix_key=b"bench",
        )  # fmt: skip
        self._random = random.Random(0)
        self._known = dict[int, int]()
        self._num_sent = self._num_live = 0

    def tables(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        tokens_left = TURNS * self._num_blocks * self._length // self._num_pages
        while tokens_left > 0 or self._num_live:
            while tokens_left > 0 and self._num_live < self._count:
                length = self._random.randint(self._length // 8 + 2, self._length + 2)
                self._send(length)
                tokens_left -= length
            self._step()
        for _ in range(self._count):
            self._send(2 * self._length)
        pool = self._scheduler.pool
        tables = list[list[int]]()
        while len(tables) < self._count or min(map(len, tables)) < self._num_pages:
            self._step()
            tables = [pool.table(seq_id) for seq_id in pool.holders()]
        return np.array([table[: self._num_pages] for table in tables], np.int32)

    def _send(self, length: int) -> None:
        """Send a request of that many tokens, a part of the first half of them its prompt's."""
        num_prompt = self._random.randint(1, min(length, self._length) // 2 + 1)
        prompt = array("I", self._random.choices(range(VOCAB_SIZE), k=num_prompt)).tobytes()
        slot = self._num_sent
        self._scheduler.add(Add(1, slot, str(slot), prompt, Limits(length - num_prompt), b""), 0.0)
        self._num_sent, self._num_live = slot + 1, self._num_live + 1

    def _step(self) -> None:
        plan = self._scheduler.schedule(0.0)
        assert plan is not None
        for event in self._scheduler.apply(answer(plan, self._known), 0.0):
            self._num_live -= event.finish is not None
