"""Greedy decoding of many prompts at once, with the margin by which each choice was made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_network import Cache, DemoNetwork


@dataclass(frozen=True)
class Generated:
    """A greedy answer; `margin` is its smallest lead of first over second choice, in nats."""

    ids: list[int]
    margin: float


@torch.no_grad()
def generate(
    network: DemoNetwork, prompts: list[list[int]], stop_id: int, limit: int = 160
) -> list[Generated]:
    """Continues every prompt until `stop_id`; the answer does not include it."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: dict[int, Generated] = {}
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = _generate_batch(network, [prompts[i] for i in chosen], stop_id, limit)
        answers.update(zip(chosen, batch, strict=True))
    return [answers[i] for i in range(len(prompts))]


def _generate_batch(
    network: DemoNetwork, prompts: list[list[int]], stop_id: int, limit: int
) -> list[Generated]:
    # Prompts are padded on the left; a padded key is seen by no one.
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    cache = _empty_cache(network, len(prompts))
    hidden = network(ids, *_view(padding, 0, longest), cache)[:, -1]
    lists: list[list[int]] = [[] for _ in prompts]
    margins = torch.full((len(prompts),), torch.inf)
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for length in range(longest, longest + limit):
        best = network.logits(hidden).log_softmax(-1).topk(2)
        lead = best.values[:, 0] - best.values[:, 1]
        margins = torch.where(done, margins, torch.minimum(margins, lead))
        token = best.indices[:, 0]
        done |= token == stop_id
        if bool(done.all()):
            break
        for row in (~done).nonzero().flatten().tolist():
            lists[row].append(int(token[row]))
        hidden = network(token[:, None], *_view(padding, length, 1), cache)[:, -1]
    return [Generated(ids, float(m)) for ids, m in zip(lists, margins, strict=True)]


def _empty_cache(network: DemoNetwork, batch: int) -> Cache:
    empty = torch.zeros(batch, network.shape.kv_heads, 0, network.shape.head_dim)
    return [(empty, empty) for _ in range(network.shape.layers)]


def _view(padding: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns positions and mask of `count` columns from `start`."""
    columns = torch.arange(start, start + count)
    keys = torch.arange(start + count)
    seen = (keys[None, None] <= columns[None, :, None]) & (
        keys[None, None] >= padding[:, None, None]
    )
    # A padded column sees itself, so that its softmax is not empty.
    seen |= keys[None, None] == columns[None, :, None]
    return (columns[None] - padding[:, None]).clamp(min=0), seen[:, None]
