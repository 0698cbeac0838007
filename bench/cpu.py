"""A whole step on the CPU, without any tier: decode and prefill against the floor of the machine.

`python -m bench.cpu --shape qwen2-1.5b --quantization none --batch 1 --json`. Weights are random,
the shapes real, the sampling greedy. The floor is the larger of bytes (weights and keys read) over
the best read bandwidth of the same run, and operations over its best multiply rate. Rates are those
of the fastest window of steps: on a shared machine it is the one that was disturbed least.

The memory of a shared machine is fast in one minute and slow in the next. So steps run in rounds
between looks at the ceilings, and beside the fraction of the best of the run stands
`fraction_beside`: the median round against the better of the two looks around it.

`--server` then runs the whole stack on the same weights and streams to as many clients as a batch
has rows, in turns with as many steps here: the median turn against the mean of the two around it.
`--neighbours N` decodes again beside N processes that take all they get, and is compared with the
mean of all steps alone, before and after.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from operator import truediv
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from bench.ceilings import Ceilings, Machine
from bench.neighbours import fair_share, neighbours
from bench.random_model import SHAPES, write_random_model
from bench.random_tokenizer import write_random_tokenizer
from bench.rows import line, numbers
from bench.served import Served, served
from bench.tiers import end_on_sigterm
from bench.windows import WINDOW, fastest_window
from protos import common_pb2
from protos import worker as wire
from worker.backends.cpu import CpuBackend
from worker.build import LoadedModel, load_model
from worker.kernels.crew import available_cores
from worker.kernels.library import LEVEL_NAMES, default_cache_dir
from worker.model_runner import ModelRunner

PREFILL_RUNS = 4
"""The first one touches the memory."""


def main() -> None:
    """Measure every batch and prompt asked for and print one row, or one JSON object, each."""
    args = _arguments()
    folder = args.folder or default_cache_dir() / "bench" / args.shape
    write_random_model(folder, args.shape)
    begin = time.perf_counter()
    loaded = load_model(
        folder,
        num_threads=args.threads,
        kernel_level=args.kernel_level,
        quantization=args.quantization,
        kv_cache_dtype=args.kv_cache_dtype,
    )
    load_s = time.perf_counter() - begin
    if not isinstance(loaded.backend, CpuBackend):
        sys.exit("bench.cpu measures the compiled kernels, and they are not here")
    bench = Bench(loaded, loaded.backend, args)
    rows = [bench.measure(batch) for batch in args.batch]
    for row in rows if args.neighbours else ():
        row |= bench.beside(row["batch"], args.neighbours)
    if args.server:
        with _server(folder, loaded.config.vocab_size, args) as server:
            for row in rows:
                row |= bench.over_http(server, row["batch"])
    facts = {
        "shape": args.shape,
        "quantization": args.quantization,
        "level": loaded.backend.level.name.lower(),
        "threads": loaded.backend.num_threads,
        "kv_dtype": loaded.kv_dtype,
        "load_s": round(load_s, 2),
        "machine": platform.machine(),
    }
    for row in rows:
        print(json.dumps(facts | row) if args.json else line(row))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--shape", choices=SHAPES, default="qwen2-1.5b")
    option("--folder", type=Path, help="where the random model is, or goes")
    option("--quantization", choices=["none", "int8", "int4"], default="none")
    option("--kernel-level", choices=LEVEL_NAMES, default="auto")
    option("--kv-cache-dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    option("--batch", type=numbers, default=[1], metavar="B[,B…]")
    option("--context", type=int, default=128, help="tokens before the first decoded one")
    option("--steps", type=int, default=32, help="decode steps per batch")
    option("--prompt", type=int, default=512, help="tokens of the prefill; 0 = none")
    option("--threads", type=int, default=0)
    option("--neighbours", type=int, default=0, metavar="N", help="busy processes beside")
    option("--server", action="store_true", help="through all tiers as well")
    option("--json", action="store_true")
    return parser.parse_args()


def _server(
    folder: Path, vocab_size: int, args: argparse.Namespace
) -> AbstractContextManager[Served]:
    write_random_tokenizer(folder)
    end_on_sigterm()
    return served(
        folder,
        max(args.batch),
        vocab_size,
        QUANTIZATION=args.quantization,
        KERNEL_LEVEL=args.kernel_level,
        KV_CACHE_DTYPE=args.kv_cache_dtype,
        THREADS=args.threads,
    )


class Round(NamedTuple):
    """Some decode steps, and what the machine could do beside them."""

    times: list[float]
    """Seconds of each step."""
    ceilings: Ceilings
    """The better of the looks before and after."""


class Bench:
    """One loaded model; every measurement has a runner, and so a cache, of its own."""

    def __init__(self, loaded: LoadedModel, backend: CpuBackend, args: argparse.Namespace) -> None:
        self._loaded = loaded
        self._backend = backend
        self._args = args
        self.machine = Machine(backend)

    def measure(self, batch: int) -> dict[str, Any]:
        """Decode with `batch` rows, prefill one prompt, and look at the ceilings in between."""
        args = self._args
        self.machine.look()
        rounds = list(self._rounds(batch))
        step_s = min(fastest_window(times) for times, _ in rounds)
        median_s = median(step for times, _ in rounds for step in times)
        prefill_s = None
        if args.prompt:
            prefill_s = min(self.prefill(args.prompt) for _ in range(PREFILL_RUNS))
        ceilings = self.machine.look()
        middle = args.context + args.steps // 2
        floor_s = self._floor_s(ceilings, batch, batch, middle)
        beside = [self._floor_s(seen, batch, batch, middle) / mean(times) for times, seen in rounds]
        row = {
            "batch": batch,
            "context": args.context,
            "decode_tokens_per_s": round(batch / step_s, 2),
            "median_decode_tokens_per_s": round(batch / median_s, 2),
            "step_ms": round(step_s * 1e3, 2),
            "floor_ms": round(floor_s * 1e3, 2),
            "read_ceiling_gb_per_s": round(ceilings.read_gb_per_s, 2),
            "multiply_ceiling_tflop_per_s": round(ceilings.multiply_tflop_per_s, 3),
            "integer_ceiling_tflop_per_s": round(ceilings.integer_tflop_per_s, 3),
            "fraction_of_floor": round(floor_s / step_s, 3),
            "read_beside_gb_per_s": round(median(seen.read_gb_per_s for _, seen in rounds), 2),
            "fraction_beside": round(median(beside), 3),
        }
        if prefill_s is not None:
            floor_s = self._floor_s(ceilings, args.prompt, 1, args.prompt / 2)
            row["prompt"] = args.prompt
            row["prefill_tokens_per_s"] = round(args.prompt / prefill_s, 1)
            row["prefill_fraction_of_floor"] = round(floor_s / prefill_s, 3)
        return row

    def _rounds(self, batch: int) -> Iterator[Round]:
        step, left = self._steps(batch, self._args.steps // WINDOW + 1), self._args.steps
        while left > 0:
            before = self.machine.latest
            step()  # a look leaves nothing of ours in the caches
            times = [step() for _ in range(min(WINDOW, left))]
            self.machine.look()
            yield Round(times, Ceilings(*map(max, before, self.machine.latest)))
            left -= WINDOW

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each decode step of `batch` sequences, one after the other."""
        step = self._steps(batch)
        return [step() for _ in range(self._args.steps)]

    def _steps(self, batch: int, more: int = 0) -> Callable[[], float]:
        """Return what decodes once and returns the seconds, as often as asked for and `more`."""
        args = self._args
        runner = self._runner(batch, args.context + args.steps + more + 1)
        for plan in self._starts(runner, batch, args.context):
            _execute(runner, plan)
        plan = wire.ExecutePlan(0, steps=tuple(wire.SequenceStep(i, 1) for i in range(batch)))

        def step() -> float:
            begin = time.perf_counter()
            _execute(runner, plan)
            return time.perf_counter() - begin

        return step

    def beside(self, batch: int, count: int) -> dict[str, Any]:
        """Decode beside `count` busy processes, and alone before and after."""
        before_s = mean(self.decode(batch))
        with neighbours(count):
            beside_s = mean(self.decode(batch))
        alone_s = mean((before_s, mean(self.decode(batch))))
        threads = self._backend.num_threads
        return {
            "neighbours": count,
            "beside_tokens_per_s": round(batch / beside_s, 2),
            "beside_over_alone": round(alone_s / beside_s, 3),
            "fair_share": round(fair_share(threads, count, available_cores()), 3),
        }

    def over_http(self, server: Served, batch: int) -> dict[str, Any]:
        """Decode here and through the tiers for `batch` clients, in turns at equal positions."""
        size = min(WINDOW, self._args.steps)
        step = self._steps(batch, size)
        turns = [mean(step() for _ in range(size))]
        served = []
        for position in range(size, self._args.steps + 1, size):
            served.append(server.step_s(batch, self._args.context + position, size))
            turns.append(mean(step() for _ in range(size)))
        alone = [mean(pair) for pair in pairwise(turns)]
        return {
            "offline_tokens_per_s": round(batch / median(alone), 2),
            "served_tokens_per_s": round(batch / median(served), 2),
            "served_over_offline": round(median(map(truediv, alone, served)), 3),
        }

    def prefill(self, num_tokens: int) -> float:
        """Return the seconds of the prefill of one prompt."""
        runner = self._runner(1, num_tokens + 1)
        [plan] = self._starts(runner, 1, num_tokens)
        begin = time.perf_counter()
        _execute(runner, plan)
        return time.perf_counter() - begin

    def _runner(self, batch: int, num_tokens: int) -> ModelRunner:
        size = self._loaded.block_size
        return self._loaded.runner(batch * -(-num_tokens // size))

    def _starts(
        self, runner: ModelRunner, batch: int, num_tokens: int
    ) -> Iterator[wire.ExecutePlan]:
        """Yield one plan per sequence; together they own all blocks."""
        share = runner.num_blocks // batch
        rng = np.random.default_rng(0)
        sampling = common_pb2.SamplingParams(temperature=0.0, seed=1).SerializeToString()
        for seq_id in range(batch):
            ids = rng.integers(0, self._loaded.config.vocab_size, num_tokens)
            start = wire.SequenceStart(
                seq_id=seq_id,
                token_ids=ids.astype("<u4").tobytes(),
                num_prompt_tokens=num_tokens,
                num_computed=0,
                num_tokens=num_tokens,
                block_ids=tuple(range(seq_id * share, (seq_id + 1) * share)),
                sampling=sampling,
            )
            yield wire.ExecutePlan(0, starts=(start,))

    def _floor_s(
        self, ceilings: Ceilings, num_tokens: int, num_logits: int, positions: float
    ) -> float:
        """Return the least seconds of a pass whose tokens stand at `positions` on average."""
        config, backend = self._loaded.config, self._backend
        hidden, heads = config.hidden_size, config.num_heads * config.head_dim
        per_layer = hidden * (2 * config.q_size + 2 * config.kv_size) + 3 * hidden * (
            config.intermediate_size
        )
        linears = config.num_layers * per_layer
        head = config.vocab_size * hidden
        table = 0 if config.tie_word_embeddings else head * 2
        kv_bytes = 4 if self._loaded.kv_dtype == "float32" else 2
        keys = 2 * config.num_layers * config.kv_size * kv_bytes * positions
        operations: float = 2 * (linears * num_tokens + head * num_logits)
        operations += 4 * config.num_layers * heads * positions * num_tokens
        num_bytes = backend.weight_bytes - table + keys * num_logits
        return ceilings.floor_s(num_bytes, operations, backend.weights)


def _execute(runner: ModelRunner, plan: wire.ExecutePlan) -> None:
    if faults := runner.execute(plan).faults:
        sys.exit(f"a row failed: {faults[0].message}")


if __name__ == "__main__":
    main()
