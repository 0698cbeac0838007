"""What an operator may set on a worker."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only `__main__` sees this object: everything below receives values."""

    model: Annotated[str, Meta(description="model folder: config.json and safetensors")]
    engine: Annotated[str, Meta(description="host:port of the engine's registry for workers")] = (
        "127.0.0.1:7202"
    )
    device: Annotated[str, Meta(description="cpu", pattern="^cpu$")] = "cpu"
    dtype: Annotated[
        str,
        Meta(
            description="compute type, auto = the folder's; one the device lacks becomes float32",
            pattern="^(auto|float32|bfloat16|float16)$",
        ),
    ] = "auto"
    kv_cache_memory: Annotated[
        str,
        Meta(description="for keys and values, e.g. 512MiB; empty = ¼ of free memory, ≤ 4 GiB"),
    ] = ""
    kv_layout: Annotated[
        str,
        Meta(
            description="block: pages of 16 tokens; slot: single cells; static: one range each",
            pattern="^(block|slot|static)$",
        ),
    ] = "block"
    max_ubatch_tokens: Annotated[
        int, Meta(description="tokens of one pass; larger steps take several", ge=1, le=2**20)
    ] = 2048
    threads: Annotated[
        int, Meta(description="compute threads, 0 = as many as cores available", ge=0, le=1024)
    ] = 0
    metrics_host: Annotated[str, Meta(description="address of /metrics, /live and /ready")] = (
        "127.0.0.1"
    )
    metrics_port: Annotated[int, Meta(description="their port, 0 = any", ge=0, le=65535)] = 7301
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
