"""Muon for the matrices of the layers, AdamW for everything else.

Muon (Jordan et al., 2024) makes each update of a matrix nearly orthogonal. On this model it
needs about half the tokens of AdamW alone, which on two cores is half an hour.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from tools.demo_network import DemoNetwork

MATRIX_RATE = 0.012
OTHER_RATE = 3e-3
EMBEDDING_RATE = 6e-3
MOMENTUM = 0.95
MATRIX_DECAY = 0.1


class Optimizer:
    """Steps all weights of a network and clears their gradients."""

    def __init__(self, network: DemoNetwork) -> None:
        self._matrices: dict[torch.Size, list[Tensor]] = defaultdict(list)
        others: list[Tensor] = []
        embeddings: list[Tensor] = []
        for name, weight in network.named_parameters():
            if "embed" in name:
                embeddings.append(weight)
            elif weight.ndim == 2:
                self._matrices[weight.shape].append(weight)
            else:
                others.append(weight)
        self._momenta = {
            shape: torch.zeros(len(weights), *shape) for shape, weights in self._matrices.items()
        }
        groups = [
            {"params": others, "full": OTHER_RATE},
            {"params": embeddings, "full": EMBEDDING_RATE},
        ]
        self._adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, rate: float) -> None:
        """Moves the weights; `rate` is a share of the full learning rate."""
        with torch.no_grad():
            # Matrices of one shape are handled together: one large product beats many small.
            for shape, weights in self._matrices.items():
                self._step_matrices(shape, weights, rate)
        for group in self._adam.param_groups:
            group["lr"] = group["full"] * rate
        self._adam.step()
        self._adam.zero_grad()

    def _step_matrices(self, shape: torch.Size, weights: list[Tensor], rate: float) -> None:
        gradients = torch.stack([w.grad for w in weights if w.grad is not None])
        momentum = self._momenta[shape]
        momentum.lerp_(gradients, 1 - MOMENTUM)
        update = orthogonalize(gradients.lerp(momentum, MOMENTUM))
        scale = MATRIX_RATE * rate * max(1.0, shape[0] / shape[1]) ** 0.5
        for weight, change in zip(weights, update, strict=True):
            weight.mul_(1 - MATRIX_RATE * rate * MATRIX_DECAY)
            weight.sub_(change, alpha=scale)
            weight.grad = None

    def state(self) -> dict[str, Any]:
        """Returns what `load` needs to go on."""
        return {"momenta": list(self._momenta.values()), "adam": self._adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._momenta = dict(zip(self._momenta, state["momenta"], strict=True))
        self._adam.load_state_dict(state["adam"])


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Drives all singular values towards one by the Newton-Schulz iteration of Muon."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = x.mT if tall else x
    return result
