"""Llama, and Mistral before its mixtures: no biases unless the config asks for them.

`attention_bias` means all four projections, `mlp_bias` all three.
"""

from __future__ import annotations

from worker.models.config import ModelConfig
from worker.models.layers import Wiring


def llama(config: ModelConfig) -> Wiring:
    return Wiring(
        qkv_bias=config.attention_bias, out_bias=config.attention_bias, mlp_bias=config.mlp_bias
    )
