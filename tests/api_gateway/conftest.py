"""A gateway in this process before a fake tokenizer; `served` puts it on a real port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from api_gateway.__main__ import Gateway, configure
from api_gateway.asgi import Message, Send
from api_gateway.settings import Settings
from protos import limits
from tests.api_gateway.official import verify
from tests.api_gateway.requests import chat
from tests.support.fake_tokenizer import FakeTokenizer, echo


async def until(what: Callable[[], bool]) -> None:
    """Let the loop turn until something that nobody announces has come about."""
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def no_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake says nothing of itself: what it has said since the loss is word enough."""
    monkeypatch.setattr(limits, "AFTERMATH_S", 0.0)


@pytest.fixture
async def fake() -> AsyncIterator[FakeTokenizer]:
    tokenizer = await FakeTokenizer(echo()).start()
    yield tokenizer
    await tokenizer.stop()


@asynccontextmanager
async def running(tokenizers: str, **settings: Any) -> AsyncIterator[Gateway]:
    """A started gateway without a server."""
    gateway = Gateway(Settings(tokenizers=tokenizers, **settings))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@pytest.fixture
async def gateway(fake: FakeTokenizer) -> AsyncIterator[Gateway]:
    async with running(fake.address) as started:
        await until(lambda: bool(started.clients.states()))
        yield started


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Calls the application without a port; replies come whole."""
    async with in_process(gateway) as http:
        yield http


@asynccontextmanager
async def in_process(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose every reply is held against OpenAI's schemas."""
    transport = httpx.ASGITransport(gateway.app())
    options: dict[str, Any] = {"base_url": "http://gateway", "event_hooks": {"response": [verify]}}
    async with httpx.AsyncClient(transport=transport, **options) as http:
        yield http


@asynccontextmanager
async def serving(tokenizers: str, **settings: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway behind real uvicorn on a free port; yields it and its URL."""
    gateway = Gateway(Settings(tokenizers=tokenizers, **settings))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)  # slow clients show soon
    server = uvicorn.Server(configure(gateway.app()))
    task = asyncio.create_task(server._serve([sock]))
    await until(lambda: server.started and bool(gateway.clients.states()))
    try:
        yield gateway, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        gateway.watch.end_all()
        server.should_exit = True
        await task


@pytest.fixture
async def served(fake: FakeTokenizer) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        gateway, url = await stack.enter_async_context(serving(fake.address))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        yield gateway, http


async def asked_for_a_chat(gateway: Gateway, send: Send, **fields: Any) -> None:
    """One call of the application, whose `send` may wait as a full socket does."""
    body: asyncio.Queue[Message] = asyncio.Queue()
    body.put_nowait({"type": "http.request", "body": json.dumps(chat(**fields)).encode()})
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await gateway.app()(scope, body.get, send)


@pytest.fixture
def free_address() -> str:
    """A loopback address on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"
