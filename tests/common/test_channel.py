from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from common.channel import Dealer, Gone, Router
from protos import worker as wire


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.term()


def test_messages_arrive_typed_both_ways(context: zmq.Context[Any]) -> None:
    router: Router[Any] = Router(context, "tcp://127.0.0.1:0", wire.FromWorker)
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
