"""Decode rates through all tiers: the stack as local processes, its clients streaming over HTTP.

Knows requests and arrivals. What it is compared with is measured by `bench.cpu`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from bench.load import first_model
from bench.sse_client import Outcome, stream
from bench.tiers import Stack, worker_tiers


class Served:
    """A running stack, and the pace that its clients see."""

    def __init__(self, stack: Stack, vocab_size: int) -> None:
        self._url = f"{stack.url}/v1/completions"
        self._model = first_model(stack.url, "")
        self._vocab_size = vocab_size

    def step_s(self, clients: int, context: int, steps: int) -> float:
        """Return the mean seconds between two tokens while all `clients` stream.

        Each sends `context` token ids, of which the server knows all but the last page by then, and
        takes `steps` tokens after its first. Raises RuntimeError when a stream fails.
        """
        asyncio.run(self._load(clients, context, 1))
        return step_s(asyncio.run(self._load(clients, context, steps + 1)), steps + 1)

    async def _load(self, clients: int, context: int, num_tokens: int) -> list[Outcome]:
        most = self._vocab_size - 1  # a longer prompt begins as a shorter one
        prompts = (np.random.default_rng(k).integers(0, most, context) for k in range(clients))
        bodies = (self._body(prompt.tolist(), num_tokens) for prompt in prompts)
        outcomes = await asyncio.gather(*(stream(self._url, body) for body in bodies))
        if failed := [o for o in outcomes if not o.ok or o.num_tokens != num_tokens]:
            raise RuntimeError(f"{len(failed)} of {clients} streams failed: {failed[0].tail!r}")
        return outcomes

    def _body(self, prompt: list[int], num_tokens: int) -> dict[str, Any]:
        fixed = {"model": self._model, "temperature": 0.0, "seed": 1, "ignore_eos": True}
        return {**fixed, "prompt": prompt, "max_tokens": num_tokens}


def step_s(outcomes: Sequence[Outcome], num_tokens: int) -> float:
    """Return the mean seconds between two reads, from when the last stream has begun until the
    first one ends; of streams too short to run together, of each by itself. A read holds a token:
    steps take longer than anything between them."""
    streams = [outcome.arrivals[:num_tokens] for outcome in outcomes]  # usage may come on its own
    begin = max(arrivals[0] for arrivals in streams)
    end = min(arrivals[-1] for arrivals in streams)
    together = [[at for at in arrivals if begin <= at <= end] for arrivals in streams]
    if all(len(reads) > 1 for reads in together):
        streams = together
    return mean((reads[-1] - reads[0]) / max(1, len(reads) - 1) for reads in streams)


@contextmanager
def served(folder: Path, clients: int, vocab_size: int, **worker: object) -> Iterator[Served]:
    """Run the stack; `worker` are settings of that tier, by their names in the environment."""
    with worker_tiers(folder, clients, **worker) as stack:
        yield Served(stack, vocab_size)
