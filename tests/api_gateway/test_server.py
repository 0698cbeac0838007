"""The gateway's server: it wakes up seldom, and ends at once when told to."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from api_gateway import server as module
from api_gateway.protocol import BoundedProtocol
from api_gateway.server import Server
from tests.api_gateway.conftest import until


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


async def test_it_serves_with_a_date_and_ends_without_waiting_for_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 3600.0)
    server = Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as door:
        serving = asyncio.create_task(server.serve(sockets=[door]))
        reader, writer = await asyncio.open_connection(*door.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert b"\r\ndate: " in reply and reply.endswith(b"here\r\n0\r\n\r\n")
        server.leave()
        await asyncio.wait_for(serving, 20)


async def test_who_came_before_the_door_closed_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two gateways that share a port one is stopped, and cut its newcomers off.

    Who keeps his connection is told to ask the other one next: he came back here, to a 503.
    """
    monkeypatch.setattr(module, "LAST_WORD_S", 3600.0)
    server = Server(uvicorn.Config(app, http=BoundedProtocol, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = door.getsockname()
        serving = asyncio.create_task(server.serve(sockets=[door]))
        reader, writer = await asyncio.open_connection(*address)
        await until(lambda: bool(server.server_state.connections))
        server.leave()
        await closed(address)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 20)
        assert b"\r\nconnection: close\r\n" in reply and reply.endswith(b"here\r\n0\r\n\r\n")
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def closed(address: tuple[str, int]) -> None:
    """Return when nobody listens there."""
    with suppress(ConnectionRefusedError, ConnectionResetError):  # queued while it closed
        while True:
            _, writer = await asyncio.open_connection(*address)
            writer.close()
            await asyncio.sleep(0.01)
