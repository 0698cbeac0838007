"""Clients that take little are served; those that take nothing are cut off, of whole replies too.

The clock of these tests is their own; what the kernel tells is real.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
import uvicorn

from api_gateway.job import Job
from api_gateway.protocol import BoundedProtocol
from api_gateway.server import STREAMS_FIRST_S, Server
from api_gateway.taking import TCP_INFO_BYTES, UNACKED_AT, UNSENT_AT, Taking, look_at
from api_gateway.watch import Vigil, Watch
from tests.api_gateway.conftest import until

TIMEOUT_S = 30.0


class Ends(NamedTuple):
    """A connection before whose client lies more than the kernel takes."""

    transport: asyncio.Transport
    client: socket.socket

    async def read_some(self) -> None:
        """Let the client read a little, until its host has said so."""
        before = look_at(self.transport).num_taken
        while look_at(self.transport).num_taken == before:
            await asyncio.get_running_loop().sock_recv(self.client, 1024)
            await asyncio.sleep(0.001)


def look_often(watch: Watch, start: float, end: float) -> None:
    """Tick from `start` to `end` as a gateway that does not sleep."""
    for second in range(int(end - start)):
        watch.tick(start + second)
    watch.tick(end)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(door.getsockname())
        client.setblocking(False)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=door.accept()[0])
        transport.write(bytes(2**24))
        await until(lambda: look_at(transport).num_taken > 0)
        yield Ends(transport, client)
        transport.abort()


async def test_it_tells_since_when_nothing_is_taken(ends: Ends) -> None:
    taking = Taking(ends.transport, 0.0)
    assert taking.nothing_since(5.0) == 5.0
    assert taking.nothing_since(9.0) == 5.0
    assert taking.nothing_since(10.0) == 5.0
    await ends.read_some()
    assert taking.nothing_since(11.0) == 11.0


async def test_what_this_process_has_slept_is_no_silence_of_a_client(ends: Ends) -> None:
    """`docker pause` of a gateway cut off its clients when it went on."""
    taking = Taking(ends.transport, 0.0)
    taking.nothing_since(1.0)
    assert taking.nothing_since(41.0) == 41.0
    assert taking.nothing_since(42.0) == 41.0


async def test_nothing_that_waits_is_no_silence() -> None:
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=here)
    taking = Taking(transport, 0.0)
    assert [taking.nothing_since(now) for now in (1.0, 50.0)] == [1.0, 50.0]
    transport.close()
    there.close()


@pytest.mark.parametrize("at", [UNACKED_AT, UNSENT_AT])
def test_what_the_kernel_alone_has_waits_too(at: int) -> None:
    """As of a short reply to a host that is gone."""
    transport, info = MagicMock(), bytearray(TCP_INFO_BYTES)
    transport.get_write_buffer_size.return_value = 0
    transport.get_extra_info().getsockopt.return_value = info
    assert not look_at(transport).is_waiting
    info[at] = 1
    assert look_at(transport).is_waiting
    info[at] = 0
    transport.get_write_buffer_size.return_value = 1
    assert look_at(transport).is_waiting, "what the kernel has not got yet, too"


async def test_a_send_after_a_long_silence_has_all_its_time() -> None:
    transport = MagicMock()
    transport.get_write_buffer_size.return_value = 1
    transport.get_extra_info().getsockopt.return_value = bytes(TCP_INFO_BYTES)
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(3600))
    vigil, watch = Vigil(Job([]), task, Taking(transport, 0.0)), Watch(15.0, TIMEOUT_S)
    watch.add(vigil)
    vigil.sending_since_s = 100.0
    watch.tick(100.5)
    assert not vigil.was_slow
    look_often(watch, 100.5, 100.5 + TIMEOUT_S)
    assert vigil.was_slow
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_of_a_slow_reader_is_not_cut_off(ends: Ends) -> None:
    watch = Watch(15.0, TIMEOUT_S)
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(3600))
    vigil = Vigil(Job([]), task, Taking(ends.transport, 0.0))
    vigil.sending_since_s = 0.0
    watch.add(vigil)
    for now in (1.0, 29.0, 58.0, 87.0):  # one send waits for all that time
        await ends.read_some()
        look_often(watch, now, now + TIMEOUT_S - 1.0)
        assert not vigil.was_slow
    look_often(watch, 87.0 + TIMEOUT_S - 1.0, 87.0 + TIMEOUT_S)
    assert vigil.was_slow
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_server_cuts_off_who_takes_nothing_of_a_whole_reply() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**24)})

    config = uvicorn.Config(app, http=BoundedProtocol, log_config=None, lifespan="off")
    server = Server(config, slow_client_timeout_s=0.2 - STREAMS_FIRST_S)
    with socket.create_server(("127.0.0.1", 0)) as door:
        serving = asyncio.create_task(server.serve(sockets=[door]))
        reader, writer = await asyncio.open_connection(*door.getsockname(), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await reader.readuntil(b"\r\n")
        await until(lambda: not server.server_state.connections)
        writer.close()
        server.leave()
        await serving
