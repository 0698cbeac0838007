"""Decoder: the skeleton of Llama and its kin, from token ids to logits.

Knows the names of weights, which these families share. What differs is in `Wiring`; knows no
array library and no file format.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.backends.base import Array, Backend, LayerCache, Outputs, Step
from worker.models.config import ModelConfig
from worker.models.layers import DecoderLayer, RmsNorm, Weights, linear

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NO_LAYER = -1
"""The layer of what stands before and after the layers."""


class Decoder:
    """Packed weights; token ids in, logits and final states of the wanted rows out."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Backend) -> None:
        self.ops = ops
        self._embedding = ops.pack_vector(weights.read(EMBEDDING))
        rope = config.rope
        self._rotary = ops.pack_rotary(rope.inverse_frequencies, rope.attention_factor)
        self._layers = [
            DecoderLayer(ops, weights, config, layer, self._rotary)
            for layer in range(config.num_layers)
        ]
        self._norm = RmsNorm(ops, weights.read("model.norm.weight"), config.rms_norm_eps)
        if config.tie_word_embeddings:
            self._head = ops.pack_tied(self._embedding)
        else:
            self._head = linear(ops, weights, ["lm_head"])

    def forward(self, step: Step, caches: Sequence[LayerCache]) -> Outputs:
        """Compute the tokens of `step` and store their keys and values."""
        ops = self.ops
        x, residual = ops.embedding(self._embedding, step.token_ids), None
        ops.tap("embedding", NO_LAYER, x)
        *layers, (last, last_cache) = zip(self._layers, caches, strict=True)
        for layer, cache in layers:
            x, residual = layer(ops, x, residual, step, cache)
        attended = last.attend(ops, x, residual, step, last_cache)
        whole = None if ops.takes_rows_early else last.finish(ops, *attended)

        def final(rows: Array) -> Array:
            if whole is None:
                return self._final(ops, *last.finish(ops, *taken(ops, attended, rows)))
            return self._final(ops, *taken(ops, whole, rows))

        states = final(step.state_rows)  # first: while they are computed no logits take room
        logits = ops.linear(final(step.logit_rows), self._head)
        ops.tap("logits", NO_LAYER, logits)
        return Outputs(logits, states)

    def shift(self, caches: Sequence[LayerCache], cells: Array, delta: int) -> None:
        """Turn the stored keys of `cells`, int32 [n], by `delta` positions, in every layer."""
        for cache in caches:
            self.ops.rope_shift(cache, cells, delta, self._rotary)

    def _final(self, ops: Backend, x: Array, residual: Array) -> Array:
        normed, _ = self._norm.add(ops, x, residual)
        ops.tap("final_norm", NO_LAYER, normed)
        return normed


def taken(ops: Backend, of: tuple[Array, Array], rows: Array) -> tuple[Array, Array]:
    """Return those rows of both."""
    return ops.take_rows(of[0], rows), ops.take_rows(of[1], rows)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor the folder must hold, by name."""
    hidden = config.hidden_size
    wanted: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        wanted[HEAD] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        wanted |= {f"model.layers.{i}.{k}": v for k, v in _layer_shapes(config).items()}
    return wanted


def may_ignore(config: ModelConfig) -> set[str]:
    """Return tensors that some exporters write although they say nothing new."""
    ignored = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)}
    ignored.add("model.rotary_emb.inv_freq")
    return ignored | ({HEAD} if config.tie_word_embeddings else set())


def twins(config: ModelConfig) -> dict[str, str]:
    """Return tensors that some exporters write under another name alone.

    Of two names of one tensor `safetensors.torch.save_model` keeps the first by the alphabet.
    """
    return {EMBEDDING: HEAD} if config.tie_word_embeddings else {}


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, wiring = config.hidden_size, config.intermediate_size, config.wiring
    linears = {
        "self_attn.q_proj": (config.q_size, hidden, wiring.qkv_bias),
        "self_attn.k_proj": (config.kv_size, hidden, wiring.qkv_bias),
        "self_attn.v_proj": (config.kv_size, hidden, wiring.qkv_bias),
        "self_attn.o_proj": (hidden, config.q_size, wiring.out_bias),
        "mlp.gate_proj": (inner, hidden, wiring.mlp_bias),
        "mlp.up_proj": (inner, hidden, wiring.mlp_bias),
        "mlp.down_proj": (hidden, inner, wiring.mlp_bias),
    }
    wanted: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (outputs, inputs, bias) in linears.items():
        wanted[f"{name}.weight"] = (outputs, inputs)
        if bias:
            wanted[f"{name}.bias"] = (outputs,)
    if wiring.head_norm:
        wanted |= {f"self_attn.{p}_norm.weight": (config.head_dim,) for p in ("q", "k")}
    return wanted
