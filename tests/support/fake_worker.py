"""A worker in a thread: real ZeroMQ, checked plans; it hangs, faults and dies on demand."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from common.channel import Dealer
from protos.worker import (
    Allocate,
    ExecutePlan,
    Heartbeat,
    Hello,
    KvReport,
    Lease,
    ModelFacts,
    ToWorker,
    WorkerFault,
    WorkerReady,
)
from tests.engine_core.scheduling.checking_worker import CheckingWorker

HEARTBEAT_S = 0.05


class FakeWorker:
    """Registers at `port` and serves until stopped or left alone by its scheduler.

    `gate` cleared: the step in flight does not end, heartbeats go on. `hang()`: nothing moves any
    more, as under SIGSTOP, until `wake()`. `fault(...)`: the next step fails. `die()`: its
    connections break.
    """

    def __init__(
        self, port: int, *, max_blocks: int = 64, block_size: int = 16, model_hash: str = "m"
    ) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.computing = threading.Event()  # a plan has arrived
        self.plans: list[ExecutePlan] = []
        self.lease: Lease | None = None
        self.error: BaseException | None = None
        self._facts = ModelFacts(1000, 512, "fake", model_hash, block_size, max_blocks)
        self._port = port
        self._end = threading.Event()
        self._hung = threading.Event()
        self._fault = ""
        self._sockets: list[zmq.Socket[bytes]] = []
        self._thread = threading.Thread(target=self._run, name="fake worker", daemon=True)
        self._thread.start()

    def die(self) -> None:
        self._end.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def hang(self) -> None:
        self._hung.set()

    def wake(self) -> None:
        self._hung.clear()

    def fault(self, message: str) -> None:
        self._fault = message

    def _run(self) -> None:
        context = zmq.Context()
        try:
            self._live(context)
        except Ended:
            pass
        except BaseException as error:  # told to the test by die()
            self.error = error
        finally:
            for socket in self._sockets:
                socket.close()
            context.term()

    def _live(self, context: zmq.Context[Any]) -> None:
        door = self._dial(context, self._port, "fake")
        hash_ = self._facts.model_hash
        door.send(Hello("fake", "cpu", hash_, "1"))
        lease = self._expect(door, Lease, lambda: None)
        self.lease = lease
        scheduler = self._dial(context, lease.port, lease.key)
        monitor = scheduler.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._sockets.append(monitor)

        def beat() -> None:
            while monitor.poll(0):
                recv_monitor_message(monitor)
                raise Ended("the scheduler left")
            scheduler.send(Heartbeat(lease.rank))

        scheduler.send(KvReport(lease.rank, self._facts))
        self._expect(scheduler, Allocate, beat)
        scheduler.send(WorkerReady(lease.rank, {"load": 0.1}))
        model = CheckingWorker(self._facts.block_size, 10_000, 1_000_000)
        while True:
            plan = self._expect(scheduler, ExecutePlan, beat)
            self.plans.append(plan)
            self.computing.set()
            while not self.gate.wait(HEARTBEAT_S) or self._hung.is_set():
                self._pause(beat)
            if self._fault:
                scheduler.send(WorkerFault(plan.step_id, self._fault))
                raise Ended("faulted")
            scheduler.send(model.execute(plan))
            model.applied(plan.step_id)

    def _dial(self, context: zmq.Context[Any], port: int, name: str) -> Dealer[ToWorker]:
        dealer: Dealer[ToWorker] = Dealer(context, f"tcp://127.0.0.1:{port}", name, ToWorker)
        self._sockets.append(dealer.socket)
        return dealer

    def _expect(self, dealer: Dealer[ToWorker], kind: Any, beat: Any) -> Any:
        next_beat = 0.0
        while True:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + HEARTBEAT_S
                self._pause(beat)
            if dealer.socket.poll(10) and not self._hung.is_set():
                message: msgspec.Struct | None = dealer.receive(0)
                if isinstance(message, kind):
                    return message

    def _pause(self, beat: Any) -> None:
        if self._end.is_set():
            raise Ended("told to die")
        if not self._hung.is_set():
            beat()


class Ended(Exception):
    pass
