"""ModelRunner: one plan in, one result out. Prefill and decode are the same path.

A step has two halves: `begin` launches it, its flight's `result` waits and settles the rows. Where
a device draws, the next step may begin in between. Knows rows, the cache, the model and the
sampler. Knows no socket: the server begins steps, the offline face calls `execute`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from protos import worker as wire
from worker.backends.base import LayerCache, Model, Outputs
from worker.batch import Batch, Workspace
from worker.drawing import Drawing, Draws, fault_of
from worker.errors import RowError
from worker.flights import Flight
from worker.gather import Inputs, Work
from worker.grammar import Grammars
from worker.host_tier import HostTier
from worker.rows import Room, Row, Rows
from worker.ubatches import ubatches

Entry = wire.SequenceStart | wire.SequenceStep


class Cache(Protocol):
    """Keys and values, on the host or on a GPU."""

    num_blocks: int
    block_size: int
    layers: Sequence[LayerCache]

    def copy(self, copies: Sequence[wire.BlockCopy]) -> None: ...


class Device(Protocol):
    """What the runner itself needs of a backend."""

    def bind(
        self, model: Model, caches: Sequence[LayerCache], workspace: Workspace | None = None
    ) -> Callable[[Batch], Outputs]:
        """Return the pass over a batch; what that returns is valid until the next one."""
        ...

    def sampler(self, vocab_size: int) -> Draws:
        """Return what draws tokens from the logits of its passes."""
        ...


class ModelRunner:
    """Executes plans in order; owns rows and cache, and nothing outlives it but the weights."""

    def __init__(
        self,
        model: Model,
        device: Device,
        cache: Cache,
        inputs: Inputs,
        vocab_size: int,
        memory: Callable[[], Mapping[str, int]],
        grammars: Grammars | None = None,
        host_tier: HostTier | None = None,
    ) -> None:
        """`memory` says how many bytes are taken for what."""
        self._memory = memory
        self.host_tier = host_tier
        self._inputs = inputs
        self._room = Room(cache.num_blocks, cache.block_size, inputs.num_positions)
        self._model = model
        self._forward = device.bind(model, cache.layers, inputs.workspace)
        self._cache = cache
        self._rows = Rows(vocab_size, grammars)
        self._sampler = device.sampler(vocab_size)

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by what they are for."""
        return self._memory()

    @property
    def num_blocks(self) -> int:
        return self._cache.num_blocks

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    @property
    def num_positions(self) -> int:
        """The most tokens of a sequence."""
        return self._inputs.num_positions

    @property
    def num_sequences(self) -> int:
        """Rows that are alive between steps."""
        return len(self._rows)

    def execute(self, plan: wire.ExecutePlan) -> wire.StepResult:
        """Drop, copy, shift, compute, draw. A row that fails is a fault; anything else raises."""
        return self.begin(plan, lambda: None).result()

    def begin(self, plan: wire.ExecutePlan, land_earlier: Callable[[], None]) -> Flight:
        """Launch a step, behind at most one other whose result is not taken.

        Calls `land_earlier`, which takes that result, before anything that has to wait for it:
        rows that the host draws, or that need to know tokens which are only promised.
        """
        self._rows.drop(plan.finished)
        self._cache.copy(plan.copies)
        for shift in plan.shifts:
            cells = np.frombuffer(shift.cells, "<u4").astype(np.int32)
            self._model.shift(self._cache.layers, cells, shift.delta)
        work, faults = self._admit(plan)
        is_later = self._draws_later(work)
        if not is_later:
            land_earlier()
            work = [item for item in work if not item.row.has_failed]
            is_later = self._draws_later(work)
        drawing = Drawing(self._sampler, is_later)
        times = self._compute(work, drawing)
        result = partial(self._land, plan.step_id, faults, drawing, times)
        return Flight(plan.step_id, drawing.wait, result)

    def _draws_later(self, work: Sequence[Work]) -> bool:
        """Return whether a device draws all of `work`, from what is known of it now."""
        for row, _ in work:
            if row.pool is not None or row.has_guesses or row.tells_prompt:
                return False
        return self._sampler.draws_later([item.row for item in work if item.num_logits])

    def _compute(self, work: Sequence[Work], drawing: Drawing) -> tuple[float, float]:
        """Launch the passes, and advance the rows as if they were done.

        Returns seconds of passes and of draws, on the host's clock.
        """
        forward_s, sample_s, clock = 0.0, 0.0, time.perf_counter
        for some in ubatches(work, self._inputs.limits):
            begin = clock()
            drawing.expect(some)
            outputs = self._forward(self._inputs.gather(some))
            middle = clock()
            drawing.take(some, outputs.logits)
            drawing.pool(some, outputs.states)
            for item in some:
                item.row.num_computed += item.num_tokens
            forward_s += middle - begin
            sample_s += clock() - middle
        for item in work:
            item.row.settle()
        return forward_s, sample_s

    def _land(
        self,
        step_id: int,
        faults: Sequence[wire.SequenceFault],
        drawing: Drawing,
        times: tuple[float, float],
    ) -> wire.StepResult:
        if drawing.wait is not None:  # a device's clock, not the host's
            times = drawing.land()
        for row, _ in drawing.failed():
            self._rows.fail(row)
        return drawing.result(step_id, faults, *times)

    def _admit(self, plan: wire.ExecutePlan) -> tuple[list[Work], list[wire.SequenceFault]]:
        """Return the work of a plan, and the faults of rows that cannot take part."""
        work, faults = list[Work](), list[wire.SequenceFault]()
        entries: tuple[Entry, ...] = (*plan.starts, *plan.steps)
        for entry in entries:
            try:
                row = self._find(entry)
                if row is not None:
                    row.check(entry.num_tokens, self._room)
                    work.append(Work(row, entry.num_tokens))
            except RowError as error:
                faults.append(fault_of(entry.seq_id, error))
                self._rows.refuse(entry.seq_id)
        return work, faults

    def _find(self, entry: Entry) -> Row | None:
        if isinstance(entry, wire.SequenceStart):
            return self._rows.start(entry)
        return self._rows.step(entry)
