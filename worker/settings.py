"""What an operator may set on a worker."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.settings import ADDRESS, LogLevel


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only `__main__` sees this object: everything below receives values."""

    model: Annotated[str, Meta(description="model folder: config.json and safetensors")]
    engine: Annotated[
        str,
        Meta(description="host:port of the engine's registry for workers", pattern=f"^{ADDRESS}$"),
    ] = "127.0.0.1:7202"
    device: Annotated[str, Meta(description="cpu or cuda", pattern="^(cpu|cuda)$")] = "cpu"
    dtype: Annotated[
        str,
        Meta(
            description="type of the weights, auto = the folder's",
            pattern="^(auto|float32|bfloat16|float16)$",
        ),
    ] = "auto"
    quantization: Annotated[
        str,
        Meta(
            description="none, or int8 or int4: linears are quantised at load",
            pattern="^(none|int8|int4)$",
        ),
    ] = "none"
    kernel_level: Annotated[
        str,
        Meta(
            description="instructions: auto, amx, avx512_bf16, avx512, avx2, portable, or "
            "reference (NumPy)",
            pattern="^(auto|amx|avx512_bf16|avx512|avx2|portable|reference)$",
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str,
        Meta(
            description="type of keys and values, auto = bfloat16 for models in bfloat16, "
            "on cuda as the weights",
            pattern="^(auto|bfloat16|float32)$",
        ),
    ] = "auto"
    kv_cache_memory: Annotated[
        str,
        Meta(
            description="for keys and values, e.g. 512MiB; empty = ¼ of free memory, ≤ 4 GiB; "
            "on cuda all that is left"
        ),
    ] = ""
    host_kv_memory: Annotated[
        str, Meta(description="host memory for blocks the KV cache evicts, e.g. 4GiB; 0 = none")
    ] = "0"
    kv_layout: Annotated[
        str,
        Meta(
            description="block: pages of 16 tokens; slot: single cells; static: one range each",
            pattern="^(block|slot|static)$",
        ),
    ] = "block"
    max_ubatch_tokens: Annotated[  # at most as many as the second side of a GPU's grid
        int, Meta(description="tokens of one pass; larger steps take several", ge=1, le=65_535)
    ] = 2048
    threads: Annotated[
        int, Meta(description="compute threads, 0 = as many as cores available", ge=0, le=1024)
    ] = 0
    metrics_host: Annotated[
        str, Meta(description="address of /metrics, /live and /ready", min_length=1)
    ] = "127.0.0.1"
    metrics_port: Annotated[int, Meta(description="their port, 0 = any", ge=0, le=65535)] = 7301
    log_level: LogLevel = "info"
