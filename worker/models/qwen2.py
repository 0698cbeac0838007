"""Qwen2 and Qwen2.5: q, k and v have biases, whatever the config says of them."""

from __future__ import annotations

from worker.models.wiring import Wiring


def qwen2(attention_bias: bool, mlp_bias: bool) -> Wiring:
    return Wiring(qkv_bias=True)
