"""The families: architecture name in config.json → class. A new one is a file and a line."""

from __future__ import annotations

from worker.models.qwen2 import Qwen2

ARCHITECTURES: dict[str, type[Qwen2]] = {"Qwen2ForCausalLM": Qwen2}
