"""Wiring: in what the families differ; each family's file makes one of a config's flags."""

from __future__ import annotations

from typing import NamedTuple


class Wiring(NamedTuple):
    """Which biases and norms a layer has."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False
    """Every head of q and k has a norm of its own before it is rotated."""
