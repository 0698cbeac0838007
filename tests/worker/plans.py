"""Plans for tests, and the smallest scheduler that can drive a runner to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protos import common_pb2
from protos import worker as wire
from worker.model_runner import ModelRunner


def sampling(**fields: Any) -> bytes:
    """Return serialized SamplingParams; greedy with seed 1 unless said otherwise."""
    return common_pb2.SamplingParams(**{"temperature": 0.0, "seed": 1} | fields).SerializeToString()


def columns(token_ids: Sequence[int]) -> bytes:
    """Return a column of little-endian u32."""
    return np.array(token_ids, "<u4").tobytes()


EVERY_STAGE: dict[str, Any] = {
    "temperature": 1.5,
    "seed": 7,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.1,
    "dry": {"multiplier": 1.0, "base": 1.5, "allowed_length": 1, "breakers": [columns([9])]},
    "bad_words": [columns([5]), columns([7, 8])],
    "allowed_token_ids": columns(range(2, 90)),
    "dynamic_temperature": {"range": 0.5, "exponent": 1.0},
    "top_n_sigma": 3.0,
    "min_p": 1e-3,
    "top_k": 60,
    "typical_p": 0.98,
    "top_p": 0.97,
    "xtc": {"probability": 0.5, "threshold": 0.05},
    "samplers": [
        "bad_words",
        "dry",
        "penalties",
        "top_k",
        "allowed_token_ids",
        "typical_p",
        "min_p",
        "dynamic_temperature",
        "xtc",
        "top_n_sigma",
        "top_p",
    ],
}
"""Fields of a request whose chain has every stage, in an order of its own."""


def start(
    seq_id: int,
    token_ids: Sequence[int],
    block_ids: Sequence[int],
    num_tokens: int | None = None,
    **fields: Any,
) -> wire.SequenceStart:
    """Return a start whose first step computes `num_tokens`, all known ones by default."""
    defaults: dict[str, Any] = {
        "num_prompt_tokens": len(token_ids),
        "num_computed": 0,
        "sampling": sampling(),
    }
    return wire.SequenceStart(
        seq_id=seq_id,
        token_ids=columns(token_ids),
        num_tokens=len(token_ids) if num_tokens is None else num_tokens,
        block_ids=tuple(block_ids),
        **defaults | fields,
    )


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


class Generation:
    """What came out: ids and logprob rows by sequence."""

    def __init__(self) -> None:
        self.token_ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[wire.Logprobs]] = {}


def generate(
    runner: ModelRunner,
    prompts: dict[int, Sequence[int]],
    num_new: int,
    chunk: int = 10**9,
    **fields: Any,
) -> Generation:
    """Run all prompts together, each prompt in chunks, until each has `num_new` tokens.

    Blocks are handed out when they are first needed, interleaved between the sequences.
    """
    free = iter(range(runner.num_blocks))
    done = dict.fromkeys(prompts, 0)
    owned = dict.fromkeys(prompts, 0)
    out = Generation()
    out.token_ids = {seq_id: [] for seq_id in prompts}
    out.logprobs = {seq_id: [] for seq_id in prompts}
    step_id = 0
    while any(len(ids) < num_new for ids in out.token_ids.values()):
        starts, steps = [], []
        for seq_id, prompt in prompts.items():
            if len(out.token_ids[seq_id]) >= num_new:
                continue
            count = min(chunk, max(1, len(prompt) - done[seq_id]))
            needed = num_blocks_for(done[seq_id] + count, runner.block_size) - owned[seq_id]
            blocks = tuple(next(free) for _ in range(needed))
            if done[seq_id] == 0:
                starts.append(start(seq_id, prompt, blocks, count, **fields))
            else:
                steps.append(wire.SequenceStep(seq_id, count, blocks))
            done[seq_id] += count
            owned[seq_id] += needed
        result = runner.execute(wire.ExecutePlan(step_id, tuple(starts), tuple(steps)))
        assert not result.faults, result.faults
        for seq_id, token_id in zip(result.seq_ids, result.token_ids, strict=True):
            out.token_ids[seq_id].append(token_id)
        for row in result.logprobs:
            out.logprobs[row.key].append(row)
        step_id += 1
    runner.execute(wire.ExecutePlan(step_id, finished=tuple(prompts)))
    return out
