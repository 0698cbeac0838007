"""Settings of the gateway; seen by `__main__` alone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.rpc import MAX_MESSAGE_BYTES
from common.settings import ADDRESSES, LogLevel

_ORIGIN = r"(\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\s,/]+/?)"
ORIGINS = rf"^\s*({_ORIGIN}(\s*,\s*{_ORIGIN})*)?\s*$"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read by common.settings.load(Settings, "gateway")."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Meta(description="port; several gateways may share it", ge=0, le=65535)
    ] = 8000
    metrics_host: Annotated[str, Meta(description="address of the side port", min_length=1)] = (
        "127.0.0.1"
    )
    metrics_port: Annotated[
        int, Meta(description="side port: /metrics /live /ready; 0 picks one", ge=0, le=65535)
    ] = 8001
    tokenizers: Annotated[
        str,
        Meta(
            description="comma list of host:port; a name may stand for many replicas",
            pattern=ADDRESSES,
        ),
    ] = "127.0.0.1:7100"
    api_key_file: Annotated[
        str, Meta(description="lines `sha256hex tenant [name]`; empty = no keys asked")
    ] = ""
    cache_secret: Annotated[
        str,
        Meta(
            description="key of the tenants' prefix cache salts, the same for all gateways; "
            "empty = a fixed public one: still one salt per tenant, but guessable"
        ),
    ] = ""
    allowed_origins: Annotated[
        str,
        Meta(
            description="comma list of origins whose pages may call from a browser (CORS), "
            "such as https://chat.example, or *; empty = none",
            pattern=ORIGINS,
        ),
    ] = ""
    max_body_bytes: Annotated[
        int, Meta(description="largest request body", ge=1024, le=MAX_MESSAGE_BYTES // 2)
    ] = 4 * 2**20  # ids take up to twice the bytes below
    max_concurrent_requests: Annotated[
        int,
        Meta(
            description="more at once are refused with 429, but of tenants below an equal share",
            ge=1,
        ),
    ] = 1024
    slow_client_timeout_s: Annotated[
        float, Meta(description="a client that takes nothing for this long is cut off", gt=0)
    ] = 30.0
    keep_alive_s: Annotated[
        float, Meta(description="a silent stream gets a comment this often", gt=0)
    ] = 15.0
    lenient: Annotated[bool, Meta(description="ignore unknown request fields")] = False
    log_level: LogLevel = "info"
