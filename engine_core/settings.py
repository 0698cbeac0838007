"""Settings of the engine; only `__main__` sees them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.settings import LogLevel
from engine_core.scheduling.prompt_lookup import MOST_GUESSES


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MILLRACE_ENGINE_<FIELD> in the environment, `--field=value` on the command line."""

    host: Annotated[str, Meta(description="address that tokenizer services and workers dial")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(description="port of the gRPC service", ge=0, le=65535)] = 7200
    registry_port: Annotated[
        int, Meta(description="port where workers register (ZeroMQ)", ge=0, le=65535)
    ] = 7202
    metrics_host: Annotated[
        str, Meta(description="address of /metrics, /live and /ready", min_length=1)
    ] = "127.0.0.1"
    metrics_port: Annotated[
        int, Meta(description="port of /metrics, /live and /ready", ge=0, le=65535)
    ] = 7201
    tensor_parallel_size: Annotated[
        int, Meta(description="workers that make one replica", ge=1, le=64)
    ] = 1
    max_num_seqs: Annotated[
        int, Meta(description="sequences of one replica that run at a time", ge=1, le=4096)
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        Meta(description="tokens of one step; at least max_num_seqs", ge=1, le=2**20),
    ] = 2048
    max_model_len: Annotated[
        int, Meta(description="tokens of prompt and output; 0 = as many as the model has", ge=0)
    ] = 0
    max_waiting: Annotated[
        int,
        Meta(
            description="requests that may wait; beyond it only of tenants below an equal share",
            ge=1,
        ),
    ] = 1024
    tenant_limits: Annotated[
        str,
        Meta(
            description="file of lines `tenant key=number …`, `*` for all others; keys: context, "
            "new_tokens, priority (the lowest of a request), seqs, blocks, waiting (at a time, of "
            "a replica); empty = none"
        ),
    ] = ""
    prefix_cache: Annotated[
        bool, Meta(description="keep the KV of finished prompts and answers for the next request")
    ] = True
    num_guesses: Annotated[
        int,
        Meta(
            description="tokens guessed a step from what a text said before, and verified: the "
            "same answers, in fewer steps where texts repeat; 0 = none",
            ge=0,
            le=MOST_GUESSES,
        ),
    ] = 0
    step_budget_s: Annotated[
        float, Meta(description="a step older than this makes the engine not ready", gt=0)
    ] = 5.0
    step_timeout_s: Annotated[
        float, Meta(description="a step older than this loses its replica", gt=0, le=1e9)
    ] = 30.0
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every running sequence needs one"
            )
