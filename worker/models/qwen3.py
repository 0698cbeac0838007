"""Qwen3, dense: norms on the heads of q and k, and a head_dim of its own."""

from __future__ import annotations

from worker.models.config import ModelConfig
from worker.models.layers import Wiring


def qwen3(config: ModelConfig) -> Wiring:
    return Wiring(qkv_bias=config.attention_bias, out_bias=config.attention_bias, head_norm=True)
