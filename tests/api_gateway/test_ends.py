"""Every way in which a request can end early frees its slots below."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest

from api_gateway.__main__ import Gateway
from api_gateway.asgi import Message
from protos.common_pb2 import ERROR, IGNORED, LENGTH
from tests.api_gateway.conftest import asked_for_a_chat, in_process, running, serving, until
from tests.api_gateway.requests import chat, completion
from tests.support.fake_tokenizer import FakeTokenizer, Stream


def talk(stream: Stream, slot: int) -> None:
    stream.start(slot)
    stream.token(slot, "Once")


async def test_a_client_that_leaves_a_stream_frees_every_slot(
    served: tuple[Gateway, httpx.AsyncClient], fake: FakeTokenizer
) -> None:
    fake.script = talk
    gateway, http = served
    async with http.stream("POST", "/v1/chat/completions", json=chat(stream=True, n=2)) as reply:
        await anext(reply.aiter_lines())
    assert {await fake.aborts.get(), await fake.aborts.get()} == {1, 2}
    await until(lambda: gateway.admission.num_active == 0)
    assert gateway.clients.links()[0].demux.choices == {}
    assert gateway.clients.links()[0].jobs == {}
    assert gateway.watch._vigils == {}, "nobody looks after it any more"


async def test_a_client_that_leaves_a_whole_reply_frees_its_slot(
    served: tuple[Gateway, httpx.AsyncClient], fake: FakeTokenizer
) -> None:
    fake.script = None
    _, http = served
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
    _, slot = await fake.arrivals.get()
    asked.cancel()
    assert await fake.aborts.get() == slot


async def slow_client(url: str) -> socket.socket:
    """Ask for a stream and read nothing of it."""
    body = json.dumps(completion(stream=True)).encode()
    host, port = url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(client, head.encode() + body)
    return client


async def test_a_client_that_takes_nothing_is_paused_then_cut_off(fake: FakeTokenizer) -> None:
    fake.script = None
    async with serving(fake.address, slow_client_timeout_s=1.0) as (gateway, url):
        client = await slow_client(url)
        stream, slot = await fake.arrivals.get()
        while slot not in stream.aborted:
            stream.token(slot, "x" * 20_000, *range(40))
            await asyncio.sleep(0.01)
        assert stream.pauses == [(slot, True)]
        await until(lambda: gateway.admission.num_active == 0)
        client.close()


async def test_a_client_that_does_not_take_the_error_of_its_stream_is_cut_off(
    fake: FakeTokenizer,
) -> None:
    """It ends as any other that takes nothing: a cancellation that goes further is a failure."""

    def break_down(stream: Stream, slot: int) -> None:
        stream.token(slot, "Once upon")
        stream.fail(slot, ERROR, kind="Internal", message="broken")

    async def send(message: Message) -> None:
        if b"event: error" in message.get("body", b""):
            await asyncio.Event().wait()

    fake.script = break_down
    async with running(fake.address, slow_client_timeout_s=0.01) as gateway:
        await asked_for_a_chat(gateway, send, stream=True)
        assert gateway.admission.num_active == 0


async def test_pauses_end_when_the_socket_has_room(fake: FakeTokenizer) -> None:
    fake.script = None
    async with serving(fake.address) as (_, url):
        client = await slow_client(url)
        stream, slot = await fake.arrivals.get()
        while not stream.pauses:
            stream.token(slot, "x" * 20_000, *range(40))
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        while len(stream.pauses) < 2:
            await loop.sock_recv(client, 2**20)
        assert stream.pauses == [(slot, True), (slot, False)]
        stream.finish(slot)
        received = b""
        while b"[DONE]" not in received:
            received = received[-100:] + await loop.sock_recv(client, 2**20)
        client.close()


async def test_cancel_works_through_any_gateway(fake: FakeTokenizer) -> None:
    fake.script = None
    async with (
        running(fake.address) as first,
        running(fake.address) as second,
        in_process(first) as here,
        in_process(second) as there,
    ):
        for spelling in ("job-1", "chatcmpl-job-1", "resp_job-1"):
            await until(lambda: len(fake.streams) == 2 and bool(second.clients.links()))
            body = chat(request_id="job-1")
            asked = asyncio.create_task(here.post("/v1/chat/completions", json=body))
            await fake.arrivals.get()
            cancelled = await there.post(f"/v1/requests/{spelling}/cancel")
            assert cancelled.json() == {"id": spelling, "cancelled": 1}
            reply = await asked
            assert reply.status_code == 499
            assert reply.json()["error"]["code"] == "cancelled"


async def test_cancel_of_an_unknown_id_is_404_and_ids_match_exactly(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    fake.script = None
    body = chat(request_id="job-10")
    asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    stream, slot = await fake.arrivals.get()
    for other in ("job-1", "job-100", "chatcmpl-job-1", "a/b", "%20"):
        reply = await client.post(f"/v1/requests/{other}/cancel")
        assert reply.status_code == 404, other
        wanted = "route_not_found" if "/" in other else "request_not_found"
        assert reply.json()["error"]["code"] == wanted
    stream.finish(slot)
    assert (await asked).status_code == 200


async def test_a_request_that_waits_for_a_tokenizer_can_be_cancelled(fake: FakeTokenizer) -> None:
    fake.script = None
    async with running(fake.address) as gateway, in_process(gateway) as http:
        body = chat(request_id="waits")
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        stream, _ = await fake.arrivals.get()
        await fake.stop()
        await until(lambda: not gateway.clients.links())
        reply = await http.post("/v1/requests/waits/cancel")
        assert reply.json()["cancelled"] == 1
        assert (await asked).status_code == 499
        del stream


@pytest.mark.parametrize("is_stream", [True, False])
async def test_the_deadline_holds_even_if_nobody_below_keeps_it(
    client: httpx.AsyncClient, fake: FakeTokenizer, is_stream: bool
) -> None:
    fake.script = None
    reply = await client.post("/v1/chat/completions", json=chat(timeout_ms=20, stream=is_stream))
    assert reply.status_code == 408
    assert reply.headers["x-should-retry"] == "false"  # OpenAI's clients ask again after a 408
    assert reply.json()["error"]["code"] == "deadline_exceeded"
    stream, slot = await fake.arrivals.get()
    assert 1 <= fake.streams[0].requests_seen[slot].limits.deadline_ms <= 20
    assert await fake.aborts.get() == slot


async def test_usage_counts_what_arrived_when_a_request_is_cut_off(
    gateway: Gateway, client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def three_tokens(stream: Stream, slot: int) -> None:
        stream.start(slot)
        stream.token(slot, "abc", 1, 2, 3)

    fake.script = three_tokens
    await client.post("/v1/completions", json=completion(timeout_ms=10))
    text = (await client.get("/metrics")).text
    assert 'millrace_generation_tokens_total{model_name="fake-model"} 3.0' in text
    assert 'millrace_prompt_tokens_total{model_name="fake-model"} 5.0' in text
    assert 'millrace_request_success_total{finished_reason="abort"' in text


async def test_shutdown_lets_streams_end_and_then_tells_the_rest(fake: FakeTokenizer) -> None:
    fake.script = talk
    async with (
        serving(fake.address) as (gateway, url),
        httpx.AsyncClient(base_url=url, timeout=20) as http,
    ):
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat(stream=True)))
        _, slot = await fake.arrivals.get()
        gateway.admission.is_draining = True
        refused = await http.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert (await http.get("/ready")).status_code == 503
        await until(lambda: gateway.clients.links()[0].demux.choices[slot].num_seen > 0)
        gateway.watch.end_all()
        last = (await asked).text.split("\n\n")[-2]
        assert last.startswith("event: error") and '"code":"draining"' in last


async def test_length_is_an_ordinary_end(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    def to_the_limit(stream: Stream, slot: int) -> None:
        stream.token(slot, "abc")
        stream.finish(slot, LENGTH)

    fake.script = to_the_limit
    reply = await client.post("/v1/completions", json=completion(max_tokens=1))
    assert reply.json()["choices"][0]["finish_reason"] == "length"


async def test_a_refused_prompt_is_no_load(
    gateway: Gateway, client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    def refuse_the_second(stream: Stream, slot: int) -> None:
        stream.start(slot)
        if stream.requests[slot].prompt == "b":
            stream.fail(slot, IGNORED, kind="Overloaded", message="full")
        else:
            stream.finish(slot)

    fake.script = refuse_the_second
    for prompt, status in (("a", 200), ("b", 429)):
        reply = await client.post("/v1/completions", json=completion(prompt=prompt))
        assert reply.status_code == status
    text = (await client.get("/metrics")).text
    assert 'millrace_prompt_tokens_total{model_name="fake-model"} 5.0' in text
    assert 'finished_reason="ignored",model_name="fake-model"} 1.0' in text
