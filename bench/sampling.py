"""What the sampler costs: CPU milliseconds for a batch of rows over a real vocabulary, by chain.

    python -m bench.sampling [--rows 16] [--vocabulary 151936] [--step-ms 110] [--repeat 20]

The logits fall as a language model's do: a few tokens hold most of the mass, the rest is a wide
bell. `--step-ms` is the decode step that the share is of: 110 ms is what a 1.5B model in bfloat16
takes at 16 rows on two cores without AMX. Time is that of the thread, so that a busy machine does
not show in it; best and median of `--repeat` calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from protos import common_pb2
from protos import worker as wire
from worker.kernels.checks import Floats
from worker.kernels.draw_passes import DrawPasses
from worker.kernels.library import load_library
from worker.rows import Row
from worker.sampler import Sampler

CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default chain": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    "top_p alone": {"temperature": 0.6, "top_p": 0.9},
    "temperature alone": {"temperature": 1.0},
    "default + penalties": {
        "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05,
        "repetition_penalty": 1.1, "presence_penalty": 0.5,
    },
    "typical_p": {"typical_p": 0.9},
    "top_n_sigma, xtc": {
        "top_n_sigma": 1.0, "xtc": {"probability": 0.5, "threshold": 0.1}, "temperature": 1.0,
    },
}  # fmt: skip
PROMPT_TOKENS, OUTPUT_TOKENS = 500, 200


def logits_of(num_rows: int, vocab_size: int) -> Floats:
    """Return float32 [num_rows, vocab_size]: a bell, and some hundred tokens far above it."""
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.standard_normal((num_rows, vocab_size))
    for row in logits:
        likely = rng.choice(vocab_size, 200, replace=False)
        row[likely] = 16 - 2.5 * np.log(np.arange(1, 201)) + rng.standard_normal(200)
    return logits.astype(np.float32)


def rows_of(num_rows: int, vocab_size: int, logprobs: int | None, **fields: Any) -> list[Row]:
    """Return rows in the middle of an answer, each with its own history and seed."""
    rows = []
    for seed in range(num_rows):
        history = np.random.default_rng(seed).integers(0, vocab_size, PROMPT_TOKENS + OUTPUT_TOKENS)
        params = common_pb2.SamplingParams(seed=seed, **fields)
        begin = wire.SequenceStart(
            seq_id=seed,
            token_ids=history.astype("<u4").tobytes(),
            num_prompt_tokens=PROMPT_TOKENS,
            num_computed=0,
            num_tokens=len(history),
            block_ids=(),
            sampling=params.SerializeToString(),
            logprobs=logprobs,
        )
        rows.append(Row(begin, vocab_size))
    return rows


def measure(sampler: Sampler, logits: Floats, rows: Sequence[Row], repeat: int) -> list[float]:
    """Return the CPU milliseconds of each of `repeat` calls, after two to warm up."""
    taken = []
    for number in range(repeat + 2):
        begin = time.thread_time()
        drawn = sampler.sample(logits, rows)
        taken.append(1e3 * (time.thread_time() - begin))
        if number == 0 and (faults := [one.error for one in drawn if one.error]):
            raise faults[0]
    return taken[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--step-ms", type=float, default=110.0)
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    logits = logits_of(args.rows, args.vocabulary)
    library = load_library()
    passes = DrawPasses(library, library.highest_level) if library else None
    sampler = Sampler(args.vocabulary, passes)
    cases: list[tuple[str, int | None, dict[str, Any]]] = [
        *((name, None, fields) for name, fields in CHAINS.items()),
        ("default + 5 logprobs", 5, CHAINS["default chain"]),
    ]
    print(f"{args.rows} rows, vocabulary {args.vocabulary}, share of {args.step_ms:g} ms\n")
    print("| chain | best ms | median ms | share of a step |\n|---|---|---|---|")
    for name, logprobs, fields in cases:
        rows = rows_of(args.rows, args.vocabulary, logprobs, **fields)
        taken = measure(sampler, logits, rows, args.repeat)
        best, median = min(taken), statistics.median(taken)
        print(f"| {name} | {best:.2f} | {median:.2f} | {median / args.step_ms:.1%} |")


if __name__ == "__main__":
    main()
