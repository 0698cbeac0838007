"""CpuBackend: the compiled kernels. A model's forward is recorded once and replayed in one call.

The operators compute nothing when they are called: each notes a record and returns the buffer that
will hold its result. `bind` has a model record its forward, and `Program` runs the records.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from worker.backends.base import Model, Outputs
from worker.backends.program import Live, Operators, Program, Sink
from worker.batch import Batch, PassLimits, Workspace
from worker.errors import KernelError
from worker.kernels.checks import Floats, Ints, Stored, require_places, to_float32
from worker.kernels.crew import available_cores
from worker.kernels.draw_passes import DrawPasses
from worker.kernels.library import Level, Library
from worker.kernels.packed import (
    Format,
    PackedWeight,
    pack_weight,
    shape_of,
    stored_format,
)
from worker.kernels.pages import keys_of
from worker.kernels.records import (
    Buffer,
    CStep,
    Kind,
    Record,
    Rows,
    Word,
    address_of,
)
from worker.kernels.rope import Rotary, pack_rotary
from worker.kv_cache import LayerPages
from worker.packed_cache import PackedCache
from worker.sampler import Sampler

MAX_HEAD_DIM = 256
"""As in `operands.h`."""
GROUP = 16
"""As in `attention.h`."""
ATTENTION_SCRATCH = (64 + 4) * 32 * (2 + MAX_HEAD_DIM) * 4
"""Bytes, as in `attention.h`."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model reads of a step while it records: names, not numbers."""

    token_ids: None = None
    logit_rows: Rows = Rows.LOGITS
    state_rows: Rows = Rows.STATES


class CpuBackend:
    """Operators as in `backends/base.py`; `weights` is the format linears are packed in."""

    takes_rows_early = True

    def __init__(
        self, library: Library, level: Level, weights: Format, num_threads: int = 0
    ) -> None:
        self.level = level
        self.library = library
        self.weights = weights
        self.num_threads = num_threads or available_cores()
        self.pool = library.open(self.num_threads)
        self._sink: Sink | None = None
        self.weight_bytes = 0
        self.cache: PackedCache | None = None
        """Where packed linears come from and go to, while a model is loaded."""
        self._turns: Buffer | None = None
        """Of the forward that is being recorded, once its first layer has made them."""
        weakref.finalize(self, library.close, self.pool)

    @property
    def fingerprint(self) -> str:
        """Levels agree bit for bit, so that none is named."""
        return f"cpu {self.weights.name.lower()} kernels=4"

    @property
    def weight_layout(self) -> str:
        """Say how packed weights lie: one level has a layout of its own for bf16 (`linear.h`)."""
        in_pairs = self.weights is Format.BF16 and self.level is Level.AVX512_BF16
        return self.weights.name + ("_PAIRS" if in_pairs else "")

    def sampler(self, vocab_size: int) -> Sampler:
        """Return what draws from the logits of a pass."""
        return Sampler(vocab_size, DrawPasses(self.library, self.level))

    def workspace_bytes(
        self, model: Model, caches: Sequence[LayerPages], limits: PassLimits
    ) -> int:
        """Return the memory that passes within `limits` work in; `caches` may be of any size.

        0 while somebody looks on: then every result is an array of its own.
        """
        if model.ops is not self:
            return 0
        return Program(self, partial(model.forward, StepInputs(), caches)).num_bytes(limits)

    def bind(
        self, model: Model, caches: Sequence[LayerPages], workspace: Workspace | None = None
    ) -> Callable[[Batch], Outputs]:
        """Return a function from a batch to what the model's forward returns, as float32 arrays.

        They are valid until it is called again. Without a workspace it takes memory as it needs.
        """
        program: Program | None = None
        operators = partial(model.forward, StepInputs(), caches)

        def forward(batch: Batch) -> Outputs:
            nonlocal program
            if model.ops is not self:  # somebody looks on, and wants every result as it arises
                results = self.record(Live(self, batch), operators)
                return Outputs(*(buffer.given for buffer in results))
            if program is None:
                program = Program(self, operators, workspace)
            return Outputs(*program.run(batch))

        return forward

    def record(self, sink: Sink, operators: Operators) -> Sequence[Buffer]:
        """Have `operators` go into `sink`; return the buffers of their results."""
        self._sink, self._turns = sink, None
        try:
            return operators()
        finally:
            self._sink = None

    def run(self, ops: int, num_ops: int, step: int) -> None:
        """Run packed records at an address for the CStep at an address."""
        if failed := self.library.run(self.pool, self.level, ops, num_ops, step):
            raise KernelError(f"record {failed - 1}: the library has no such operator")

    def _add(self, kind: Kind, rows: Rows, *words: Word) -> None:
        if self._sink is None:
            raise KernelError(f"{kind.name.lower()}: called outside of a recording")
        self._sink.add(Record(kind, rows, words))

    # ── weights ──────────────────────────────────────────────────────────────────────────────

    def pack_vector(self, weight: Stored) -> Stored:
        if weight.ndim == 2:  # an embedding table stays where it is, and is read row by row
            stored_format("embedding", "table", weight)
            table = np.ascontiguousarray(weight)
            self.weight_bytes += table.nbytes
            return table
        vector = to_float32(weight)
        self.weight_bytes += vector.nbytes
        return vector

    def pack_linear(self, weights: Sequence[Stored], biases: Sequence[Stored] = ()) -> PackedWeight:
        shape = shape_of(weights, self.weights)

        def pack() -> PackedWeight:
            return pack_weight(self.library, self.pool, self.level, weights, biases, shape)

        packed = pack() if self.cache is None else self.cache.take(shape, biases, pack)
        self.weight_bytes += packed.num_bytes
        return packed

    def pack_tied(self, table: Stored) -> PackedWeight:
        self.weight_bytes -= table.nbytes  # a step reads a few rows of it, and the head whole
        return self.pack_linear([table])

    def pack_rotary(self, inverse_frequencies: Sequence[float], attention_factor: float) -> Rotary:
        return pack_rotary(inverse_frequencies, attention_factor)

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def embedding(self, table: Stored, token_ids: None) -> Buffer:
        out = Buffer(Rows.TOKENS, table.shape[1])
        words = (table, out, out.width, stored_format("embedding", "table", table))
        self._add(Kind.EMBEDDING, Rows.TOKENS, *words)
        return out

    def take_rows(self, x: Buffer, rows: Rows) -> Buffer:
        out = Buffer(rows, x.width)
        self._add(Kind.TAKE_ROWS, rows, x, out, x.width)
        return out

    def rms_norm(self, x: Buffer, weight: Floats, eps: float) -> Buffer:
        _require("rms_norm", "x", x, len(weight))
        out = Buffer(x.rows, x.width)
        self._add(Kind.RMS_NORM, x.rows, x, weight, out, x.width, eps)
        return out

    def add_rms_norm(
        self, x: Buffer, residual: Buffer, weight: Floats, eps: float
    ) -> tuple[Buffer, Buffer]:
        _require("add_rms_norm", "x", x, len(weight))
        _require("add_rms_norm", "residual", residual, x.width, x.rows)
        out, total = Buffer(x.rows, x.width), Buffer(x.rows, x.width)
        self._add(Kind.ADD_RMS_NORM, x.rows, x, residual, weight, out, total, x.width, eps)
        return out, total

    def linear(self, x: Buffer, linear: PackedWeight) -> Buffer:
        return self._linear(x, linear, 0)

    def gated_linear(self, x: Buffer, linear: PackedWeight) -> Buffer:
        gated = Buffer(x.rows, _half("gated_linear", linear.shape.num_outputs))
        self._linear(x, linear, gated)
        return gated

    def _linear(self, x: Buffer, linear: PackedWeight, gated: Buffer | int) -> Buffer:
        shape = linear.shape
        _require("linear", "x", x, shape.num_inputs)
        out = Buffer(x.rows, shape.num_outputs)
        scratch = Buffer(x.rows, shape.scratch_width, fixed_bytes=shape.scratch_rest)
        sizes = (shape.num_inputs, shape.num_outputs, shape.format, shape.group)
        words = (x, linear.weight, linear.scales, linear.bias, out, scratch, *sizes)
        self._add(Kind.LINEAR, x.rows, *words, gated)
        return out

    def head_norm(
        self, qkv: Buffer, q_weight: Floats, k_weight: Floats, num_heads: int, eps: float
    ) -> Buffer:
        head_dim = len(q_weight)
        num_kv_heads = (qkv.width // head_dim - num_heads) // 2
        _require("head_norm", "qkv", qkv, (num_heads + 2 * num_kv_heads) * head_dim)
        out = Buffer(qkv.rows, qkv.width)
        heads = (num_heads, num_kv_heads, head_dim)
        self._add(Kind.HEAD_NORM, qkv.rows, qkv, q_weight, k_weight, out, *heads, eps)
        return out

    def rope(
        self, qkv: Buffer, step: StepInputs, cache: LayerPages, num_heads: int, rotary: Rotary
    ) -> Buffer:
        num_kv_heads, head_dim = cache.keys.shape[2:]
        _require_pages("rope", cache)
        _require("rope", "qkv", qkv, (num_heads + 2 * num_kv_heads) * head_dim, Rows.TOKENS)
        out = Buffer(Rows.TOKENS, num_heads * head_dim)
        heads = (num_heads, num_kv_heads, head_dim, stored_format("rope", "keys", cache.keys))
        turns = self._rotation(rotary)
        self._add(Kind.ROPE, Rows.TOKENS, qkv, out, cache.keys, cache.values, *heads, turns)
        return out

    def _rotation(self, rotary: Rotary) -> Buffer:
        """Return the turns of the step's tokens; the first layer of a recording makes them."""
        if self._turns is None:
            head_dim = 2 * len(rotary.frequencies)
            self._turns = Buffer(Rows.TOKENS, head_dim)
            words = (rotary.frequencies, self._turns, head_dim, float(rotary.attention_factor))
            self._add(Kind.ROTATION, Rows.TOKENS, *words)
        return self._turns

    def paged_attention(
        self, q: Buffer, step: StepInputs, cache: LayerPages, window: int = 0
    ) -> Buffer:
        num_kv_heads, head_dim = cache.keys.shape[2:]
        if q.width % (num_kv_heads * head_dim):
            raise KernelError(
                f"paged_attention: q has width {q.width}, expected a multiple of "
                f"{num_kv_heads * head_dim}"
            )
        _require_pages("paged_attention", cache)
        out = Buffer(Rows.TOKENS, q.width)
        heads = (q.width // head_dim, num_kv_heads, head_dim)
        scratch = Buffer(Rows.TOKENS, 0, fixed_bytes=ATTENTION_SCRATCH)
        kept = stored_format("paged_attention", "keys", cache.keys)
        words = (q, cache.keys, cache.values, out, *heads, kept, window, scratch)
        self._add(Kind.ATTENTION, Rows.TOKENS, *words)
        return out

    def silu_mul(self, gate_up: Buffer) -> Buffer:
        out = Buffer(gate_up.rows, _half("silu_mul", gate_up.width))
        self._add(Kind.SILU_MUL, gate_up.rows, gate_up, out, out.width)
        return out

    def tap(self, name: str, layer: int, tensor: Buffer) -> None:
        pass

    # ── beside the forward pass ──────────────────────────────────────────────────────────────

    def stored_keys(self, step: StepInputs, cache: LayerPages) -> Floats:
        assert isinstance(self._sink, Live), "only who looks on asks, and then records run at once"
        return to_float32(keys_of(cache.keys, self._sink.batch.cells))

    def to_host(self, tensor: Buffer | Floats) -> Floats:
        given = tensor.given if isinstance(tensor, Buffer) else tensor
        return np.array(given, np.float32)

    def rope_shift(self, cache: LayerPages, cells: Ints, delta: int, rotary: Rotary) -> None:
        num_blocks, block_size = cache.keys.shape[:2]
        require_places("rope_shift", "cells", cells, num_blocks * block_size)
        _require_pages("rope_shift", cache)
        kept = stored_format("rope_shift", "keys", cache.keys)
        words = (cache.keys, *cache.keys.shape[2:], kept, rotary.frequencies, delta)
        record = Record(Kind.ROPE_SHIFT, Rows.TOKENS, words).pack(0)
        step = CStep(num_tokens=len(cells), block_size=block_size, cells=cells.ctypes.data)
        self.run(address_of(record), 1, ctypes.addressof(step))


def _require_pages(operator: str, cache: LayerPages) -> None:
    """Raise KernelError unless attention can read pages of this size and heads of this width."""
    _, block_size, _, head_dim = cache.keys.shape
    if block_size not in (1, GROUP):
        raise KernelError(f"{operator}: block_size is {block_size}, allowed: 1 or {GROUP}")
    if head_dim > MAX_HEAD_DIM or head_dim % 2:
        raise KernelError(
            f"{operator}: head_dim is {head_dim}, allowed: at most {MAX_HEAD_DIM}, and even"
        )


def _half(operator: str, width: int) -> int:
    if width % 2:
        raise KernelError(f"{operator}: gate_up has {width} columns, expected an even number")
    return width // 2


def _require(operator: str, name: str, x: Buffer, width: int, rows: Rows | None = None) -> None:
    """Raise KernelError unless `x` has this width, and these rows when given."""
    if x.width != width:
        raise KernelError(f"{operator}: {name} has width {x.width}, expected {width}")
    if rows is not None and x.rows is not rows:
        raise KernelError(f"{operator}: {name} runs over {x.rows.name}, expected {rows.name}")
