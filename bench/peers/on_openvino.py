"""Measures OpenVINO GenAI through its continuous batching pipeline."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.peers.asking import Task, serve

CACHE_GIB = 2
MAX_SEQUENCES = 64
QUANTIZATION: dict[str, dict[str, Any]] = {
    "int8": {"bits": 8, "sym": True},
    "int4": {"bits": 4, "sym": True, "group_size": 128, "ratio": 1.0},
}


class OnOpenVino:
    """One pipeline; requests carry ids."""

    def __init__(self, path: Path, task: Task) -> None:
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.max_num_seqs = MAX_SEQUENCES
        scheduling.max_num_batched_tokens = 2048
        scheduling.cache_size = CACHE_GIB
        scheduling.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(path), scheduling, "CPU", {"INFERENCE_NUM_THREADS": task.threads}
        )
        config = json.loads((Path(task.folder) / "config.json").read_text())
        self._vocab_size = int(config["vocab_size"])
        self._task = task
        self._random = random.Random(0)
        self._number = 0

    def facts(self) -> dict[str, str]:
        """Return what the plugin says about the processor."""
        told = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {"capabilities": " ".join(told)}

    def decode(self, batch: int) -> list[float]:
        """Return the seconds of each step."""
        _kept = [self._add(self._task.context, self._task.steps + 1) for _ in range(batch)]
        self._pipeline.step()
        times = []
        while self._pipeline.has_non_finished_requests():
            begin = time.perf_counter()
            self._pipeline.step()
            times.append(time.perf_counter() - begin)
        return times

    def prefill(self) -> float:
        """Return the seconds of one prefill."""
        _kept = self._add(self._task.prompt, 1)
        begin = time.perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return time.perf_counter() - begin

    def _add(self, num_tokens: int, num_output: int) -> Any:
        """Return the request's handle: without it the pipeline drops the request."""
        greedy = openvino_genai.GenerationConfig()
        greedy.max_new_tokens = greedy.min_new_tokens = num_output
        greedy.set_eos_token_id(0)  # the folder has no tokenizer that would know one
        greedy.ignore_eos = True
        greedy.do_sample = False
        ids = [self._random.randrange(self._vocab_size) for _ in range(num_tokens)]
        self._number += 1
        prompt = openvino.Tensor(np.array([ids], np.int64))
        return self._pipeline.add_request(self._number, prompt, greedy)


def load(task: Task) -> OnOpenVino:
    """Load the converted folder; convert it first if it is not there."""
    path = Path(task.converted) / f"openvino-{task.weights.replace(' ', '-')}"
    if not path.exists():
        _convert(Path(task.folder), path, task.weights)
    return OnOpenVino(path, task)


def _convert(folder: Path, path: Path, weights: str) -> None:
    """Export as the project's documentation does; int4 leaves table and head in int8."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    options = QUANTIZATION.get(weights)
    model = OVModelForCausalLM.from_pretrained(
        str(folder),
        export=True,
        compile=False,
        load_in_8bit=False,
        quantization_config=OVWeightQuantizationConfig(**options) if options else None,
    )
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    partial.rename(path)


if __name__ == "__main__":
    serve(["openvino", "openvino-genai"], load)
