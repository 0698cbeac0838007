"""What an operator may set of this tier; only `__main__` sees the struct."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.settings import ADDRESSES, LogLevel, SettingsError
from tokenizer_service.chat_template import RESERVED

Scalar = str | int | float | bool | None


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
    default_chat_template_kwargs: Annotated[
        str,
        Meta(
            description="JSON object of values that the chat template gets where a request gives "
            'none, as {"enable_thinking": false}'
        ),
    ] = ""
    host: Annotated[str, Meta(description="address of the gRPC server")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port of the gRPC server", ge=0, le=65535)] = 7100
    metrics_host: Annotated[str, Meta(description="address of the side port", min_length=1)] = (
        "127.0.0.1"
    )
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
    log_level: LogLevel = "info"

    def template_kwargs(self) -> dict[str, Scalar]:
        """Return the template's values; raise SettingsError that says what is wrong with them."""
        name = "default_chat_template_kwargs"
        try:
            text = self.default_chat_template_kwargs or "{}"
            found = msgspec.json.decode(text, type=dict[str, Scalar])
        except msgspec.MsgspecError as error:
            raise SettingsError(f"{name}: {error}") from error
        if taken := sorted(RESERVED & found.keys()):
            raise SettingsError(f"{name} may not set {taken[0]}")
        return found
