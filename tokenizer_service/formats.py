"""What a model folder tells of its model's habits: how it writes tool calls and marks its thoughts.

Read from the chat template, which shows the model its own words. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizer_service.reasoning import CLOSE

HERMES = "hermes"
"""`<tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>`: Qwen2, Qwen2.5, Qwen3, Hermes."""
LLAMA3 = "llama3"
"""`{"name": …, "parameters": …}`, with `<|python_tag|>` before it or not: Llama 3.1 and 3.2."""
THINK_TAGS = "think_tags"
"""`<think>…</think>`: DeepSeek-R1 and its distillations, Qwen3, QwQ."""


def tool_format(templates: Mapping[str, str] | None) -> str:
    """Return how the model writes tool calls; empty when its template knows none we can read."""
    source = (templates or {}).get("tool_use") or (templates or {}).get("default", "")
    if "<tool_call>" in source and "<tools>" in source:
        return HERMES
    if "<|start_header_id|>" in source and '"parameters": ' in source:
        return LLAMA3
    return ""


def reasoning_format(templates: Mapping[str, str] | None) -> str:
    """Return how the model marks its thoughts; empty when it does not."""
    return THINK_TAGS if CLOSE in (templates or {}).get("default", "") else ""
