"""Text work and questions: what is asked below, and what is made of the answers."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from api_gateway import clients, text_calls
from common.rpc import channel
from protos.common_pb2 import ErrorDetail
from protos.tokenizer_pb2 import ConvertReply, ConvertRequest
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat, completion, tool
from tests.support.fake_tokenizer import MODEL, FakeTokenizer

SAID = [{"role": "user", "content": "hé"}]


async def test_tokenize_and_back(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    ids = [104, 233]
    reply = (await client.post("/tokenize", json={"prompt": "hé"})).json()
    assert reply == {"count": 2, "max_model_len": 4096, "tokens": ids, "token_strs": None}
    body: dict[str, Any] = {"model": "alias", "prompt": "hé", "return_token_strs": True}
    shown = (await client.post("/tokenize", json=body)).json()
    assert shown["token_strs"] == ["h", "é"]
    await client.post("/tokenize", json={"prompt": "a", "add_special_tokens": False})
    assert [asked.no_special_tokens for asked in fake.converted] == [False, False, True]
    back = (await client.post("/detokenize", json={"tokens": ids})).json()
    assert back == {"prompt": "hé"} and fake.converted[-1].keep_special_tokens
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["count"] == 0


async def test_what_a_client_writes_prompts_of_its_own_with(client: httpx.AsyncClient) -> None:
    told = (await client.get("/tokenizer_info")).json()
    assert told == {"tokenizer_class": "Fake", "eos_token": "<end>", "chat_template": None}


async def test_templates_and_counts(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    body = {"messages": SAID, "tools": [tool("f")], "add_generation_prompt": False}
    rendered = (await client.post("/apply-template", json=body)).json()
    assert rendered == {"prompt": "user: hé\n"}
    asked = fake.converted[-1].chat
    assert asked.tools_json and asked.no_generation_prompt
    assert fake.converted[-1].tenant == "default"
    tokens = (await client.post("/tokenize", json={"messages": SAID})).json()
    assert tokens["count"] == 9
    counted = await client.post("/v1/chat/completions/input_tokens", json=chat(messages=SAID))
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": 9}
    assert fake.converted[-1].tenant == "default"
    for prompt, count in ((["ab", "c"], 3), ([[1, 2], [3]], 3), ("abcd", 4)):
        body = completion(prompt=prompt)
        counted = await client.post("/v1/completions/input_tokens", json=body)
        assert counted.json()["input_tokens"] == count
    await client.post("/v1/completions/input_tokens", json={**body, "add_special_tokens": False})
    assert [asked.no_special_tokens for asked in fake.converted[-2:]] == [False, True]
    await client.post("/v1/completions", json={**body, "add_special_tokens": False})
    (seen,) = fake.streams[-1].requests_seen.values()
    assert seen.text.no_special_tokens
    lost = await client.post("/tokenize", json={"prompt": "a", "model": "other"})
    assert lost.status_code == 404


@pytest.mark.parametrize("prompt", [[1_000_000], ["a", ""]])
async def test_what_no_completion_takes_is_not_counted(
    client: httpx.AsyncClient, prompt: Any
) -> None:
    body = completion(prompt=prompt)
    reply = await client.post("/v1/completions/input_tokens", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "prompt") and "prompt" in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("add_generation_prompt", True),
        ("continue_final_message", True),
        ("chat_template_kwargs", {}),
        ("tools", []),
        ("add_special_tokens", True),
    ],
)
async def test_fields_of_the_other_form_are_refused(
    client: httpx.AsyncClient, name: str, value: Any
) -> None:
    form = {"messages": SAID} if name == "add_special_tokens" else {"prompt": "a"}
    reply = await client.post("/tokenize", json={**form, name: value})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == name


async def test_the_state_of_a_request(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    choice = {"choice": 0, "state": "RUNNING"}
    fake.answers["request_state"] = {"e1": {"choices": []}, "e0": {"choices": [choice]}}
    shown = (await client.get("/v1/requests/chatcmpl-a")).json()
    assert shown["choices"] == [{"engine": "e0", **choice}] and shown["id"] == "chatcmpl-a"
    kind, asked = fake.queries[-1]
    assert (kind, asked) == ("request_state", {"request_id": "chatcmpl-a", "tenant": "default"})
    fake.answers["request_state"] = {"e0": {"choices": []}}
    lost = await client.get("/v1/requests/chatcmpl-a")
    assert lost.status_code == 404 and lost.json()["error"]["code"] == "request_not_found"
    assert [q["request_id"] for _, q in fake.queries[-2:]] == ["chatcmpl-a", "a"]


async def test_explain_asks_with_the_prompts_ids(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.answers["explain"] = {"e0": {"cached_tokens": 16}}
    url = "/v1/requests/explain"
    shown = (await client.post(url, json=chat(messages=SAID, max_tokens=7, n=2))).json()
    assert shown == {
        "object": "request.explanation",
        "model": MODEL,
        "prompts": [{"prompt_tokens": 9, "engines": [{"engine": "e0", "cached_tokens": 16}]}],
    }
    _, asked = fake.queries[-1]
    assert asked["token_ids"] == [*map(ord, "user: hé\n")]
    assert (asked["max_tokens"], asked["n"], asked["tenant"]) == (7, 2, "default")
    both = (await client.post(url, json=completion(prompt=["ab", "c"]))).json()
    assert [p["prompt_tokens"] for p in both["prompts"]] == [2, 1]
    await client.post(url, json=completion(prompt="ab", add_special_tokens=False))
    assert fake.converted[-1].no_special_tokens
    await client.post(url, json=completion(prompt="ab", echo=True, max_tokens=0))
    assert [fake.queries[-1][1][name] for name in ("kind", "max_tokens")] == ["score", 1]
    assert fake.arrivals.empty()


async def test_engines_that_fail_are_left_out_unless_all_do(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    broken = ErrorDetail(kind="Unavailable", message="loading")
    fake.answers["cache_statistics"] = {"e0": broken, "e1": {"hits": 3}}
    shown = (await client.get("/v1/cache")).json()
    assert shown == {"object": "cache", "engines": [{"engine": "e1", "hits": 3}]}
    fake.answers["cache_statistics"] = {"e0": broken}
    assert (await client.get("/v1/cache")).status_code == 503
    fake.answers["cache_statistics"] = {}
    assert (await client.get("/v1/cache")).status_code == 503


async def test_only_operators_empty_the_cache(fake: FakeTokenizer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    lines = [
        f"{hashlib.sha256(k.encode()).hexdigest()} {t}" for k, t in (("a", "admin"), ("b", "b"))
    ]
    keys.write_text("\n".join(lines))
    fake.answers["cache_reset"] = {"e0": {"forgotten_blocks": 2}}
    settings = {"api_key_file": str(keys)}
    async with running(fake.address, **settings) as gateway, in_process(gateway) as http:
        await until(lambda: bool(gateway.clients.links()))
        for key, status in (("a", 200), ("b", 403), ("c", 401)):
            head = {"authorization": f"Bearer {key}"}
            reply = await http.post("/v1/cache/reset", headers=head)
            assert reply.status_code == status, reply.text


async def test_a_tokenizer_that_goes_away_leaves_the_call_to_the_next(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(f"{fake.address},127.0.0.1:1") as gateway, in_process(gateway) as http:
        await until(lambda: bool(gateway.clients.links()))
        (good,) = gateway.clients.stubs()
        monkeypatch.setattr(gateway.clients, "stubs", lambda model=None: [dead, good])
        async with channel("127.0.0.1:1") as line:
            dead = clients.stub(line)
            reply = await http.post("/tokenize", json={"prompt": "ab"})
            assert reply.json()["tokens"] == [97, 98]
            monkeypatch.setattr(gateway.clients, "stubs", lambda model=None: [dead])
            gone = await http.post("/tokenize", json={"prompt": "ab"})
            assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")


async def test_a_tokenizer_that_hangs_leaves_the_call_to_the_next(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands: pings are answered by threads of gRPC's own."""

    async def hang(request: ConvertRequest, context: object) -> ConvertReply:
        hanging.converted.append(request)
        await asyncio.Event().wait()
        raise AssertionError

    hanging = FakeTokenizer()
    monkeypatch.setattr(hanging, "Convert", hang)
    monkeypatch.setattr(text_calls, "PATIENCE_S", 0.1)
    await hanging.start()
    async with (
        running(f"{fake.address},{hanging.address}") as gateway,
        in_process(gateway) as http,
        channel(fake.address) as good,
        channel(hanging.address) as bad,
    ):
        await until(lambda: bool(gateway.clients.links()))
        stubs = [clients.stub(line) for line in (bad, good)]
        monkeypatch.setattr(gateway.clients, "stubs", lambda model=None: stubs)
        reply = await http.post("/tokenize", json={"prompt": "ab"})
        assert reply.json()["tokens"] == [97, 98] and len(hanging.converted) == 1
    await hanging.stop()


async def test_calls_go_to_a_tokenizer_that_has_an_engine(fake: FakeTokenizer) -> None:
    sick = await FakeTokenizer().start()
    sick.is_ready = False
    async with running(f"{fake.address},{sick.address}") as gateway, in_process(gateway) as http:
        await until(lambda: len(gateway.clients.links()) == 2)
        await until(lambda: all(link.states for link in gateway.clients.links()))
        for _ in range(3):
            assert (await http.post("/tokenize", json={"prompt": "ab"})).status_code == 200
    await sick.stop()
    assert len(fake.converted) == 3 and not sick.converted


async def test_without_a_tokenizer_there_is_an_honest_503(
    free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "WAIT_TIMEOUT_S", 0.01)
    async with running(free_address) as gateway, in_process(gateway) as http:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            assert (await http.post(path, json=body)).status_code == 503
        assert (await http.get("/v1/requests/a")).status_code == 503
