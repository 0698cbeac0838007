"""config.json and generation_config.json of a GGUF file's metadata.

A key that no model here computes is refused, not passed over: it could change every answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.model_folder import Fields, ModelFolderError

MODEL_TYPES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""`general.architecture`, which is also `model_type` → what stands before ForCausalLM."""
READ = {
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
}  # fmt: skip
SAYS_NOTHING = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type"}
"""Sizes told elsewhere, and what is asked for with a request here."""
NEUTRAL = {
    "attention.causal": True, "expert_count": 0, "expert_used_count": 0, "logit_scale": 1.0,
    "attention.scale": 0.0, "rope.scaling.yarn_ext_factor": 1.0,
}  # fmt: skip
"""Keys that may stand there with a value that changes nothing."""
LOW_TURNS, HIGH_TURNS = 1.0, 4.0
"""Ends of the ramp in Llama 3.1 to 3.3, `low_freq_factor` and `high_freq_factor`: a GGUF file has
only the factors that come of them."""
SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip
"""Under `general.sampling.` → in generation_config.json."""


def architecture_of(fields: Fields) -> str:
    """Return `general.architecture`; raise ModelFolderError unless a model here computes it."""
    name = fields.text("general.architecture")
    if name not in MODEL_TYPES:
        raise fields.error("general.architecture", name, ", ".join(MODEL_TYPES))
    return name


def config(
    architecture: str,
    fields: Fields,
    tensors: Collection[str],
    vocab_size: int,
    rope_factors: NDArray[np.float32] | None,
) -> dict[str, Any]:
    """Return config.json without its dtype; raise ModelFolderError that names the key.

    `fields` are the architecture's own, `tensors` the names the file has, `vocab_size` the rows of
    its embedding, `rope_factors` (head_dim / 2) what its frequencies are divided by.
    """
    _refuse_unknown(fields)
    num_heads = fields.size("attention.head_count")
    head_dim = fields.size(
        "attention.key_length", max(1, fields.size("embedding_length") // num_heads)
    )
    for name in ("attention.value_length", "rope.dimension_count"):
        if (other := fields.size(name, head_dim)) != head_dim:
            raise fields.error(name, other, f"{head_dim}, the size of a head")
    theta = fields.number("rope.freq_base", 10000.0)
    return {
        "architectures": [f"{MODEL_TYPES[architecture]}ForCausalLM"],
        "model_type": architecture,
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "hidden_size": fields.size("embedding_length"),
        "intermediate_size": fields.size("feed_forward_length"),
        "num_hidden_layers": fields.size("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.size("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(fields, theta, head_dim, rope_factors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
    }


def generation_config(fields: Fields, eos_token_ids: list[int]) -> dict[str, Any]:
    """Return generation_config.json: what ends an answer, and the sampling the file recommends."""
    told = {
        name: fields.get(f"general.sampling.{key}")
        for key, name in SAMPLING.items()
        if fields.get(f"general.sampling.{key}") is not None
    }
    return {"eos_token_id": eos_token_ids, **({"do_sample": True} if told else {}), **told}


def _refuse_unknown(fields: Fields) -> None:
    for name in sorted(fields.names() - READ - SAYS_NOTHING):
        value = fields.get(name)
        if name not in NEUTRAL:
            raise fields.error(name, value, "absent")
        if value != NEUTRAL[name]:
            raise fields.error(name, value, f"{NEUTRAL[name]!r}, or absent")


def _rope_scaling(
    fields: Fields, theta: float, head_dim: int, factors: NDArray[np.float32] | None
) -> Mapping[str, Any] | None:
    kind = fields.text("rope.scaling.type") or "none"
    if kind not in ("none", "linear", "yarn"):
        raise fields.error("rope.scaling.type", kind, "none, linear, yarn")
    if factors is not None:
        if kind != "none":
            raise fields.error("rope.scaling.type", kind, "none beside rope_freqs.weight")
        return _llama3(theta, head_dim, factors)
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        original = "original_context_length"
        scaling["original_max_position_embeddings"] = fields.size(f"rope.scaling.{original}")
        for key, name in (
            ("yarn_attn_factor", "attention_factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
        ):
            if fields.get(f"rope.scaling.{key}") is not None:
                scaling[name] = fields.number(f"rope.scaling.{key}")
    return scaling


def _llama3(theta: float, head_dim: int, factors: NDArray[np.float32]) -> Mapping[str, Any]:
    """Return the scaling that gives these factors: a wave on the ramp tells the length before it.

    Raises ModelFolderError when none does with the ends of the ramp that all published models have.
    """
    factor = float(factors.max(initial=1.0))
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    original = 8192
    if (
        factors.shape == frequencies.shape
        and (ramp := (factors > 1.001) & (factors < 0.999 * factor)).any()
    ):
        kept = (1 / factors[ramp] - 1 / factor) / (1 - 1 / factor)
        turns = LOW_TURNS + kept * (HIGH_TURNS - LOW_TURNS)
        original = round(float(np.median(turns * 2 * math.pi / frequencies[ramp])))
    kept = (original * frequencies / (2 * math.pi) - LOW_TURNS) / (HIGH_TURNS - LOW_TURNS)
    kept = np.clip(kept, 0.0, 1.0)
    expected = 1 / ((1 - kept) / factor + kept)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ModelFolderError("tensor rope_freqs.weight is not of a scaling as Llama 3's")
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW_TURNS,
        "high_freq_factor": HIGH_TURNS, "original_max_position_embeddings": original,
    }  # fmt: skip
