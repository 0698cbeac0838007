"""Qwen2 and Qwen2.5: q, k and v have biases, whatever the config says of them."""

from __future__ import annotations

from worker.models.config import ModelConfig
from worker.models.layers import Wiring


def qwen2(config: ModelConfig) -> Wiring:
    return Wiring(qkv_bias=True)
