"""The families: architecture name in config.json → wiring. A new one is a file and a line."""

from __future__ import annotations

from collections.abc import Callable

from worker.models.config import ModelConfig
from worker.models.layers import Wiring
from worker.models.llama import llama
from worker.models.qwen2 import qwen2
from worker.models.qwen3 import qwen3

ARCHITECTURES: dict[str, Callable[[ModelConfig], Wiring]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": llama,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}
