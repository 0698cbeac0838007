"""What stands before the application: heads that are too large, too slow or no HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest
import uvicorn

from api_gateway import protocol
from api_gateway.__main__ import Gateway
from api_gateway.protocol import BoundedProtocol
from api_gateway.server import Server
from protos.limits import MAX_HEADER_BYTES
from tests.api_gateway.conftest import serving
from tests.api_gateway.requests import completion
from tests.support.fake_tokenizer import FakeTokenizer

Served = tuple[Gateway, httpx.AsyncClient]


async def talk(http: httpx.AsyncClient, *pieces: bytes) -> bytes:
    """Send raw bytes and return all that comes until the server closes."""
    url = http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(10):
        reply = await reader.read()
    writer.close()
    return reply


def error_of(reply: bytes) -> tuple[bytes, Any]:
    head, _, body = reply.partition(b"\r\n\r\n")
    return head.split(b" ")[1], json.loads(body)["error"]


LONG = b"x" * MAX_HEADER_BYTES


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /live HTTP/1.1\r\nA: " + LONG + b"\r\n\r\n"],
        [b"GET /live HTTP/1.1\r\nA: " + LONG, b"x"],  # it never ends
        [b"GET /" + LONG + b" HTTP/1.1\r\n\r\n"],
        [b"GET /live HTTP/1.1\r\n", b"".join(b"A%d: b\r\n" % k for k in range(2000)), b"\r\n"],
    ],
)
async def test_large_heads_are_431(served: Served, pieces: list[bytes]) -> None:
    _, http = served
    status, error = error_of(await talk(http, *pieces))
    assert status == b"431" and error["code"] == "head_too_large"
    assert (await http.get("/live")).status_code == 200


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"{}\r\n\r\n"])
async def test_what_is_no_http_is_400(served: Served, junk: bytes) -> None:
    _, http = served
    status, error = error_of(await talk(http, junk))
    assert status == b"400" and error["code"] == "invalid_http" and error["request_id"]


H2C = b"Connection: Upgrade, HTTP2-Settings\r\n%b: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade"])
@pytest.mark.parametrize("cut", [0, 1, 30, 40])
async def test_an_offer_of_http_2_is_ignored(served: Served, name: bytes, cut: int) -> None:
    """As Java's client makes it with a body behind, in one packet or in many."""
    _, http = served
    body = json.dumps(completion()).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + H2C % name
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    size = cut or len(whole)
    pieces = [whole[first : first + size] for first in range(0, len(whole), size)]
    if cut == 40:  # the name itself comes in two
        middle = whole.index(name) + 3
        pieces = [whole[:middle], whole[middle:]]
    reply = await talk(http, *pieces)
    assert reply.startswith(b"HTTP/1.1 200 ") and b'"text_completion"' in reply


@pytest.mark.parametrize("left", [1, 2, 3])
async def test_a_head_whose_end_comes_in_two_has_a_body_behind_it(
    served: Served, left: int
) -> None:
    """What stands at the end of such a body is nothing that a head may end with."""
    _, http = served
    body = json.dumps(completion()).encode() + b"\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    reply = await talk(http, head[:-left], head[-left:] + body)
    assert reply.startswith(b"HTTP/1.1 200 ")


async def test_a_long_body_is_no_head_and_a_connection_serves_again(served: Served) -> None:
    _, http = served
    for _ in range(3):
        reply = await http.post("/v1/completions", json=completion(prompt="x" * 100_000))
        assert reply.status_code == 200


async def test_a_head_that_does_not_come_closes_the_connection(
    fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)
    async with serving(fake.address) as (_, url), httpx.AsyncClient(base_url=url) as http:
        assert await talk(http) == b""
        assert await talk(http, b"GET /live HTT") == b""


@pytest.mark.parametrize("rest", [b"x", b"x" * 9, b"x" * 9 + b"\r\n"])
async def test_what_comes_behind_an_answer_does_not_keep_the_connection(
    served: Served, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.5)
    url = served[1].base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /no/such/route HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
    assert b" 404 " in await reader.readline()
    await asyncio.sleep(0.1)
    writer.write(rest)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_is_missed_whatever_it_has_sent_behind(
    served: Served, fake: FakeTokenizer, is_stream: bool
) -> None:
    _, http = served
    fake.script = None
    body = json.dumps(completion(stream=is_stream)).encode()
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write((head + body) * 3)
    stream, slot = await fake.arrivals.get()
    stream.token(slot, "Hello")
    writer.transport.abort()
    assert await fake.aborts.get() == slot
    assert list(stream.requests_seen) == [slot], "nobody is there for the others"


async def test_requests_that_come_together_are_answered_in_turn(served: Served) -> None:
    _, http = served
    body = json.dumps(completion()).encode()
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n" % len(body)
    last = head + b"connection: close\r\n\r\n" + body
    many = 2 * protocol.MAX_PIPELINED
    replies = await talk(http, (head + b"\r\n" + body) * many + last)
    assert replies.count(b"HTTP/1.1 200 OK") == replies.count(b"Hello there") == many + 1


async def test_a_stream_to_http_1_0_has_no_chunks(served: Served) -> None:
    """ApacheBench and proxies of that version would take the frames for text."""
    _, http = served
    body = json.dumps(completion(stream=True)).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
    head, _, events = (await talk(http, head + body)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    *frames, end = events.split(b"\n\n")
    assert end == b"" and frames[-1] == b"data: [DONE]" and len(frames) > 2
    assert all(frame.startswith(b"data: ") for frame in frames)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_whole_reply_to_http_1_0_has_its_length(served: Served, method: bytes) -> None:
    _, http = served
    reply = await talk(http, method + b" /v1/models HTTP/1.0\r\n\r\n")
    head, _, body = reply.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert len(body) == (length if method == b"GET" else 0) and length > 0


async def test_what_came_while_the_process_was_stopped_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`docker pause` of half a minute reset who had connected before and asked meanwhile.

    A time that is up when it begins is one that went by in a sleep.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.0)
    monkeypatch.setattr(protocol, "LAST_LOOK_S", 3600.0)
    config = uvicorn.Config(
        app, http=BoundedProtocol, lifespan="off", log_config=None, timeout_keep_alive=0
    )
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as door:
        serving = asyncio.create_task(server.serve(sockets=[door]))
        reader, writer = await asyncio.open_connection(*door.getsockname())
        for _ in range(2):
            await asyncio.sleep(0.05)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(10):
                assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        server.leave()
        await serving
