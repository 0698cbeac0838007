"""The engine's side of a worker on real ZeroMQ: a front that leases, a scheduler that plans."""

from __future__ import annotations

import socket
import time
from typing import Any, TypeVar

import msgspec
import zmq

from common.channel import Router
from protos import worker as wire

M = TypeVar("M", bound=msgspec.Struct)
PATIENCE_S = 20.0
KEY = "secret"


class FakeFront:
    """Binds the registry; leases to whoever says Hello."""

    def __init__(self, context: zmq.Context[Any], port: int = 0) -> None:
        wait_until_free(port)
        self.router: Router[wire.FromWorker] = Router(
            context, f"tcp://127.0.0.1:{port or '*'}", wire.FromWorker
        )
        self.address = f"127.0.0.1:{self.router.port}"
        self._known: set[bytes] = set()

    def hello(self) -> tuple[bytes, wire.Hello]:
        """Return the next worker that registers; what a known one says again is passed over."""
        while True:
            received = self.router.receive(PATIENCE_S)
            assert received is not None, "no worker said Hello"
            peer, message = received
            assert isinstance(message, wire.Hello), message
            if peer not in self._known:
                self._known.add(peer)
                return peer, message

    def lease(self, peer: bytes, port: int) -> None:
        self.router.send(peer, wire.Lease(0, 0, 1, port, KEY))

    def close(self) -> None:
        self.router.close()


def wait_until_free(port: int) -> None:
    """ZeroMQ lets go of a closed socket's port in a thread of its own."""
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return probe.bind(("127.0.0.1", port))
            except OSError:
                time.sleep(0.005)


class FakeScheduler:
    """Binds a port for one worker and speaks to the first that reports."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.router: Router[wire.FromWorker] = Router(context, "tcp://127.0.0.1:*", wire.FromWorker)
        self.port = self.router.port
        self.peer = b""

    def expect(self, kind: type[M]) -> M:
        """Return the next message that is no heartbeat; it must be a `kind`."""
        while True:
            received = self.router.receive(PATIENCE_S)
            assert received is not None, f"no {kind.__name__} came"
            self.peer, message = received
            assert self.peer.startswith(KEY.encode()), "who has no lease is not heard"
            if isinstance(message, wire.Heartbeat):
                continue
            assert isinstance(message, kind), message
            return message

    def heartbeat(self) -> None:
        """Wait for one heartbeat."""
        received = self.router.receive(PATIENCE_S)
        assert received is not None and isinstance(received[1], wire.Heartbeat), received

    def send(self, message: msgspec.Struct) -> None:
        self.router.send(self.peer, message)

    def start_worker(self, num_blocks: int) -> tuple[wire.KvReport, wire.WorkerReady]:
        """Take a leased worker to readiness."""
        report = self.expect(wire.KvReport)
        self.send(wire.Allocate(num_blocks))
        return report, self.expect(wire.WorkerReady)

    def execute(self, plan: wire.ExecutePlan) -> wire.StepResult:
        self.send(plan)
        return self.expect(wire.StepResult)

    def close(self) -> None:
        self.router.close()


class FakeEngine:
    """All fakes of one test, closed together."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self._open: list[FakeFront | FakeScheduler] = []
        self.front = self.new_front()

    def new_front(self, port: int = 0) -> FakeFront:
        self.front = FakeFront(self.context, port)
        self._open.append(self.front)
        return self.front

    def scheduler(self) -> FakeScheduler:
        scheduler = FakeScheduler(self.context)
        self._open.append(scheduler)
        return scheduler

    def lease(self) -> tuple[bytes, FakeScheduler]:
        """Lease a fresh scheduler to the next worker that says Hello."""
        scheduler = self.scheduler()
        peer, _ = self.front.hello()
        self.front.lease(peer, scheduler.port)
        return peer, scheduler

    def ready(self, num_blocks: int = 24) -> tuple[bytes, FakeScheduler]:
        """Take the next worker that says Hello to readiness."""
        peer, scheduler = self.lease()
        scheduler.start_worker(num_blocks)
        return peer, scheduler

    def close(self) -> None:
        for fake in self._open:
            fake.close()
        self.context.destroy(linger=0)
