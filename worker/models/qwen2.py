"""Qwen2 and Qwen2.5: biased q, k, v projections, gated MLP, tied or untied head.

Knows this family's weight names and wiring. Knows no array library and no file format.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.backends.base import Array, Backend, LayerCache, Step
from worker.models.config import ModelConfig
from worker.models.layers import DecoderLayer, RmsNorm, Weights, linear

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Qwen2:
    """Token ids in, logits of the wanted rows out."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Backend) -> None:
        self._ops = ops
        self._embedding = ops.pack_vector(weights.read(EMBEDDING))
        self._layers = [
            DecoderLayer(ops, weights, f"model.layers.{i}", config, qkv_bias=True)
            for i in range(config.num_layers)
        ]
        self._norm = RmsNorm(ops, weights.read("model.norm.weight"), config.rms_norm_eps)
        if config.tie_word_embeddings:
            self._head = ops.pack_tied(self._embedding)
        else:
            self._head = linear(ops, weights, ["lm_head"])

    @staticmethod
    def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Return every tensor the folder must hold, by name."""
        hidden = config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            EMBEDDING: (config.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not config.tie_word_embeddings:
            shapes[HEAD] = (config.vocab_size, hidden)
        for i in range(config.num_layers):
            shapes |= {f"model.layers.{i}.{k}": v for k, v in _layer_shapes(config).items()}
        return shapes

    @staticmethod
    def may_ignore(config: ModelConfig) -> set[str]:
        """Return tensors that some exporters write although they say nothing new."""
        ignored = {
            f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)
        }
        return ignored | ({HEAD} if config.tie_word_embeddings else set())

    def forward(self, step: Step, caches: Sequence[LayerCache]) -> Array:
        """Compute the tokens of `step`, store their keys and values, return logits [R, V]."""
        ops = self._ops
        x, residual = ops.embedding(self._embedding, step.token_ids), None
        for layer, cache in zip(self._layers, caches, strict=True):
            x, residual = layer(x, residual, step, cache)
        x = ops.take_rows(x, step.logit_rows)
        residual = ops.take_rows(residual, step.logit_rows)
        normed, _ = self._norm.add(x, residual)
        return ops.linear(normed, self._head)


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (config.q_size, hidden),
        "self_attn.q_proj.bias": (config.q_size,),
        "self_attn.k_proj.weight": (config.kv_size, hidden),
        "self_attn.k_proj.bias": (config.kv_size,),
        "self_attn.v_proj.weight": (config.kv_size, hidden),
        "self_attn.v_proj.bias": (config.kv_size,),
        "self_attn.o_proj.weight": (hidden, config.q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
