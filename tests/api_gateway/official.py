"""What every reply that passes a test's client is held against.

OpenAI's own schemas, the types of its client, and those of Anthropic's.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.conftest import REFERENCE_DATA

FILE = REFERENCE_DATA / "openai" / "openapi-subset.json"
REPLIES = {
    "/v1/chat/completions": "CreateChatCompletionResponse",
    "/v1/completions": "CreateCompletionResponse",
    "/v1/embeddings": "CreateEmbeddingResponse",
    "/v1/models": "ListModelsResponse",
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
MESSAGES = "/v1/messages"
CHUNKS = {**REPLIES, "/v1/chat/completions": "CreateChatCompletionStreamResponse"}


@cache
def components(file: Path) -> dict[str, Any]:
    """Return the schemas, with what the real service sends and they leave out.

    Streamed completions have null finish reasons and null usage, the first token of an echo has no
    logprob, and vectors come as base64 when asked for.
    """
    found: dict[str, Any] = json.loads(file.read_text())["components"]["schemas"]
    completion = found["CreateCompletionResponse"]["properties"]
    completion["usage"] = or_null(completion["usage"])
    choice = completion["choices"]["items"]["properties"]
    choice["finish_reason"] = or_null(choice["finish_reason"])
    logprobs = choice["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):
        logprobs[name]["items"] = or_null(logprobs[name]["items"])
    vector = found["Embedding"]["properties"]
    vector["embedding"] = {"anyOf": [vector["embedding"], {"type": "string"}]}
    return found


def or_null(shape: Any) -> dict[str, Any]:
    return {"anyOf": [shape, {"type": "null"}]}


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    shape = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": components(FILE)}}
    return jsonschema.Draft202012Validator(shape)


def check(name: str, value: Any) -> None:
    validator(name).validate(value)


def check_event(path: str, event: dict[str, Any]) -> None:
    """Hold one event of a stream against its schema; strangers have none."""
    if FILE.exists():
        check("ErrorResponse" if "error" in event else CHUNKS[path], event)


def check_response(body: bytes) -> None:
    """Hold a response, or the events of one, against the types of OpenAI's own client."""
    if body.startswith(b"{"):
        Response.model_validate_json(body)
    for number, data in enumerate(re.findall(r"^data: (.*)$", body.decode(), re.MULTILINE)):
        assert EVENTS.validate_json(data).sequence_number == number


def check_message(status: int, body: bytes) -> None:
    """Hold a message, the events of one, or an error against the types of Anthropic's client."""
    if status >= 400:
        told = json.loads(body)
        assert told["type"] == "error" and told["error"]["type"] and told["error"]["message"]
    elif body.startswith(b'{"input_tokens'):
        assert isinstance(json.loads(body)["input_tokens"], int)
    elif body.startswith(b"{"):
        Message.model_validate_json(body)
    for kind, data in re.findall(r"event: (\S+)\ndata: (.*)\n\n", body.decode()):
        if kind not in ("ping", "error"):
            assert MESSAGE_EVENTS.validate_json(data).type == kind


async def verify(reply: httpx.Response) -> None:
    """Hold one whole reply against what its route's clients read."""
    body, path = await reply.aread(), reply.request.url.path
    if path.startswith(MESSAGES):
        check_message(reply.status_code, body)
    elif path == "/v1/responses" and reply.status_code == 200:
        check_response(body)
    elif FILE.exists():  # strangers have none
        check_reply(path, reply, body)


def check_reply(path: str, reply: httpx.Response, body: bytes) -> None:
    """Hold a reply against OpenAI's schema of its route."""
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        for frame in body.decode().split("\n\n"):
            data = frame.rpartition("data: ")[2]
            if data.startswith("{"):
                check_event(path, json.loads(data))
    elif reply.status_code >= 400:
        if path not in ("/ready", "/health"):
            check("ErrorResponse", json.loads(body))
    elif path in REPLIES and body:
        check(REPLIES[path], json.loads(body))
    elif path.startswith("/v1/models/"):
        check("Model", json.loads(body))
