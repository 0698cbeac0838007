"""Measures torch through transformers, eager, with its default attention for processors."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from bench.peers.asking import Task, serve

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


class OnTransformers:
    """One model."""

    def __init__(self, model: Any, task: Task) -> None:
        self._model = model
        self._task = task
        torch.manual_seed(0)

    def facts(self) -> dict[str, str]:
        """Return what torch compiles for, and its attention."""
        return {
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "attention": str(self._model.config._attn_implementation),
        }

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each step."""
        cache = DynamicCache(config=self._model.config)
        ids = self._next(self._random_ids(batch, self._task.context), cache)
        times = []
        for _ in range(self._task.steps):
            begin = time.perf_counter()
            ids = self._next(ids, cache)
            times.append(time.perf_counter() - begin)
        return times

    def prefill(self) -> float:
        """Return the seconds of one prefill."""
        ids = self._random_ids(1, self._task.prompt)
        begin = time.perf_counter()
        self._next(ids, DynamicCache(config=self._model.config))
        return time.perf_counter() - begin

    def _random_ids(self, batch: int, num_tokens: int) -> torch.Tensor:
        return torch.randint(0, self._model.config.vocab_size, (batch, num_tokens))

    def _next(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        with torch.inference_mode():
            out = self._model(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        likeliest: torch.Tensor = out.logits[:, -1].argmax(-1, keepdim=True)
        likeliest.tolist()  # as whoever sends it would
        return likeliest


def load(task: Task) -> OnTransformers:
    """Load the folder as it is, or widened."""
    torch.set_num_threads(task.threads)
    model = AutoModelForCausalLM.from_pretrained(task.folder, dtype=DTYPES[task.weights])
    return OnTransformers(model.eval(), task)


if __name__ == "__main__":
    serve(["torch", "transformers"], load)
