"""What we answer is what OpenAI's schemas and its own client expect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from api_gateway.__main__ import Gateway
from tests.api_gateway.requests import chat, completion, events
from tests.api_gateway.test_streams import rich
from tests.support.fake_tokenizer import MODEL, FakeTokenizer

TEXT = "Hello there, wörld"


@pytest.fixture(scope="session")
def schemas(reference_data: Path) -> dict[str, Any]:
    """OpenAI's schemas; streamed completions have null finish reasons, as the service sends."""
    file = reference_data / "openai" / "openapi-subset.json"
    document: dict[str, Any] = json.loads(file.read_text())
    choices = document["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]
    reason = choices["items"]["properties"]["finish_reason"]
    choices["items"]["properties"]["finish_reason"] = {"anyOf": [reason, {"type": "null"}]}
    return document


def check(schemas: dict[str, Any], name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": schemas["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}])
async def test_chat_replies_fit_the_schemas(
    client: httpx.AsyncClient, fake: FakeTokenizer, schemas: dict[str, Any], more: dict[str, Any]
) -> None:
    fake.script = rich if "logprobs" in more else fake.script
    whole = await client.post("/v1/chat/completions", json=chat(**more))
    check(schemas, "CreateChatCompletionResponse", whole.json())
    body = chat(stream=True, stream_options={"include_usage": True}, **more)
    stream = await client.post("/v1/chat/completions", json=body)
    for event in events(stream.text):
        check(schemas, "CreateChatCompletionStreamResponse", event)


@pytest.mark.parametrize("more", [{}, {"prompt": ["a", "b"], "n": 2}, {"logprobs": 2}])
async def test_completion_replies_fit_the_schemas(
    client: httpx.AsyncClient, fake: FakeTokenizer, schemas: dict[str, Any], more: dict[str, Any]
) -> None:
    fake.script = rich if "logprobs" in more else fake.script
    whole = await client.post("/v1/completions", json=completion() | more)
    check(schemas, "CreateCompletionResponse", whole.json())
    stream = await client.post("/v1/completions", json=completion(stream=True) | more)
    for event in events(stream.text):
        check(schemas, "CreateCompletionResponse", event)


async def test_models_and_errors_fit_the_schemas(
    client: httpx.AsyncClient, schemas: dict[str, Any]
) -> None:
    listed = (await client.get("/v1/models")).json()
    check(schemas, "ListModelsResponse", listed)
    assert [model["id"] for model in listed["data"]] == [MODEL]
    for name in (MODEL, "alias"):
        model = (await client.get(f"/v1/models/{name}")).json()
        check(schemas, "Model", model)
        assert model["id"] == name and model["max_model_len"] == 4096
    for reply in (
        await client.get("/v1/models/other/name"),
        await client.get("/nowhere"),
        await client.get("/v1/completions"),
        await client.post("/v1/completions", content=b"{"),
    ):
        check(schemas, "ErrorResponse", reply.json())


@pytest.fixture
async def sdk(
    served: tuple[Gateway, httpx.AsyncClient],
) -> AsyncIterator[openai.AsyncOpenAI]:
    _, http = served
    async with openai.AsyncOpenAI(
        api_key="none", base_url=f"{http.base_url}/v1", max_retries=0
    ) as client:
        yield client


async def test_the_openai_client_chats(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0.5, seed=1
    )
    assert whole.choices[0].message.content == TEXT
    assert whole.usage is not None and whole.usage.total_tokens == 8
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3


async def test_the_openai_client_completes_and_lists(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=5)
    assert [choice.text for choice in whole.choices] == [TEXT] * 4
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    stream = await sdk.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT
    assert [model.id async for model in sdk.models.list()] == [MODEL]


async def test_the_openai_client_understands_our_errors(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(
            model="gpt-none", messages=[{"role": "user", "content": "hi"}]
        )
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.completions.create(model=MODEL, prompt="x", best_of=3)
    assert refused.value.param == "best_of"
