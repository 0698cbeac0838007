from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from common.channel import CONNECT_TIMEOUT_S, GIVE_UP_S, Dealer, Gone, Router
from protos import worker as wire


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.term()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_messages_arrive_typed_both_ways(context: zmq.Context[Any], host: str) -> None:
    router: Router[Any] = Router(context, f"tcp://{host}:0", wire.FromWorker)
    dealer: Dealer[Any] = Dealer(context, router.address, "worker", wire.ToWorker)
    dealer.send(wire.Heartbeat(rank=1))
    received = router.receive(5)
    assert received is not None
    peer, message = received
    assert message == wire.Heartbeat(rank=1)
    assert peer.startswith(b"worker-")
    router.send(peer, wire.Allocate(num_blocks=7))
    assert dealer.receive(5) == wire.Allocate(num_blocks=7)
    assert dealer.receive(0) is None
    assert router.receive(0) is None
    dealer.close()
    router.close()


def test_nothing_is_queued_for_the_dead(context: zmq.Context[Any]) -> None:
    router: Router[Any] = Router(context, "tcp://127.0.0.1:0", wire.FromWorker)
    with pytest.raises(Gone, match="nobody"):
        router.send(b"nobody", wire.Shutdown())
    router.close()


def test_the_kernel_gives_up_a_peer_whose_host_is_gone(context: zmq.Context[Any]) -> None:
    router: Router[Any] = Router(context, "tcp://127.0.0.1:0", wire.FromWorker)
    dealer: Dealer[Any] = Dealer(context, router.address, "worker", wire.ToWorker)
    dealer.send(wire.Heartbeat(rank=0))
    assert router.receive(5) is not None
    ends = connections_at(router.port)
    assert len(ends) == 2
    for end in ends:
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < GIVE_UP_S
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GIVE_UP_S * 1000
        end.close()
    assert dealer.socket.getsockopt(zmq.CONNECT_TIMEOUT) == CONNECT_TIMEOUT_S * 1000
    dealer.close()
    router.close()


def connections_at(port: int) -> list[socket.socket]:
    """Return copies of this process's sockets that have `port` at an end of a connection."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(number)))
        except OSError:  # no socket
            continue
        try:
            if port in (copy.getsockname()[1], copy.getpeername()[1]):
                found.append(copy)
                continue
        except (OSError, IndexError):  # of another kind, or not connected
            pass
        copy.close()
    return found
