"""The Qwen2 forward pass in plain torch, with the weight names of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    vocab_size: int = 2048
    hidden: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 512
    max_positions: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    """Scales each vector to unit root mean square."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Attends; without `mask` each token sees all before it. Appends to `cache` if given."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), rope)
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), rope)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if cache is not None:
            past_k, past_v = cache.pop(0)
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            cache.append((k, v))
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    """The SwiGLU block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes the features of each token."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Adds what attention and the feed-forward block have to say."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DemoNetwork(nn.Module):
    """Token ids in, hidden states out; `logits` reads tokens off them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)  # every layer starts as the identity
            elif weight.ndim == 2:
                nn.init.normal_(weight, std=1.0 if "embed" in name else weight.shape[1] ** -0.5)
        # Large embeddings keep a token recognizable below what the layers add to it, without
        # which nothing can be copied; the small norm keeps the first logits small all the same.
        nn.init.constant_(self.norm.weight, 0.02)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Returns the normalized hidden states, batch × length × hidden."""
        if positions is None:
            positions = torch.arange(ids.shape[1])[None]
        rope = rope_angles(positions, self.shape)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, rope, mask, cache)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores the next token; the output matrix is the embedding."""
        return F.linear(hidden, self.embed_tokens.weight)


def rope_angles(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine, batch × 1 × length × head_dim."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = positions[:, None, :, None].float() * shape.rope_theta**-exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turns each half-pair of features by its angle."""
    cos, sin = rope
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin
