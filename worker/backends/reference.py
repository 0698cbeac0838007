"""ReferenceBackend: the NumPy references bound to the list of operators.

Compute and cache are float32. The BLAS has one thread; more work on pieces that do not depend on
how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from worker.backends.base import Model, Outputs
from worker.backends.blas import use_one_thread
from worker.batch import Batch, Workspace
from worker.kernels.checks import Floats, Ints, Stored, to_float32
from worker.kernels.crew import Crew
from worker.kernels.embedding import embedding_reference
from worker.kernels.linear import PackedLinear, linear_reference, pack_linear, pack_tied
from worker.kernels.paged_attention import (
    SPLIT,
    AttentionPlan,
    paged_attention_reference,
    plan_attention,
)
from worker.kernels.rms_norm import (
    add_rms_norm_reference,
    head_norm_reference,
    rms_norm_reference,
)
from worker.kernels.rope import (
    Rotary,
    Rotation,
    pack_rotary,
    rope_reference,
    rope_shift_reference,
    rotation,
    store_kv_reference,
)
from worker.kernels.silu_mul import silu_mul_reference
from worker.kv_cache import LayerPages
from worker.sampler import Sampler


@dataclass(slots=True)
class ReferenceStep:
    """A batch with what its layers share, made by the first that needs it."""

    token_ids: Ints
    logit_rows: Ints
    state_rows: Ints
    batch: Batch
    plans: dict[int, AttentionPlan] = field(default_factory=dict)
    """By window."""
    rotation: Rotation | None = None

    def plan(self, window: int) -> AttentionPlan:
        if window not in self.plans:
            batch = self.batch
            self.plans[window] = plan_attention(
                batch.query_starts, batch.positions, batch.block_tables, batch.block_size, window
            )
        return self.plans[window]


class ReferenceBackend:
    """Operators as in `backends/base.py`, in plain NumPy."""

    takes_rows_early = True

    def __init__(self, num_threads: int = 1) -> None:
        self._blas = use_one_thread()
        self._crew = Crew(num_threads)
        self._tiles: set[int] = set()
        self.weight_bytes = 0

    @property
    def fingerprint(self) -> str:
        tiles = "+".join(map(str, sorted(self._tiles)))
        blas = f"numpy={np.__version__} {self._blas}"
        return f"cpu reference float32 {blas} tile={tiles} split={SPLIT}"

    def sampler(self, vocab_size: int) -> Sampler:
        """Return what draws from the logits of a pass."""
        return Sampler(vocab_size)

    def bind(
        self, model: Model, caches: Sequence[LayerPages], workspace: Workspace | None = None
    ) -> Callable[[Batch], Outputs]:
        """Return a function from a batch to what the model's forward returns.

        NumPy allocates what the operators return: it needs no workspace.
        """

        def forward(batch: Batch) -> Outputs:
            step = ReferenceStep(batch.token_ids, batch.logit_rows, batch.state_rows, batch)
            with np.errstate(all="ignore"):  # what is not finite shows in the logits of its row
                return model.forward(step, caches)

        return forward

    def pack_vector(self, weight: Stored) -> Floats:
        vector = to_float32(weight)
        self.weight_bytes += vector.nbytes
        return vector

    def pack_linear(self, weights: Sequence[Stored], biases: Sequence[Stored] = ()) -> PackedLinear:
        parts, more = [to_float32(one) for one in weights], [to_float32(one) for one in biases]
        self.weight_bytes += sum(one.nbytes for one in (*parts, *more))
        return self._remember(pack_linear(parts, more))

    def pack_tied(self, table: Floats) -> PackedLinear:
        return self._remember(pack_tied(table))

    def _remember(self, packed: PackedLinear) -> PackedLinear:
        self._tiles.add(packed.tile)
        return packed

    def pack_rotary(self, inverse_frequencies: Sequence[float], attention_factor: float) -> Rotary:
        return pack_rotary(inverse_frequencies, attention_factor)

    def embedding(self, table: Floats, token_ids: Ints) -> Floats:
        return embedding_reference(table, token_ids)

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        return rms_norm_reference(x, weight, eps)

    def add_rms_norm(
        self, x: Floats, residual: Floats, weight: Floats, eps: float
    ) -> tuple[Floats, Floats]:
        return add_rms_norm_reference(x, residual, weight, eps)

    def linear(self, x: Floats, linear: PackedLinear) -> Floats:
        return linear_reference(x, linear, self._crew)

    def head_norm(
        self, qkv: Floats, q_weight: Floats, k_weight: Floats, num_heads: int, eps: float
    ) -> Floats:
        return head_norm_reference(qkv, q_weight, k_weight, num_heads, eps)

    def rope(
        self, qkv: Floats, step: ReferenceStep, cache: LayerPages, num_heads: int, rotary: Rotary
    ) -> Floats:
        if step.rotation is None:
            step.rotation = rotation(step.batch.positions, rotary)
        num_kv_heads, head_dim = cache.keys.shape[2:]
        heads = qkv.reshape(len(qkv), -1, head_dim)
        turned = rope_reference(heads[:, : num_heads + num_kv_heads], step.rotation)
        values = heads[:, num_heads + num_kv_heads :]
        store_kv_reference(turned[:, num_heads:], values, step.batch.cells, cache)
        return np.ascontiguousarray(turned[:, :num_heads])

    def paged_attention(
        self, q: Floats, step: ReferenceStep, cache: LayerPages, window: int = 0
    ) -> Floats:
        return paged_attention_reference(q, step.plan(window), cache).reshape(len(q), -1)

    def gated_linear(self, x: Floats, linear: PackedLinear) -> Floats:
        return self.silu_mul(self.linear(x, linear))

    def silu_mul(self, gate_up: Floats) -> Floats:
        return silu_mul_reference(gate_up)

    def take_rows(self, x: Floats, rows: Ints) -> Floats:
        return embedding_reference(x, rows)

    def tap(self, name: str, layer: int, tensor: Floats) -> None:
        pass

    def stored_keys(self, step: ReferenceStep, cache: LayerPages) -> Floats:
        return cache.keys.reshape(-1, *cache.keys.shape[2:])[step.batch.cells]

    def to_host(self, tensor: Floats) -> Floats:
        return np.array(tensor, np.float32)

    def rope_shift(self, cache: LayerPages, cells: Ints, delta: int, rotary: Rotary) -> None:
        rope_shift_reference(cache.keys, cells, delta, rotary)
