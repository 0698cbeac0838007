"""How a model is loaded into this process: the keywords of `LLM` and `AsyncLLM.open`."""

from __future__ import annotations

from typing import TypedDict


class ModelOptions(TypedDict, total=False):
    """As the settings of the same names, of worker or engine; what is left out is automatic."""

    device: str
    """cpu (default), cuda."""
    dtype: str
    """auto (default: the folder's), float32, bfloat16, float16."""
    quantization: str
    """none (default), int8, int4."""
    kernel_level: str
    """auto (default), amx, avx512_bf16, avx512, avx2, portable, reference."""
    kv_cache_dtype: str
    """auto (default), bfloat16, float32."""
    threads: int
    """That compute; 0 (default): one a core."""
    kv_cache_memory: str | int | None
    """Bytes, or text such as 512MiB; a quarter of the free memory, at most 4 GiB, unless given."""
    host_kv_memory: str | int
    """Host memory for evicted keys and values, 0 (default): none."""
    kv_layout: str
    """block (default), slot, static."""
    max_model_len: int | None
    """Longest sequence in tokens."""
    num_guesses: int
    """Tokens guessed a step from what a text said before, and verified; 0 (default): none."""
