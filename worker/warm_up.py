"""Warm-up: ordinary plans for made-up sequences, and their end. There is no second path."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from protos import common_pb2
from protos import worker as wire
from worker.batch import PassLimits
from worker.model_runner import ModelRunner

log = logging.getLogger(__name__)
NUM_TOKENS = 32
SEQ_ID = 0
"""No other sequence is alive yet, and these are gone before any starts."""
PLAIN = common_pb2.SamplingParams(seed=1, top_p=0.9).SerializeToString()
FULL = common_pb2.SamplingParams(
    seed=1, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1
).SerializeToString()
"""Touches single logits before the draw."""
MOST_LOGPROBS = 20
GRAPH_ROWS = 256


def warm_up(runner: ModelRunner) -> None:
    """Prefill some tokens, decode one, drop the row; raise ValueError on a fault."""
    num_blocks = min(-(-NUM_TOKENS // runner.block_size), runner.num_blocks)
    num_tokens = num_blocks * runner.block_size - 1
    first = replace(_start(SEQ_ID, num_tokens, range(num_blocks)), logprobs=1)
    _run(
        runner,
        (
            wire.ExecutePlan(0, starts=(first,)),
            wire.ExecutePlan(0, steps=(wire.SequenceStep(SEQ_ID, 1),)),
            wire.ExecutePlan(0, finished=(SEQ_ID,)),
        ),
    )
    memory = {f"{purpose}_bytes": count for purpose, count in runner.memory.items()}
    log.info("memory", extra={**memory, "num_blocks": runner.num_blocks})


def run_largest_steps(runner: ModelRunner, limits: PassLimits) -> None:
    """Run the largest passes there are: a prefill, decodes with and without a graph, a pooled one.

    Rows share blocks where there are few: all have the same tokens, so they write the same.
    Raises ValueError on a fault.
    """
    count = min(limits.max_rows, limits.max_logits, limits.max_tokens)
    rows = range(SEQ_ID, SEQ_ID + count)
    few = rows[:GRAPH_ROWS]
    drawing = tuple(
        replace(start, sampling=FULL, logprobs=MOST_LOGPROBS)
        for start in _starts(runner, limits.max_tokens, count)
    )
    longest = min(limits.max_tokens, runner.num_positions)
    num_pooled = -(-limits.max_tokens // longest)
    pooled = tuple(
        replace(start, pooling="mean") for start in _starts(runner, limits.max_tokens, num_pooled)
    )
    _run(
        runner,
        (
            wire.ExecutePlan(0, starts=drawing),
            wire.ExecutePlan(0, steps=_steps(rows)),
            wire.ExecutePlan(0, finished=tuple(rows[GRAPH_ROWS:]), steps=_steps(few)),
            wire.ExecutePlan(0, finished=tuple(few)),
            wire.ExecutePlan(0, starts=pooled),
            wire.ExecutePlan(0, finished=tuple(rows[:num_pooled])),
        ),
    )


def _steps(seq_ids: Iterable[int]) -> tuple[wire.SequenceStep, ...]:
    return tuple(wire.SequenceStep(seq_id, 1) for seq_id in seq_ids)


def _starts(runner: ModelRunner, num_tokens: int, count: int) -> Iterator[wire.SequenceStart]:
    """Yield `count` rows of `num_tokens` in all, with blocks for two tokens more each."""
    next_block = 0
    for i in range(count):
        length = num_tokens // count + (i < num_tokens % count)
        num_blocks = -(-(length + 2) // runner.block_size)
        blocks = (np.arange(next_block, next_block + num_blocks) % runner.num_blocks).tolist()
        next_block += num_blocks
        yield _start(SEQ_ID + i, length, blocks)


def _start(seq_id: int, length: int, blocks: Iterable[int]) -> wire.SequenceStart:
    return wire.SequenceStart(
        seq_id=seq_id,
        token_ids=np.zeros(length, "<u4").tobytes(),
        num_prompt_tokens=length,
        num_computed=0,
        num_tokens=length,
        block_ids=tuple(blocks),
        sampling=PLAIN,
    )


def _run(runner: ModelRunner, plans: Iterable[wire.ExecutePlan]) -> None:
    for plan in plans:
        if faults := runner.execute(plan).faults:
            raise ValueError(
                f"warm-up failed: {faults[0].message}; are all weights numbers, and does dtype "
                "hold what they make?"
            )
