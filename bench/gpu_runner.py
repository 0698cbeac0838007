"""The worker's own loop over a random model on a GPU: two steps at a time, all rows drawn there."""

from __future__ import annotations

from collections import deque

import numpy as np

from bench.gpu import BLOCK_SIZE, PATTERN_BYTES, Model
from protos import common_pb2
from protos import worker as wire
from worker.arena import Arena, num_bytes
from worker.batch import PassLimits
from worker.flights import MOST_FLIGHTS, Flight
from worker.gather import Inputs, input_pieces
from worker.model_runner import ModelRunner

SAMPLING = common_pb2.SamplingParams(temperature=0.8, top_p=0.95, seed=1).SerializeToString()


def clear(model: Model) -> None:
    """Make keys and values finite: rows begin behind tokens that nobody has computed."""
    zeros = np.zeros(PATTERN_BYTES, np.uint8)
    for layer in model.cache.layers:
        for side in layer:
            raw = side.reshape(-1).view(np.uint8)
            for start in range(0, raw.nbytes, PATTERN_BYTES):
                piece = raw[start : start + PATTERN_BYTES]
                model.gpu.write(piece, zeros[: piece.nbytes])


class Steps:
    """Rows with `context` tokens behind them; each step draws a token for every row."""

    def __init__(self, model: Model, batch: int, context: int, num_steps: int) -> None:
        """`num_steps` is how often `step` will be called."""
        longest = context + num_steps + 2
        limits = PassLimits(max(batch, BLOCK_SIZE), batch, batch)
        arena = Arena(num_bytes(input_pieces(limits, longest, BLOCK_SIZE)))
        inputs = Inputs(limits, longest, BLOCK_SIZE, arena)
        vocab_size = model.shape.vocab_size
        self._runner = ModelRunner(
            model.model, model.backend, model.cache, inputs, vocab_size, dict
        )
        clear(model)
        self._flying: deque[Flight] = deque()
        self._batch = batch
        self._step_id = 0
        width = -(-longest // BLOCK_SIZE)
        tokens = np.zeros(context, "<u4").tobytes()
        starts = tuple(
            wire.SequenceStart(
                seq_id=row, token_ids=tokens, num_prompt_tokens=context,
                num_computed=context - 1, num_tokens=1,
                block_ids=tuple(range(row * width, (row + 1) * width)), sampling=SAMPLING,
            )
            for row in range(batch)
        )  # fmt: skip
        self._begin(wire.ExecutePlan(0, starts=starts))
        self._land()

    def step(self) -> None:
        """Begin a step while the one before is under way; land what is older."""
        self._step_id += 1
        rows = tuple(wire.SequenceStep(row, 1) for row in range(self._batch))
        self._begin(wire.ExecutePlan(self._step_id, steps=rows))
        while len(self._flying) >= MOST_FLIGHTS:
            self._land_one()

    def _begin(self, plan: wire.ExecutePlan) -> None:
        self._flying.append(self._runner.begin(plan, self._land))

    def _land(self) -> None:
        while self._flying:
            self._land_one()

    def _land_one(self) -> None:
        faults = self._flying.popleft().result().faults
        assert not faults, faults[0].message
