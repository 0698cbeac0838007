"""Qwen3, dense: norms on the heads of q and k, and a head_dim of its own."""

from __future__ import annotations

from worker.models.wiring import Wiring


def qwen3(attention_bias: bool, mlp_bias: bool) -> Wiring:
    return Wiring(qkv_bias=attention_bias, out_bias=attention_bias, head_norm=True)
