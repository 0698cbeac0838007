"""GET /v1/models and /v1/models/{name}: what the tokenizers serve."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from api_gateway.asgi import Call
from api_gateway.clients import TextClients
from protos.common_pb2 import ModelInfo


class Models:
    """Lists models; an empty list while no tokenizer is connected."""

    def __init__(self, clients: TextClients) -> None:
        self._clients = clients

    async def list(self, call: Call) -> None:
        shown = [
            model_object(info, name)
            for info in self._clients.models()
            for name in (info.id, *info.aliases)
        ]
        first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
        page = {"has_more": False, "first_id": first, "last_id": last}
        await call.reply_json(200, {"object": "list", "data": shown, **page})

    async def get(self, call: Call) -> None:
        """Answer for one id or alias; raises NotFound."""
        name = call.params["name"]
        await call.reply_json(200, model_object(await self._clients.model(name), name))


def model_object(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return OpenAI's model object and Anthropic's in one, with the longest context it can hold.

    `root` is the model behind an alias; vLLM's benchmark client asks for it by this name.
    """
    max_model_len = info.max_model_len or None
    return {
        "id": name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "millrace",
        "root": info.id,
        "max_model_len": max_model_len,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(info.created_s, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }
