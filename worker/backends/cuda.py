"""CudaBackend: the list of operators, each a launch of our own kernels, none on the host.

The residual stream is float32, what linears take is the model's dtype. A linear is launched by
whoever takes its result, in the form it needs: attention its heads, the gate its product, the next
norm its sums. Decode and prefill kernels give the same bits: which one runs is a matter of speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from worker.backends.base import Model, Outputs
from worker.backends.cuda_attention import CudaAttention
from worker.backends.cuda_cache import LayerPages
from worker.backends.cuda_graph import DecodeGraphs
from worker.backends.cuda_linears import CudaLinears, Pending
from worker.backends.cuda_loading import Loading
from worker.backends.cuda_logits import CudaLogits
from worker.backends.cuda_step import CudaStep, make_step
from worker.backends.cuda_weights import STORAGE, CudaLinear, from_storage, upload
from worker.backends.gpu import Array, Gpu, Scratch
from worker.batch import Batch, Workspace
from worker.errors import KernelError
from worker.kernels.checks import Floats, Ints, to_float32
from worker.kernels.instances import HEAD_DIMS
from worker.kernels.rms_norm import head_norm_reference
from worker.kernels.rope import Rotary, pack_rotary
from worker.kernels.structs import HEADS, SPLIT, part_floats

if TYPE_CHECKING:
    from worker.backends.cuda_sampler import CudaSampler

DRAWN_TOKENS = 1 << 14
"""Room for tokens that are drawn and not read yet, of all steps that have begun."""
i32, f32 = np.int32, np.float32


class Taken(NamedTuple):
    """Rows of an array, for the next norm to read."""

    source: Array
    rows: Array


class Normed(NamedTuple):
    """Projected q, k and v, whose heads are to be normalised while they are turned."""

    qkv: Pending
    q_weight: Array
    k_weight: Array
    eps: float


class CudaBackend:
    """Operators as in `backends/base.py`, for one model's sizes, on one GPU."""

    takes_rows_early = False
    """The rows are taken by the norm that reads them."""

    def __init__(
        self,
        gpu: Gpu,
        dtype: str,
        sizes: tuple[int, int, int],
        longest: int,
        is_int8: bool = False,
        is_tied: bool = False,
    ) -> None:
        """dtype: f32, bf16 or f16; sizes: heads, key heads, head_dim; `longest`: positions.

        is_int8: linears are quantised; is_tied: the table is one of them, for it is the head too.
        Raises KernelError for sizes that no kernel was built for.
        """
        num_heads, num_kv_heads, head_dim = sizes
        if dtype not in STORAGE:
            raise KernelError(f"dtype is {dtype!r}, allowed: {', '.join(STORAGE)}")
        if head_dim not in HEAD_DIMS:
            raise KernelError(f"head_dim is {head_dim}, the CUDA kernels have {HEAD_DIMS}")
        if num_heads // num_kv_heads > 16:
            raise KernelError(f"{num_heads} heads over {num_kv_heads} are more than 16 a key head")
        self.scratch = Scratch(gpu)
        self.gpu = gpu
        self.dtype = dtype
        self._storage = STORAGE[dtype]
        self._sizes = sizes
        self._is_int8 = is_int8
        self._is_tied = is_tied
        self._linears = CudaLinears(gpu, dtype)
        self._attention = CudaAttention(gpu, dtype, sizes)
        self._longest = longest
        self._vocab_size = 0
        self._num_finals = 0
        self.loading = Loading(gpu)
        self.weight_bytes = 0
        self.graph_bytes = 0
        """Buffers of the graphs of the pass and the sampler that were made last."""
        self._drawn = gpu.empty(4 * DRAWN_TOKENS).view(i32)

    @property
    def fingerprint(self) -> str:
        weights = f"{self.dtype} int8" if self._is_int8 else self.dtype
        return f"cuda {self.gpu.name} {weights} split={SPLIT}"

    def sampler(self, vocab_size: int) -> CudaSampler:
        """Return what draws from the logits of a pass, on the device where it can."""
        from worker.backends.cuda_sampler import CudaSampler  # brings the host sampler along

        sampler = CudaSampler(self.gpu, self.scratch, vocab_size, self._drawn)
        self.graph_bytes += sampler.num_bytes
        return sampler

    def begin(self, batch: Batch) -> CudaStep:
        """Upload a batch, and first whatever weights are not there yet."""
        self.loading.finish()
        num_heads, num_kv_heads, _ = self._sizes
        return make_step(self.scratch, batch, num_heads // num_kv_heads)

    def graph_bytes_per_block(self, block_size: int) -> int:
        """Return by how much the buffers of the graphs grow with every block of a cache."""
        _, num_kv_heads, head_dim = self._sizes
        return math.ceil(4 * part_floats(num_kv_heads, head_dim) * block_size / SPLIT)

    def bind(
        self, model: Model, caches: Sequence[LayerPages], workspace: Workspace | None = None
    ) -> Callable[[Batch], Outputs]:
        """Return a function from a batch to logits and states, as float32 arrays of the host.

        The last block of `caches` is spare: padded rows write there.
        """
        self.loading.finish()
        num_blocks, block_size = caches[0].keys.shape[0] - 1, caches[0].keys.shape[2]

        def launch(scratch: Scratch, step: CudaStep) -> Outputs:
            whole, self.scratch, self._num_finals = self.scratch, scratch, 0
            try:
                pending, states = model.forward(step, caches)
                return Outputs(self._logits(pending), states)
            finally:
                self.scratch = whole

        graphs = DecodeGraphs(
            self.gpu, launch, num_blocks, block_size, -(-self._longest // block_size)
        )
        graphs.reserve()
        self.graph_bytes = graphs.num_bytes

        def forward(batch: Batch) -> Outputs:
            is_watched = model.ops is not self  # whoever looks on wants each result as it arises
            begun = self.gpu.mark()
            outs = None if is_watched else graphs.run(batch)
            logits, states = outs or launch(self.scratch, self.begin(batch))
            rows = range(len(batch.logit_rows))
            bucket = len(logits) if outs else 0
            on_device = CudaLogits(self.gpu, logits, rows, self._vocab_size, begun, bucket)
            read = self._read_states(states) if len(states) else np.zeros(states.shape, f32)
            return Outputs(on_device, read)

        return forward

    def _logits(self, pending: Pending) -> Array:
        self._vocab_size = pending.linear.num_outputs
        return self._linears.run(self.scratch, pending, "logits", "f32", "plain")

    def _read_states(self, states: Array) -> Floats:
        return from_storage(self.gpu.read(states), self.dtype)

    # ── weights ──────────────────────────────────────────────────────────────────────────────

    def pack_vector(self, weight: Floats) -> Array:
        """A norm weight stays float32; a table becomes a linear, which the embedding reads too."""
        if weight.ndim == 1:
            vector = upload(self.gpu, to_float32(weight))
            self.weight_bytes += vector.nbytes
            return vector
        return self._pack([weight], [], self._is_int8 and self._is_tied)

    def pack_linear(self, weights: Sequence[Floats], biases: Sequence[Floats] = ()) -> CudaLinear:
        return self._pack(weights, biases, self._is_int8)

    def _pack(
        self, weights: Sequence[Floats], biases: Sequence[Floats], is_int8: bool
    ) -> CudaLinear:
        linear = self.loading.linear(self.dtype, weights, biases, is_int8)
        self.weight_bytes += linear.num_bytes
        return linear

    def pack_tied(self, table: CudaLinear) -> CudaLinear:
        return table

    def pack_rotary(self, inverse_frequencies: Sequence[float], attention_factor: float) -> Rotary:
        packed = pack_rotary(inverse_frequencies, attention_factor)
        return packed._replace(frequencies=upload(self.gpu, packed.frequencies))

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def embedding(self, table: CudaLinear, token_ids: Array) -> Array:
        out = self.scratch.take("residual", (len(token_ids), table.num_inputs), f32)
        form = "embedding" if self.dtype == "f32" else "embedding_packed"
        kind = self.dtype if table.scale is None else "int8"
        arguments = (out, table.weight, table.scale, token_ids, self._drawn, i32(table.num_inputs))
        self.gpu.launch(f"{form}_{kind}", (len(token_ids),), 128, arguments)
        return out

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return self._norm(None, x, None, weight, eps)

    def add_rms_norm(self, x: Any, residual: Any, weight: Array, eps: float) -> tuple[Array, Array]:
        if isinstance(x, Taken):
            return self._norm(x.source, residual.source, x.rows, weight, eps), None
        return self._norm(
            self._linears.sums(self.scratch, x), residual, None, weight, eps
        ), residual

    def _norm(
        self, x: Array | None, residual: Array, rows: Array | None, weight: Array, eps: float
    ) -> Array:
        count, width = len(residual) if rows is None else len(rows), residual.shape[1]
        name = "normed"
        if rows is not None:  # logits are not launched yet when the states' rows are normalised
            name = f"final_{self._num_finals}"
            self._num_finals += 1
        out = self.scratch.take(name, (count, width), self._storage)
        if count:
            arguments = (out, residual, x, weight, rows, i32(width), f32(eps))
            self.gpu.launch(f"add_rms_norm_{self.dtype}", (count,), 256, arguments)
        return out

    def linear(self, x: Array, linear: CudaLinear) -> Pending:
        return Pending(x, linear)

    def head_norm(
        self, qkv: Any, q_weight: Array, k_weight: Array, num_heads: int, eps: float
    ) -> Normed:
        return Normed(qkv, q_weight, k_weight, eps)

    def rope(
        self, qkv: Any, step: CudaStep, cache: LayerPages, num_heads: int, rotary: Rotary
    ) -> Array:
        normed = qkv if isinstance(qkv, Normed) else Normed(qkv, None, None, 0.0)
        projected = self._linears.run(self.scratch, normed.qkv, "qkv", self.dtype, "plain")
        _, num_kv_heads, head_dim = self._sizes
        q = self.scratch.take("q", (step.num_tokens, num_heads, head_dim), self._storage)
        heads = np.array((num_heads, num_kv_heads, step.page_shift, normed.eps), HEADS)
        arguments = (q, cache.keys, cache.values, projected, self._turns(step, rotary), step.cells,
                     normed.q_weight, normed.k_weight, heads)  # fmt: skip
        grid = (step.num_tokens, -(-(num_heads + 2 * num_kv_heads) // 4))
        self.gpu.launch(f"rope_{self.dtype}_{head_dim}", grid, 128, arguments)
        return q

    def _turns(self, step: CudaStep, rotary: Rotary) -> Array:
        if not step.turns:
            half = self._sizes[2] // 2
            turns = self.scratch.take("turns", (step.num_tokens, half, 2), f32)
            step.turns.append(turns)
            arguments = (turns, step.positions, rotary.frequencies, f32(rotary.attention_factor),
                         i32(step.num_tokens), i32(half))  # fmt: skip
            self.gpu.launch("rope_table", (-(-step.num_tokens * half // 128),), 128, arguments)
        return step.turns[0]

    def paged_attention(
        self, q: Array, step: CudaStep, cache: LayerPages, window: int = 0
    ) -> Array:
        return self._attention.run(self.scratch, q, step, cache, window)

    def gated_linear(self, x: Array, linear: CudaLinear) -> Array:
        return self.silu_mul(self.linear(x, linear))

    def silu_mul(self, gate_up: Pending) -> Array:
        return self._linears.silu_mul(self.scratch, gate_up)

    def take_rows(self, x: Any, rows: Array) -> Taken:
        return Taken(self._linears.sums(self.scratch, x), rows)

    def tap(self, name: str, layer: int, tensor: Any) -> None:
        pass

    def stored_keys(self, step: CudaStep, cache: LayerPages) -> Floats:
        cells, block_size = self.gpu.read(step.cells), cache.keys.shape[2]
        keys = self.gpu.read(cache.keys)[cells // block_size, :, cells % block_size]
        return from_storage(keys, self.dtype)

    def to_host(self, tensor: Any) -> Floats:
        """Launch what is pending, wait, and copy; for whoever looks on."""
        if isinstance(tensor, Normed):
            weights = (self.gpu.read(tensor.q_weight), self.gpu.read(tensor.k_weight))
            qkv = self.to_host(tensor.qkv)
            return head_norm_reference(qkv, *weights, self._sizes[0], tensor.eps)
        if not isinstance(tensor, Pending):
            values = self.gpu.read(tensor)
            return from_storage(values, self.dtype if values.dtype == np.uint16 else "f32")
        return self._linears.watched(self.scratch, tensor)

    def rope_shift(self, cache: LayerPages, cells: Ints, delta: int, rotary: Rotary) -> None:
        num_heads, num_kv_heads, head_dim = self._sizes
        shift = cache.keys.shape[2].bit_length() - 1
        heads = np.array((num_heads, num_kv_heads, shift, 0.0), HEADS)
        place = upload(self.gpu, cells)
        arguments = (cache.keys, place, rotary.frequencies, i32(delta), heads)
        self.gpu.launch(f"rope_shift_{self.dtype}_{head_dim}", (len(cells),), 32, arguments)
