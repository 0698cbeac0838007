"""The parts that decoder-only families share, written against Backend.

Knows how a layer is wired. Knows no array library, no file and no family's weight names: a family
passes in the prefix and says which biases exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.backends.base import Array, Backend, LayerCache, Linear, Step
from worker.models.config import ModelConfig


class Weights(Protocol):
    """The tensors of a model folder by name, already validated."""

    def read(self, name: str) -> Array: ...


def linear(ops: Backend, weights: Weights, names: Sequence[str], *, bias: bool = False) -> Linear:
    """Pack the weights `names` (without suffix), stacked along their outputs."""
    return ops.pack_linear(
        [weights.read(f"{name}.weight") for name in names],
        [weights.read(f"{name}.bias") for name in names] if bias else [],
    )


class RmsNorm:
    """Normalises rows; given a residual it adds that first and returns the sum as well."""

    def __init__(self, ops: Backend, weight: Array, eps: float) -> None:
        self._ops = ops
        self._weight = ops.pack_vector(weight)
        self._eps = eps

    def __call__(self, x: Array) -> Array:
        return self._ops.rms_norm(x, self._weight, self._eps)

    def add(self, x: Array, residual: Array) -> tuple[Array, Array]:
        return self._ops.add_rms_norm(x, residual, self._weight, self._eps)


class Attention:
    """Grouped-query attention with rotary positions over the paged cache."""

    def __init__(
        self, ops: Backend, weights: Weights, prefix: str, config: ModelConfig, *, qkv_bias: bool
    ) -> None:
        self._ops = ops
        self._config = config
        self._qkv = linear(
            ops, weights, [f"{prefix}.{p}_proj" for p in ("q", "k", "v")], bias=qkv_bias
        )
        self._out = linear(ops, weights, [f"{prefix}.o_proj"])

    def __call__(self, x: Array, step: Step, cache: LayerCache) -> Array:
        qkv = self._ops.linear(x, self._qkv)
        q = self._ops.rope(qkv, step, cache, self._config.num_heads, self._config.rope_theta)
        return self._ops.linear(self._ops.paged_attention(q, step, cache), self._out)


class GatedMlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, ops: Backend, weights: Weights, prefix: str) -> None:
        self._ops = ops
        self._gate_up = linear(ops, weights, [f"{prefix}.gate_proj", f"{prefix}.up_proj"])
        self._down = linear(ops, weights, [f"{prefix}.down_proj"])

    def __call__(self, x: Array) -> Array:
        return self._ops.linear(self._ops.silu_mul(self._ops.linear(x, self._gate_up)), self._down)


class DecoderLayer:
    """norm → attention → add → norm → MLP; the second addition is left to the next norm."""

    def __init__(
        self, ops: Backend, weights: Weights, prefix: str, config: ModelConfig, *, qkv_bias: bool
    ) -> None:
        eps = config.rms_norm_eps
        self._norm_in = RmsNorm(ops, weights.read(f"{prefix}.input_layernorm.weight"), eps)
        self._attention = Attention(ops, weights, f"{prefix}.self_attn", config, qkv_bias=qkv_bias)
        self._norm_mlp = RmsNorm(
            ops, weights.read(f"{prefix}.post_attention_layernorm.weight"), eps
        )
        self._mlp = GatedMlp(ops, weights, f"{prefix}.mlp")

    def __call__(
        self, x: Array, residual: Array | None, step: Step, cache: LayerCache
    ) -> tuple[Array, Array]:
        """Return (what is still to be added, residual)."""
        if residual is None:
            normed, residual = self._norm_in(x), x
        else:
            normed, residual = self._norm_in.add(x, residual)
        normed, residual = self._norm_mlp.add(self._attention(normed, step, cache), residual)
        return self._mlp(normed), residual
