"""Millrace: an LLM serving stack. Here is its offline face; `millrace --help` shows the rest.

The names are looked up at first use, so that `import millrace` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.async_llm import AsyncLLM
    from millrace.llm import LLM
    from millrace.outputs import CompletionOutput, EmbeddingOutput, RequestOutput
    from millrace.params import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "RequestOutput",
    "SamplingParams",
]

_HOMES = {
    "LLM": "millrace.llm",
    "AsyncLLM": "millrace.async_llm",
    "CompletionOutput": "millrace.outputs",
    "EmbeddingOutput": "millrace.outputs",
    "RequestOutput": "millrace.outputs",
    "SamplingParams": "millrace.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
