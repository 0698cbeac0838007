"""Each compiled operator by itself, against the ceilings of the same run.

`python -m bench.kernels --shape qwen2-1.5b --rows 1,16,512 --context 2048 --json`. The weights and
caches of an operator are as many as exceed every cache; activations lie where the operator before
leaves them, and keys where the scheduler puts them once its prefix cache is full. Floor: the larger
of bytes over the best read bandwidth and operations over the best multiply rate. Norms, turns and
the activation are told in bytes alone: at few rows they never leave the caches. Rates are those of
the fastest run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bench.ceilings import Machine
from bench.pages import KINDS, page_tables, pages_per_piece
from bench.random_model import SHAPES
from bench.rows import line, numbers
from worker.arena import PAGE
from worker.backends.cpu import CpuBackend, StepInputs
from worker.backends.program import Program
from worker.batch import Batch
from worker.kernels.library import LEVEL_NAMES, load_library
from worker.kernels.packed import Format, aligned_bytes
from worker.kernels.records import Buffer, Rows
from worker.kernels.rope import pack_rotary
from worker.kv_cache import DTYPES, LayerPages

Linear = Callable[[Buffer, Any], Buffer]
BEYOND_CACHES = 600 << 20
"""Bytes of weights or keys that one measurement goes through."""
BLOCK_SIZE = 16
MANY = 64
"""Of an operator that takes less time than the call."""
MIN_S, MIN_RUNS = 1.0, 3
FORMATS = {"bfloat16": Format.BF16, "float32": Format.F32, "int8": Format.INT8, "int4": Format.INT4}


class Case(NamedTuple):
    """`copies` times the same operator on other weights or keys."""

    name: str
    num_bytes: int
    """Weights, keys and values, or activations, that one of them reads and writes."""
    num_operations: int
    record: Callable[[int], Buffer]
    """Records the operator on copy i."""
    copies: int = 1
    weights: Format = Format.F32


class Sizes(NamedTuple):
    """Of a model."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def main() -> None:
    """Measure every operator at every number of rows and print one row, or JSON object, each."""
    args = _arguments()
    library = load_library()
    if library is None:
        raise SystemExit("bench.kernels measures the compiled kernels, and they are not here")
    level = library.level(args.kernel_level)
    ops = CpuBackend(library, level, FORMATS[args.weights], args.threads)
    machine = Machine(ops)
    raw = SHAPES[args.shape]
    sizes = Sizes(
        raw["hidden_size"], raw["intermediate_size"], raw["num_attention_heads"],
        raw["num_key_value_heads"], raw["vocab_size"],
    )  # fmt: skip

    def wanted(name: str) -> bool:
        return not args.operator or name in args.operator

    for rows in args.rows:
        batch = batch_of(rows, args.context, args.prefill, args.pages)
        for case in chain(
            linears(ops, sizes, rows, wanted), others(ops, sizes, batch, DTYPES[args.kv])
        ):
            if wanted(case.name):
                row = {"rows": rows} | measure(ops, machine, case, batch)
                if case.name == "attention":
                    row["pages_per_piece"] = pages_per_piece(batch.block_tables)
                print(json.dumps(row) if args.json else line(row), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--shape", choices=SHAPES, default="qwen2-1.5b")
    option("--rows", type=numbers, default=[1, 8, 16, 512], metavar="N[,N…]")
    option("--context", type=int, default=2048, help="positions that every row attends to")
    option("--prefill", action="store_true", help="the rows are the tokens of one prompt")
    option("--operator", action="append", default=[], metavar="NAME")
    option("--weights", choices=FORMATS, default="bfloat16")
    option("--kv", choices=DTYPES, default="bfloat16", help="what keys and values are kept in")
    option("--pages", choices=KINDS, default=KINDS[0], help="where the keys of a sequence lie")
    option("--kernel-level", choices=LEVEL_NAMES[:-1], default="auto")
    option("--threads", type=int, default=0)
    option("--json", action="store_true")
    return parser.parse_args()


def batch_of(rows: int, context: int, prefill: bool, pages: str) -> Batch:
    """Sequences of `context` positions, one token each; or the first `rows` of one."""
    count = 1 if prefill else rows
    per_sequence = -(-max(context, rows) // BLOCK_SIZE)
    tables = page_tables(pages, count, per_sequence, BLOCK_SIZE)
    positions = np.arange(rows) if prefill else np.full(rows, context - 1)
    owners = np.zeros(rows, np.int64) if prefill else np.arange(rows)
    starts = [0, rows] if prefill else np.arange(rows + 1)
    places = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    nothing = np.array([], np.int32)
    return Batch(
        token_ids=np.zeros(rows, np.int32),
        positions=positions.astype(np.int32),
        cells=places.astype(np.int32),
        query_starts=np.array(starts, np.int32),
        block_tables=tables,
        logit_rows=nothing,
        state_rows=nothing,
        block_size=BLOCK_SIZE,
    )


def floats(rows: int, width: int) -> Buffer:
    """Activations; not zero, because a multiplier is faster on zeros."""
    values = np.random.default_rng(rows).standard_normal((rows, width), np.float32)
    return Buffer(Rows.TOKENS, width, given=values)


def linears(
    ops: CpuBackend, sizes: Sizes, rows: int, wanted: Callable[[str], bool]
) -> Iterator[Case]:
    """Yield the four linears of a layer, the one that gates also as it runs, and the head."""
    q_size, kv_size = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    for name, inputs, outputs in (
        ("qkv", sizes.hidden, q_size + 2 * kv_size),
        ("o_proj", q_size, sizes.hidden),
        ("gate_up", sizes.hidden, 2 * sizes.inner),
        ("gated", sizes.hidden, 2 * sizes.inner),
        ("down", sizes.inner, sizes.hidden),
        ("lm_head", sizes.hidden, sizes.vocab),
    ):
        if not wanted(name):
            continue
        weight = np.random.default_rng(0).standard_normal((outputs, inputs), np.float32)
        packed = [ops.pack_linear([weight])]
        num_bytes = packed[0].num_bytes
        copies = -(-BEYOND_CACHES // num_bytes)
        packed += [ops.pack_linear([weight]) for _ in range(copies - 1)]
        x, run = floats(rows, inputs), ops.gated_linear if name == "gated" else ops.linear

        def record(i: int, run: Linear = run, x: Buffer = x, packed: list[Any] = packed) -> Buffer:
            return run(x, packed[i])

        operations = 2 * inputs * outputs * rows
        yield Case(name, num_bytes, operations, record, copies, packed[0].shape.format)


def others(ops: CpuBackend, sizes: Sizes, batch: Batch, kept: type[np.generic]) -> Iterator[Case]:
    """Yield attention and what stands between the linears."""
    rows, num_pairs = len(batch.token_ids), int((batch.positions + 1).sum())
    num_keys = int(batch.positions[batch.query_starts[1:] - 1].sum()) + len(batch.block_tables)
    hidden, inner, head_dim = sizes.hidden, sizes.inner, sizes.head_dim
    qkv_width = (sizes.heads + 2 * sizes.kv_heads) * head_dim
    weight, x, residual = np.ones(hidden, np.float32), floats(rows, hidden), floats(rows, hidden)
    gate_up, qkv, q = floats(rows, 2 * inner), floats(rows, qkv_width), floats(rows, hidden)
    rotary = pack_rotary([1e6 ** (-i / head_dim) for i in range(0, head_dim, 2)])
    cell_bytes = 2 * sizes.kv_heads * head_dim * np.dtype(kept).itemsize
    copies = max(1, min(64, BEYOND_CACHES // (num_keys * cell_bytes)))
    shape = (int(batch.block_tables.max()) + 1, BLOCK_SIZE, sizes.kv_heads, head_dim)
    caches = [
        LayerPages(*(_kept(kept, shape, 2 * i + side) for side in (0, 1))) for i in range(copies)
    ]
    step = StepInputs()
    yield Case(
        "attention", num_keys * cell_bytes, 4 * hidden * num_pairs,
        lambda i: ops.paged_attention(q, step, caches[i]), copies,
    )  # fmt: skip
    yield Case(
        "rope", rows * (qkv_width * 4 + hidden * 4 + cell_bytes), 0,
        lambda i: ops.rope(qkv, step, caches[i], sizes.heads, rotary), copies,
    )  # fmt: skip
    yield Case(
        "add_rms_norm", rows * hidden * 16, 0,
        lambda i: ops.add_rms_norm(x, residual, weight, 1e-6)[0], MANY,
    )  # fmt: skip
    yield Case("silu_mul", rows * inner * 12, 0, lambda i: ops.silu_mul(gate_up), MANY)


def _kept(dtype: type[np.generic], shape: tuple[int, ...], seed: int) -> Any:
    """Values around 1, as float32 or as the bits of bfloat16, aligned as in a worker's arena."""
    rng = np.random.default_rng(seed)
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    out: Any = aligned_bytes(num_bytes, PAGE).view(dtype).reshape(shape)
    if dtype is np.float32:
        rng.random(out=out, dtype=np.float32)
    else:
        out[:] = rng.integers(0x3F00, 0x3FFF, shape, np.uint16)
    return out


def measure(ops: CpuBackend, machine: Machine, case: Case, batch: Batch) -> dict[str, Any]:
    """Run the copies in turn until a second has gone by; compare the fastest with the floor."""
    program = Program(ops, lambda: [case.record(i) for i in range(case.copies)][-1:])
    program.run(batch)
    times: list[float] = []
    while sum(times) < MIN_S or len(times) < MIN_RUNS:
        begin = time.perf_counter()
        program.run(batch)
        times.append(time.perf_counter() - begin)
    best_s = min(times) / case.copies
    ceilings = machine.look()
    row = {
        "operator": case.name,
        "us": round(best_s * 1e6, 1),
        "gb_per_s": round(case.num_bytes / best_s / 1e9, 2),
    }
    if case.num_operations:
        floor_s = ceilings.floor_s(case.num_bytes, case.num_operations, case.weights)
        row["gflop_per_s"] = round(case.num_operations / best_s / 1e9, 1)
        row["fraction_of_floor"] = round(floor_s / best_s, 3)
    return row | {
        "read_ceiling_gb_per_s": round(ceilings.read_gb_per_s, 2),
        "multiply_ceiling_tflop_per_s": round(ceilings.multiply_tflop_per_s, 3),
        "integer_ceiling_tflop_per_s": round(ceilings.integer_tflop_per_s, 3),
    }


if __name__ == "__main__":
    main()
