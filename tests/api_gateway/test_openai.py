"""What we answer is what OpenAI's schemas and its own client expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from api_gateway.__main__ import Gateway
from tests.api_gateway.official import FILE, check, verify
from tests.api_gateway.requests import chat, events
from tests.api_gateway.test_streams import rich
from tests.support.fake_tokenizer import MODEL, FakeTokenizer

TEXT = "Hello there, wörld"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"no reference data at {FILE}")


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}])
async def test_chat_replies_fit_the_schemas(
    client: httpx.AsyncClient, fake: FakeTokenizer, more: dict[str, Any]
) -> None:
    fake.script = rich if "logprobs" in more else fake.script
    whole = await client.post("/v1/chat/completions", json=chat(**more))
    check("CreateChatCompletionResponse", whole.json())
    body = chat(stream=True, stream_options={"include_usage": True}, **more)
    stream = await client.post("/v1/chat/completions", json=body)
    for event in events(stream.text):
        check("CreateChatCompletionStreamResponse", event)


async def test_below_an_alias_is_the_model(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": [5], "echo": True}),
        ("/v1/responses", {"input": "a"}),
    ):
        reply = await client.post(path, json={"model": "alias", **body})
        assert (reply.status_code, reply.json()["model"]) == (200, MODEL), reply.text
        stream, slot = await fake.arrivals.get()
        assert stream.requests_seen[slot].model == MODEL


async def test_models_and_errors_fit_the_schemas(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL, "alias"]
    for name in (MODEL, "alias"):
        model = (await client.get(f"/v1/models/{name}")).json()
        check("Model", model)
        assert model["id"] == name and model["max_model_len"] == 4096
        assert model["root"] == MODEL  # `vllm bench serve` stops without it
    for reply in (
        await client.get("/v1/models/other/name"),
        await client.get("/nowhere"),
        await client.get("/v1/completions"),
        await client.post("/v1/completions", content=b"{"),
    ):
        check("ErrorResponse", reply.json())


async def test_the_check_itself_bites(client: httpx.AsyncClient) -> None:
    """Every reply of every test goes through it, so it must not be blind."""
    request = httpx.Request("POST", "http://gateway/v1/chat/completions")
    for kind, body in (
        ("application/json", b"{}"),
        ("text/event-stream", b'data: {"id":1}\n\ndata: [DONE]\n\n'),
    ):
        reply = httpx.Response(200, request=request, content=body, headers={"content-type": kind})
        with pytest.raises(jsonschema.ValidationError):
            await verify(reply)


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
    assert [model.id async for model in sdk.models.list()] == [MODEL, "alias"]


async def test_the_openai_client_understands_our_errors(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(
            model="gpt-none", messages=[{"role": "user", "content": "hi"}]
        )
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.completions.create(model=MODEL, prompt="x", best_of=3)
    assert refused.value.param == "best_of"
