"""What an operator may set of this tier; only `__main__` sees the struct."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.settings import ADDRESSES, LogLevel


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the text tier."""

    model: Annotated[str, Meta(description="model folder; only its text files are read")]
    served_model_name: Annotated[
        str,
        Meta(
            description="name that clients use, or a comma list: further ones are aliases of the "
            "first; empty means the folder's name"
        ),
    ] = ""
    host: Annotated[str, Meta(description="address of the gRPC server")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port of the gRPC server", ge=0, le=65535)] = 7100
    metrics_host: Annotated[str, Meta(description="address of the side port")] = "127.0.0.1"
    metrics_port: Annotated[
        int, Meta(description="port of /metrics, /live and /ready", ge=0, le=65535)
    ] = 7101
    engines: Annotated[
        str,
        Meta(
            description="comma list of host:port of engine fronts; names are resolved every 2 s",
            pattern=ADDRESSES,
        ),
    ] = "127.0.0.1:7200"
    replay_timeout_s: Annotated[
        float, Meta(description="how long a running request waits for an engine to go on", ge=0)
    ] = 60.0
    log_level: LogLevel = "info"
