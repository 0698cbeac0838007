from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from api_gateway.auth import OpenDoor
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat, completion, events
from tests.support.fake_tokenizer import FakeTokenizer


async def test_unknown_routes_and_methods_answer_in_openai_shape(client: httpx.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/models//", 404),
        ("POST", "/v1/requests//cancel", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/x", 405),
        ("BREW", "/live", 405),
    ):
        reply = await client.request(method, path)
        assert reply.status_code == status, path
        assert reply.json()["error"]["type"] in {"not_found_error", "invalid_request_error"}
        assert reply.headers["x-request-id"] == reply.json()["error"]["request_id"]
    assert (await client.get("/v1/completions")).headers["allow"] == "POST"
    assert (await client.head("/live")).status_code == 200


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", ": here it is /v1/chat/completions"),
        ("/v1/v1/messages/", ": here it is /v1/messages"),
        ("/v1/tokenize", ": here it is /tokenize"),
        ("/models/x", ": here it is /v1/models/{name}"),
        ("/v1/nowhere", ""),
    ],
)
async def test_a_base_url_with_a_version_too_few_or_too_many_is_told(
    client: httpx.AsyncClient, path: str, meant: str
) -> None:
    error = (await client.post(path, json={})).json()["error"]
    assert (error["code"], error["message"]) == ("route_not_found", f"no such route{meant}")


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics", "/v1/models", "/no/route"])
async def test_no_cache_keeps_a_reply(client: httpx.AsyncClient, path: str) -> None:
    """Varnish told for two minutes that a gateway was ready."""
    assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_nor_an_answer_of_any_route(client: httpx.AsyncClient) -> None:
    message = {**chat(), "max_tokens": 8}
    for path, body in (("/v1/messages", message), ("/v1/chat/completions", chat())):
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store"), path


async def test_a_slash_at_the_end_says_nothing(client: httpx.AsyncClient) -> None:
    assert (await client.get("/live/")).json() == (await client.get("/live")).json()
    assert (await client.post("/v1/chat/completions/", json=chat())).status_code == 200


async def test_a_request_id_goes_in_and_out(client: httpx.AsyncClient) -> None:
    path = "/v1/chat/completions"
    given = await client.post(path, json=chat(), headers={"X-Request-Id": "mine:1.a-b_C"})
    assert given.headers["x-request-id"] == "mine:1.a-b_C"
    assert given.json()["id"] == "chatcmpl-mine:1.a-b_C"
    wins = await client.post(path, json=chat(request_id="body"), headers={"X-Request-Id": "head"})
    assert wins.json()["id"] == "chatcmpl-body" and wins.headers["x-request-id"] == "body"
    for bad in ("with space", "x" * 129, "ü"):
        reply = await client.post(path, json=chat(), headers={"X-Request-Id": bad.encode()})
        error = reply.json()["error"]
        assert reply.status_code == 400 and error["param"] == "X-Request-Id"
        assert error["message"].startswith("X-Request-Id must be 1 to 128 characters of A-Z")
        assert len(reply.headers["x-request-id"]) == 32
        probe = await client.get("/live", headers={"X-Request-Id": bad.encode()})
        assert probe.status_code == 200 and len(probe.headers["x-request-id"]) == 32
    empty = await client.post(path, json=chat(), headers={"X-Request-Id": ""})
    assert empty.status_code == 200 and len(empty.headers["x-request-id"]) == 32
    plain = await client.post("/v1/completions", json=completion(request_id="x"))
    assert plain.json()["id"] == "cmpl-x"


async def test_every_request_leaves_one_line_without_its_text(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api_gateway.app")
    await client.post("/v1/chat/completions", json=chat(request_id="a", stream=True))
    await client.post("/v1/completions", json=completion(request_id="b", n=0))
    await client.post("/v1/completions", json=completion(request_id="c", n=2))
    await client.get("/live")
    lines = [vars(r) for r in caplog.records if r.name == "api_gateway.app"]
    assert [line["request_id"] for line in lines] == ["a", "b", "c"]
    good, bad, twofold = lines
    for key, value in {
        "tenant": "default", "route": "/v1/chat/completions", "model": "fake-model",
        "stream": True, "status": 200, "finish_reason": "stop", "prompt_tokens": 5,
        "output_tokens": 3, "cached_tokens": 0, "queue_ms": 1.0, "attempts": 1,
    }.items():  # fmt: skip
        assert good[key] == value, key
    assert good["ttft_ms"] > 0 and good["e2e_ms"] >= good["ttft_ms"]
    assert (bad["status"], bad["code"]) == (400, "invalid_value")
    assert twofold["finish_reason"] == ["stop", "stop"]
    assert "Hello" not in json.dumps(lines, default=str)


async def test_what_goes_down_the_line(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    body: dict[str, Any] = chat(
        request_id="r", n=2, seed=-2, top_k=-1, temperature=0, max_completion_tokens=9,
        top_n_sigma=-1,
        stop=["a", "b"], stop_token_ids=[3], include_stop_str_in_output=True, ignore_eos=True,
        skip_special_tokens=False, logit_bias={"7": 1.5}, priority=-2, timeout_ms=60_000,
        add_generation_prompt=False, chat_template_kwargs={"thinking": True}, logprobs=True,
        top_logprobs=3, min_tokens=1,
    )  # fmt: skip
    body["messages"] = [
        {"role": "developer", "content": "be brief", "type": "text"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]},
    ]
    await client.post("/v1/chat/completions", json=body)
    stream, slot = await fake.arrivals.get()
    asked = stream.requests_seen[slot]
    assert json.loads(asked.chat.messages_json) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
    ]
    assert json.loads(asked.chat.template_kwargs_json) == {"thinking": True}
    assert asked.chat.no_generation_prompt and not asked.chat.continue_final_message
    limits, sampling, text = asked.limits, asked.sampling, asked.text
    assert (limits.n, limits.max_tokens, limits.min_tokens, limits.logprobs) == (2, 9, 1, 3)
    assert (limits.priority, limits.tenant, len(limits.cache_salt)) == (-2, "default", 16)
    assert 0 < limits.deadline_ms <= 60_000
    assert sampling.seed == 2**64 - 2 and sampling.top_k == 0 and sampling.temperature == 0
    assert sampling.HasField("top_n_sigma") and sampling.top_n_sigma == 0
    assert sampling.HasField("temperature") and not sampling.HasField("top_p")
    assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(7, 1.5)]
    assert list(text.stop) == ["a", "b"] and list(text.stop_token_ids) == [3]
    assert text.include_stop and text.ignore_eos and text.keep_special_tokens


def unnamed(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "model"}


async def test_a_request_that_names_no_model_goes_to_the_one_that_is_served(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    chats, texts = "/v1/chat/completions", "/v1/completions"
    for path, body in ((chats, chat(model=None)), (texts, unnamed(completion()))):
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.json()["model"]) == (200, fake.info.id)


async def test_among_several_models_one_must_be_named(fake: FakeTokenizer) -> None:
    other = FakeTokenizer()
    other.info.id = "another"
    await other.start()
    async with running(f"{fake.address},{other.address}") as gateway, in_process(gateway) as http:
        await until(lambda: len(gateway.clients.models()) == 2)
        reply = await http.post("/v1/chat/completions", json=unnamed(chat()))
    await other.stop()
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "model", "missing_field")
    assert fake.info.id in error["message"] and "another" in error["message"]


async def test_defaults_are_left_to_the_model(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    await client.post("/v1/chat/completions", json=chat())
    await client.post("/v1/completions", json=completion(prompt=["a", "a"]))
    await client.post("/v1/completions", json=completion(max_tokens=None))
    await client.post("/v1/completions", json=completion(max_tokens=-1))
    await client.post("/v1/chat/completions", json=chat(max_tokens=-1, min_tokens=3))
    await client.post("/v1/completions", json=completion(prompt=["a", "a"], seed=-1))
    seen = [fake.streams[0].requests_seen[slot] for slot in range(1, 9)]
    bounded = [asked.limits.HasField("max_tokens") for asked in seen]
    assert bounded == [False, True, True, False, False, False, True, True]
    assert seen[1].limits.max_tokens == 16  # OpenAI's default of this route
    assert len({asked.sampling.seed for asked in seen}) == 8  # none draws another's numbers
    assert not any(asked.sampling.HasField("temperature") for asked in seen)


async def test_a_cache_salt_narrows_and_never_leaves_the_tenant(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    for more in ({}, {}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        await client.post("/v1/completions", json=completion(**more))
    async with running(fake.address) as gateway:
        gateway.keys = OpenDoor("other")
        async with in_process(gateway) as other:
            await other.post("/v1/completions", json=completion(cache_salt="a"))
    async with (
        running(fake.address, cache_secret="s\udcff") as gateway,  # as bytes that are no UTF-8 come
        in_process(gateway) as secretive,
    ):
        await secretive.post("/v1/completions", json=completion(cache_salt="a"))
    salts = [
        asked.limits.cache_salt
        for stream in fake.streams
        for asked in stream.requests_seen.values()
    ]
    assert salts[0] == salts[1] and len(set(salts)) == 5


async def test_token_ids_come_back_when_asked_for(client: httpx.AsyncClient) -> None:
    body = completion(return_token_ids=True)
    whole = (await client.post("/v1/completions", json=body)).json()
    assert whole["choices"][0]["token_ids"] == [100, 101, 102]
    stream = events((await client.post("/v1/completions", json=body | {"stream": True})).text)
    assert [i for e in stream for c in e["choices"] for i in c["token_ids"]] == [100, 101, 102]


@pytest.mark.parametrize("includes", [True, False, None])
async def test_usage_of_each_chunk_comes_with_that_of_the_whole(
    client: httpx.AsyncClient, includes: bool | None
) -> None:
    options = {"include_usage": includes, "continuous_usage_stats": True}
    for path, body in (("chat/completions", chat()), ("completions", completion(echo=True))):
        sent = body | {"stream": True, "stream_options": options}
        stream = events((await client.post(f"/v1/{path}", json=sent)).text)
        assert all(bool(event.get("usage")) is bool(includes) for event in stream)
        if includes:
            assert stream[0]["usage"]["completion_tokens"] == 0
            told = ["prompt_tokens_details" in event["usage"] for event in stream]
            assert told == sorted(told) and told[0] is False and told[-2:] == [True, True]


async def test_a_prompts_ids_come_with_them(client: httpx.AsyncClient) -> None:
    """Beside the choices of a chat, in each of a completion; in streams with the first chunk."""
    asked: dict[str, Any] = {"n": 2, "return_token_ids": True}
    path, body = "/v1/chat/completions", chat(**asked)
    assert (await client.post(path, json=body)).json()["prompt_token_ids"] == [0, 1, 2, 3, 4]
    stream = events((await client.post(path, json=body | {"stream": True})).text)
    told = [e["choices"][0]["index"] for e in stream if e.get("prompt_token_ids")]
    assert told == [0] and told == [stream.index(e) for e in stream if "prompt_token_ids" in e]
    path, body = "/v1/completions", completion(prompt=["a", "b"], **asked)
    whole = (await client.post(path, json=body)).json()
    assert [c["prompt_token_ids"] for c in whole["choices"]] == [[0, 1, 2, 3, 4]] * 4
    stream = events((await client.post(path, json=body | {"stream": True})).text)
    told = [c["index"] for e in stream for c in e["choices"] if c.get("prompt_token_ids")]
    assert sorted(told) == [0, 1, 2, 3]
    for plain in (completion(), chat()):
        reply = await client.post(f"/v1/{'chat/' * ('messages' in plain)}completions", json=plain)
        assert "prompt_token_ids" not in reply.text
