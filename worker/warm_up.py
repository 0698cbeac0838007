"""Warm-up: two ordinary plans for a made-up sequence, and its end. There is no second path."""

from __future__ import annotations

import numpy as np

from protos import common_pb2
from protos import worker as wire
from worker.model_runner import ModelRunner

NUM_TOKENS = 32
SEQ_ID = 0
"""No other sequence is alive yet, and this one is gone before any starts."""


def warm_up(runner: ModelRunner) -> None:
    """Prefill some tokens, decode one, drop the row; raise RuntimeError on a fault."""
    num_blocks = min(-(-NUM_TOKENS // runner.block_size), runner.num_blocks)
    num_tokens = num_blocks * runner.block_size - 1
    start = wire.SequenceStart(
        seq_id=SEQ_ID,
        token_ids=np.zeros(num_tokens, "<u4").tobytes(),
        num_prompt_tokens=num_tokens,
        num_computed=0,
        num_tokens=num_tokens,
        block_ids=tuple(range(num_blocks)),
        sampling=common_pb2.SamplingParams(seed=1, top_p=0.9).SerializeToString(),
        logprobs=1,
    )
    plans = (
        wire.ExecutePlan(0, starts=(start,)),
        wire.ExecutePlan(0, steps=(wire.SequenceStep(SEQ_ID, 1),)),
        wire.ExecutePlan(0, finished=(SEQ_ID,)),
    )
    for plan in plans:
        if faults := runner.execute(plan).faults:
            raise RuntimeError(f"warm-up failed: {faults[0].message}")
