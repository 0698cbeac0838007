"""GET /v1/models and /v1/models/{name}: what the tokenizers serve."""

from __future__ import annotations

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
        await call.reply_json(200, {"object": "list", "data": shown})

    async def get(self, call: Call) -> None:
        """Answer for one id or alias; raises NotFound."""
        name = call.params["name"]
        await call.reply_json(200, model_object(await self._clients.model(name), name))


def model_object(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return OpenAI's model object, with the longest context it can hold.

    `root` is the model behind an alias; vLLM's benchmark client asks for it by this name.
    """
    return {
        "id": name,
        "object": "model",
        "created": info.created_s,
        "owned_by": "millrace",
        "root": info.id,
        "max_model_len": info.max_model_len or None,
    }
