"""A second forward pass for tests: float64, one sequence, full attention matrices, no cache.

Written from the published formulas alone. Shares nothing with the worker but the file it reads.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, np.dtype[np.float64]]


class PlainModel:
    """Logits of every position of one sequence, from a folder of float32 weights."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads

    def logits(self, token_ids: list[int]) -> Array:
        """[len(token_ids), vocab_size]"""
        x = self.tensors["model.embed_tokens.weight"][token_ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self.attend(layer, self.norm(x, f"{name}.input_layernorm"))
            inner = self.norm(x, f"{name}.post_attention_layernorm")
            gate = self.project(inner, f"{name}.mlp.gate_proj")
            gate = gate / (1 + np.exp(-gate)) * self.project(inner, f"{name}.mlp.up_proj")
            x = x + self.project(gate, f"{name}.mlp.down_proj")
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        return self.project(self.norm(x, "model.norm"), head)

    def norm(self, x: Array, name: str) -> Array:
        power = np.mean(x**2, axis=-1, keepdims=True) + self.config["rms_norm_eps"]
        normed: Array = x / np.sqrt(power) * self.tensors[f"{name}.weight"]
        return normed

    def project(self, x: Array, name: str) -> Array:
        out: Array = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def attend(self, layer: int, x: Array) -> Array:
        name = f"model.layers.{layer}.self_attn"
        q, k, v = (
            self.project(x, f"{name}.{p}_proj").reshape(len(x), -1, self.head_dim)
            for p in ("q", "k", "v")
        )
        if f"{name}.q_norm.weight" in self.tensors:
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        q, k = self.turn(q), self.turn(k)
        own, other = np.arange(len(x))[:, None], np.arange(len(x))[None]
        seen = (other <= own) & (other > own - self.window(layer))
        mixed = np.empty_like(q)
        for head in range(q.shape[1]):
            mine = head * k.shape[1] // q.shape[1]
            scores = q[:, head] @ k[:, mine].T / math.sqrt(self.head_dim)
            weights = np.where(seen, np.exp(scores - scores.max(1, keepdims=True)), 0)
            mixed[:, head] = weights @ v[:, mine] / weights.sum(1, keepdims=True)
        return self.project(mixed.reshape(len(x), -1), f"{name}.o_proj")

    def window(self, layer: int) -> int:
        slides = self.config.get("use_sliding_window") and layer >= self.config["max_window_layers"]
        return int(self.config["sliding_window"]) if slides else 1 << 30

    def turn(self, heads: Array) -> Array:
        half = self.head_dim // 2
        waves, factor = self.waves()
        angles = np.arange(len(heads))[:, None] * waves
        numbers = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([numbers.real, numbers.imag], axis=-1) * factor

    def waves(self) -> tuple[Array, float]:
        """Radians per position of each pair, and the factor of the result."""
        theta, scaling = self.config["rope_theta"], self.config.get("rope_scaling") or {}
        plain = theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        kind, factor = scaling.get("type", "default"), scaling.get("factor", 1.0)
        if kind == "default":
            return plain, 1.0
        if kind == "linear":
            return plain / factor, 1.0
        original = scaling["original_max_position_embeddings"]
        if kind == "llama3":
            return np.array([self.llama3(wave, scaling, original) for wave in plain]), 1.0
        turns = original * plain / (2 * math.pi)
        places = np.arange(len(plain))
        # Where a wave turns 32 times over the original length, and where once; between, a ramp.
        first = max(math.floor(np.interp(-math.log(32), -np.log(turns), places)), 0)
        last = math.ceil(np.interp(0.0, -np.log(turns), places))
        kept = 1 - np.clip((places - first) / (last - first), 0, 1)
        return plain / factor * (1 - kept) + plain * kept, 0.1 * math.log(factor) + 1

    @staticmethod
    def llama3(wave: float, scaling: dict[str, Any], original: int) -> float:
        length = 2 * math.pi / wave
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if length < original / high:
            return wave
        if length > original / low:
            return wave / float(scaling["factor"])
        smooth = (original / length - low) / (high - low)
        return (1 - smooth) * wave / float(scaling["factor"]) + smooth * wave
