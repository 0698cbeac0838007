"""A port that somebody has is named, whatever would listen there."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from common import rpc
from common.channel import Router
from common.errors import PortTaken
from common.metrics import new_registry, serve
from protos.worker import FromWorker


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:  # others like it may
        yield int(server.getsockname()[1])


def test_the_side_port(taken: int) -> None:
    with pytest.raises(PortTaken, match=f"metrics port 127.0.0.1:{taken} cannot be used: Address"):
        serve("127.0.0.1", taken, new_registry(), list)


def test_a_router(taken: int) -> None:
    with zmq.Context() as context, pytest.raises(PortTaken, match=f"{taken} cannot be listened on"):
        Router(context, f"tcp://127.0.0.1:{taken}", FromWorker)


async def test_a_grpc_server(taken: int) -> None:
    with pytest.raises(PortTaken, match=f"127.0.0.1:{taken} cannot be listened on"):
        await rpc.start_server(rpc.new_server(), f"127.0.0.1:{taken}")
