"""The parts that decoder-only families share, written against Backend.

Knows how a layer is wired. Knows no array library and no file: a family says which biases and norms
exist. A part holds packed weights; the operators come with each call, so that whoever wants to look
on can stand before them. The name of each intermediate is where it arises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.backends.base import Array, Backend, LayerCache, Linear, Rotary, Step
from worker.models.config import ModelConfig


class Weights(Protocol):
    """The tensors of a model folder by name, already validated: float32, float16, or bfloat16 as
    uint16. A backend takes all three."""

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
        self._weight = ops.pack_vector(weight)
        self._eps = eps

    def __call__(self, ops: Backend, x: Array) -> Array:
        return ops.rms_norm(x, self._weight, self._eps)

    def add(self, ops: Backend, x: Array, residual: Array) -> tuple[Array, Array]:
        return ops.add_rms_norm(x, residual, self._weight, self._eps)


class HeadNorm:
    """Normalises the heads of q and k."""

    def __init__(self, ops: Backend, weights: Weights, prefix: str, config: ModelConfig) -> None:
        self._q = ops.pack_vector(weights.read(f"{prefix}.q_norm.weight"))
        self._k = ops.pack_vector(weights.read(f"{prefix}.k_norm.weight"))
        self._num_heads = config.num_heads
        self._eps = config.rms_norm_eps

    def __call__(self, ops: Backend, qkv: Array) -> Array:
        return ops.head_norm(qkv, self._q, self._k, self._num_heads, self._eps)


class Attention:
    """Grouped-query attention with rotary positions over the paged cache."""

    def __init__(
        self,
        ops: Backend,
        weights: Weights,
        config: ModelConfig,
        layer: int,
        rotary: Rotary,
    ) -> None:
        prefix, wiring = f"model.layers.{layer}.self_attn", config.wiring
        self._layer = layer
        self._num_heads = config.num_heads
        self._window = config.windows[layer]
        self._rotary = rotary
        names = [f"{prefix}.{p}_proj" for p in ("q", "k", "v")]
        self._qkv = linear(ops, weights, names, bias=wiring.qkv_bias)
        self._norm = HeadNorm(ops, weights, prefix, config) if wiring.head_norm else None
        self._out = linear(ops, weights, [f"{prefix}.o_proj"], bias=wiring.out_bias)

    def mix(self, ops: Backend, x: Array, step: Step, cache: LayerCache) -> Array:
        """Store keys and values; return the heads' outputs, [T, Q], which `out` joins."""
        qkv = ops.linear(x, self._qkv)
        ops.tap("qkv", self._layer, qkv)
        if self._norm is not None:
            qkv = self._norm(ops, qkv)
            ops.tap("head_norm", self._layer, qkv)
        q = ops.rope(qkv, step, cache, self._num_heads, self._rotary)
        ops.tap("rope_q", self._layer, q)
        mixed = ops.paged_attention(q, step, cache, self._window)
        ops.tap("attn_out", self._layer, mixed)
        return mixed

    def out(self, ops: Backend, mixed: Array) -> Array:
        out = ops.linear(mixed, self._out)
        ops.tap("o_proj", self._layer, out)
        return out


class GatedMlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, ops: Backend, weights: Weights, config: ModelConfig, layer: int) -> None:
        prefix, bias = f"model.layers.{layer}.mlp", config.wiring.mlp_bias
        self._layer = layer
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up = linear(ops, weights, names, bias=bias)
        self._down = linear(ops, weights, [f"{prefix}.down_proj"], bias=bias)

    def __call__(self, ops: Backend, x: Array) -> Array:
        inner = ops.gated_linear(x, self._gate_up)
        ops.tap("mlp_act", self._layer, inner)
        out = ops.linear(inner, self._down)
        ops.tap("down", self._layer, out)
        return out


class DecoderLayer:
    """norm → attention → add → norm → MLP; the second addition is left to the next norm."""

    def __init__(
        self,
        ops: Backend,
        weights: Weights,
        config: ModelConfig,
        layer: int,
        rotary: Rotary,
    ) -> None:
        prefix, eps = f"model.layers.{layer}", config.rms_norm_eps
        self._layer = layer
        self._norm_in = RmsNorm(ops, weights.read(f"{prefix}.input_layernorm.weight"), eps)
        self._attention = Attention(ops, weights, config, layer, rotary)
        self._norm_mlp = RmsNorm(
            ops, weights.read(f"{prefix}.post_attention_layernorm.weight"), eps
        )
        self._mlp = GatedMlp(ops, weights, config, layer)

    def __call__(
        self, ops: Backend, x: Array, residual: Array | None, step: Step, cache: LayerCache
    ) -> tuple[Array, Array]:
        """Return (what is still to be added, residual)."""
        return self.finish(ops, *self.attend(ops, x, residual, step, cache))

    def attend(
        self, ops: Backend, x: Array, residual: Array | None, step: Step, cache: LayerCache
    ) -> tuple[Array, Array]:
        """Do all for which rows need each other; return (the heads' outputs, residual)."""
        if residual is None:
            normed, residual = self._norm_in(ops, x), x
        else:
            normed, residual = self._norm_in.add(ops, x, residual)
        ops.tap("attn_norm", self._layer, normed)
        return self._attention.mix(ops, normed, step, cache), residual

    def finish(self, ops: Backend, mixed: Array, residual: Array) -> tuple[Array, Array]:
        """Do the rest, row by row; return (what is still to be added, residual)."""
        out = self._attention.out(ops, mixed)
        normed, residual = self._norm_mlp.add(ops, out, residual)
        ops.tap("mlp_norm", self._layer, normed)
        return self._mlp(ops, normed), residual
