"""Measures vLLM on the processor, offline and in one process, step by step."""

from __future__ import annotations

import os
import random
import time

from bench.peers.asking import Task, serve

MAX_SEQUENCES = 64
MAX_LENGTH = 2048
MIN_PASS = 512


class OnVllm:
    """One engine, compiled as it comes; requests carry ids."""

    def __init__(self, task: Task) -> None:
        # vLLM and torch read these when they are imported.
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{task.threads - 1}"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
        os.environ["VLLM_USE_AOT_COMPILE"] = "0"  # 0.32.0 cannot load what it has stored so
        from vllm import LLM

        model = LLM(
            task.folder,
            dtype="bfloat16",
            max_model_len=MAX_LENGTH,
            max_num_seqs=MAX_SEQUENCES,
            max_num_batched_tokens=max(task.prompt, MIN_PASS),  # it warms up with such a pass
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine = model.llm_engine
        self._vocab_size = int(model.model_config.get_vocab_size())
        self._task = task
        self._random = random.Random(0)
        self._number = 0

    def facts(self) -> dict[str, str]:
        """Return how it runs."""
        return {"compiled": "yes", "keys": "bfloat16"}

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each step that gives every sequence a token."""
        for _ in range(batch):
            self._add(self._task.context, self._task.steps + 2)
        waiting, times = batch, []
        while self._engine.has_unfinished_requests():
            begin = time.perf_counter()
            outputs = self._engine.step()
            if not waiting and len(outputs) == batch:
                times.append(time.perf_counter() - begin)
            waiting = batch - len(outputs)
        return times[: self._task.steps]

    def prefill(self) -> float:
        """Return the seconds of one prefill."""
        self._add(self._task.prompt, 1)
        begin = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - begin

    def _add(self, num_tokens: int, num_output: int) -> None:
        from vllm import SamplingParams

        ids = [self._random.randrange(self._vocab_size) for _ in range(num_tokens)]
        greedy = SamplingParams(
            max_tokens=num_output, min_tokens=num_output, ignore_eos=True, temperature=0.0,
            detokenize=False,
        )  # fmt: skip
        self._number += 1
        self._engine.add_request(str(self._number), {"prompt_token_ids": ids}, greedy)


if __name__ == "__main__":
    serve(["vllm-cpu", "torch"], OnVllm)
