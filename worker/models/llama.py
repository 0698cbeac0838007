"""Llama, and Mistral before its mixtures: no biases unless the config asks for them.

`attention_bias` means all four projections, `mlp_bias` all three.
"""

from __future__ import annotations

from worker.models.wiring import Wiring


def llama(attention_bias: bool, mlp_bias: bool) -> Wiring:
    return Wiring(qkv_bias=attention_bias, out_bias=attention_bias, mlp_bias=mlp_bias)
