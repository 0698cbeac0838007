"""Workers find partners, and what is no worker of ours harms nobody."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq

from common.channel import Dealer
from engine_core import registry
from engine_core.registry import Registry
from engine_core.replica import Replica
from engine_core.scheduling.bounds import TenantLimits
from protos.common_pb2 import LENGTH
from protos.worker import Hello, Lease, ReplicaLost, SchedulerListening, ToFront, ToWorker, Waiting
from tests.engine_core.stack import Caller, Stack, calling, running_stack
from tests.support.fake_worker import FakeWorker

WAITS = "1 worker waits: of another model than the replicas' (m): fake (other)"
LONE = (
    "1 worker waits for partners: a replica takes 2 (tensor_parallel_size), all of one model, "
    "build and device"
)


@pytest.fixture
async def pairs() -> AsyncIterator[Stack]:
    async with running_stack(world_size=2) as running:
        yield running


async def served(caller: Caller, slot: int) -> None:
    await caller.add(slot, [1, 2], max_tokens=5)
    assert (await caller.ended(slot)).reason == LENGTH


async def test_two_workers_make_a_replica_with_the_lesser_memory(pairs: Stack) -> None:
    async with calling(pairs.address) as caller:
        first = FakeWorker(pairs.registry.port, max_blocks=50)
        await caller.until(lambda: LONE in caller.reasons())
        second = FakeWorker(pairs.registry.port, max_blocks=40)
        assert (await caller.ready()).num_blocks == 40
        await served(caller, 1)
        assert first.lease is not None and second.lease is not None
        assert {first.lease.rank, second.lease.rank} == {0, 1}
        first.die()
        await caller.not_ready()
        second.die()


async def test_a_worker_whose_partner_has_left_finds_another(pairs: Stack) -> None:
    context = zmq.Context()
    door: Dealer[ToWorker] = Dealer(
        context, f"tcp://127.0.0.1:{pairs.registry.port}", "gone", ToWorker
    )
    async with calling(pairs.address) as caller:
        door.send(Hello("fake", "cpu", "m", "1"))
        await caller.until(lambda: LONE in caller.reasons())
        door.close()
        context.term()
        workers = [FakeWorker(pairs.registry.port) for _ in range(2)]
        await caller.ready()
        await served(caller, 1)
        for worker in workers:
            worker.die()


async def test_workers_that_left_while_they_waited_are_forgotten(pairs: Stack) -> None:
    """Nobody says that they leave: a worker that is started again and again would be many."""
    context = zmq.Context()
    async with calling(pairs.address) as caller:
        for name in ("a", "b"):
            door: Dealer[ToWorker] = Dealer(
                context, f"tcp://127.0.0.1:{pairs.registry.port}", name, ToWorker
            )
            door.send(Hello("fake", "cpu", "other" + name, "1"))
            await caller.until(lambda: LONE in caller.reasons())
            await asyncio.to_thread(told, door)
            door.close()
            await caller.until(lambda: LONE not in caller.reasons())
    context.term()


def told(door: Dealer[ToWorker]) -> None:
    assert door.receive(10) == Waiting(LONE)


async def test_a_hello_said_again_makes_no_second_worker(pairs: Stack) -> None:
    context = zmq.Context()
    door: Dealer[ToWorker] = Dealer(
        context, f"tcp://127.0.0.1:{pairs.registry.port}", "eager", ToWorker
    )
    async with calling(pairs.address) as caller:
        for _ in range(3):
            door.send(Hello("fake", "cpu", "m", "1"))
        await caller.until(lambda: LONE in caller.reasons())
        assert not pairs.fleet.replicas
        worker = FakeWorker(pairs.registry.port)
        lease = await asyncio.to_thread(leased, door)
        door.send(Hello("fake", "cpu", "m", "1"))
        await asyncio.to_thread(lambda: door.receive(0.5))
        assert list(pairs.fleet.replicas) == [lease.replica]
        worker.die()
    door.close()
    context.term()


async def test_hellos_that_come_at_once_make_one_worker() -> None:
    context = zmq.Context()
    async with running_stack() as stack, calling(stack.address) as caller:
        address = f"tcp://127.0.0.1:{stack.registry.port}"
        door: Dealer[ToWorker] = Dealer(context, address, "eager", ToWorker)
        for _ in range(5):
            door.send(Hello("fake", "cpu", "m", "1"))
        lease = await asyncio.to_thread(leased, door)
        await caller.until(lambda: len(caller.states) > 2)
        assert lease.replica == 1 and list(stack.fleet.replicas) == [1]
        door.close()
    context.term()


def leased(door: Dealer[ToWorker]) -> Lease:
    while not isinstance(message := door.receive(10), Lease):
        assert isinstance(message, Waiting)
    return message


async def test_no_number_of_hellos_forms_more_than_so_many_replicas_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "MAX_FORMING", 1)
    spawn, forming = registry.Registry._spawn, list[int]()

    async def counted(
        self: registry.Registry, number: int, address: str
    ) -> asyncio.subprocess.Process:
        forming.append(len(self._fleet.replicas) - len(self._fleet.ready()))
        return await spawn(self, number, address)

    monkeypatch.setattr(registry.Registry, "_spawn", counted)
    async with running_stack() as stack, calling(stack.address) as caller:
        workers = [FakeWorker(stack.registry.port) for _ in range(3)]
        await caller.until(lambda: len(stack.fleet.ready()) == 3)
        assert forming == [1, 1, 1]
        assert "1 worker waits for a turn: 1 replicas are formed at a time" in caplog.messages
        for worker in workers:
            worker.die()


async def test_another_model_does_not_join(pairs: Stack) -> None:
    async with calling(pairs.address) as caller:
        workers = [FakeWorker(pairs.registry.port) for _ in range(2)]
        await caller.ready()
        strangers = [FakeWorker(pairs.registry.port, model_hash="other") for _ in range(2)]
        await served(caller, 1)
        assert [stranger.lease for stranger in strangers] == [None, None]
        assert len(pairs.fleet.replicas) == 1
        for worker in (*workers, *strangers):
            worker.die()


async def test_two_models_that_register_at_once_are_not_one_engine() -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        workers = [FakeWorker(stack.registry.port, model_hash=name) for name in ("a", "b")]
        time.sleep(0.5)  # noqa: ASYNC251 - both have spoken when the loop looks
        await caller.ready()
        await served(caller, 1)
        assert [worker.lease is None for worker in workers].count(True) == 1
        for worker in workers:
            worker.die()


async def test_another_model_takes_over_only_when_nobody_of_the_first_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        stranger = FakeWorker(stack.registry.port, model_hash="other")
        worker.die()
        await caller.until(lambda: caller.reasons() == [WAITS])
        back = FakeWorker(stack.registry.port)
        await caller.ready()
        await served(caller, 1)
        assert (stranger.lease, back.lease is None) == (None, False)

        monkeypatch.setattr(registry, "MODEL_KEPT_S", 0.1)
        back.die()
        await caller.until(lambda: stranger.lease is not None)
        await caller.ready()
        await served(caller, 2)
        stranger.die()


async def test_noise_on_the_ports_harms_nobody() -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        assert worker.lease is not None
        context = zmq.Context()
        for port in (stack.registry.port, worker.lease.port):
            with socket.create_connection(("127.0.0.1", port)) as probe:
                probe.sendall(b"GET / HTTP/1.1\r\n\r\n")
            noise = context.socket(zmq.DEALER)
            noise.connect(f"tcp://127.0.0.1:{port}")
            noise.send(b"no message")
            noise.send_multipart([b"three", b"frames", b"are odd"])
            noise.close(1000)
        context.term()
        await served(caller, 1)
        assert worker.lease.replica == 1
        worker.die()


async def test_a_killed_scheduler_is_missed_and_replaced() -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        worker.gate.clear()
        await caller.add(1, [1], max_tokens=50)
        (process,) = stack.registry._processes.values()
        os.kill(process.pid, signal.SIGKILL)
        finish = await caller.ended(1)
        assert finish.error.code == "replica_lost"
        assert "ended with status -9" in finish.error.message
        worker.gate.set()
        worker.die()
        new = FakeWorker(stack.registry.port)
        await caller.until(lambda: 2 in stack.fleet.replicas and caller.states[-1].ready)
        await served(caller, 2)
        new.die()


async def test_the_last_word_of_a_scheduler_may_be_read_after_its_end_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = Registry._report
    readers: list[asyncio.Task[None]] = []

    def report_late(self: Registry, replica: Replica, message: ToFront) -> None:
        if isinstance(message, ReplicaLost):
            readers.append(asyncio.create_task(read_when_ended(self, replica, message)))
        else:
            report(self, replica, message)

    async def read_when_ended(self: Registry, replica: Replica, message: ToFront) -> None:
        await self._processes[replica.number].wait()
        report(self, replica, message)

    monkeypatch.setattr(Registry, "_report", report_late)
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        worker.fault("out of cheese")
        await caller.add(1, [1, 2], max_tokens=4)
        assert "out of cheese" in (await caller.ended(1)).error.message
        await asyncio.gather(*readers)
        worker.die()


async def test_a_temporary_folder_too_long_for_sockets_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("x" * 110)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        await served(caller, 1)
        worker.die()
    assert not list(long.iterdir())


async def test_the_sockets_folder_is_gone_before_anybody_can_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        assert not os.listdir(tmp_path)
        await served(caller, 1)
        worker.die()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_scheduler_that_cannot_start_is_tried_again(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        spawn = stack.registry._spawn
        failures = iter([BlockingIOError(errno.EAGAIN, "no process to be had")])

        async def fail_once(number: int, address: str) -> asyncio.subprocess.Process:
            for error in failures:
                if at_once:
                    raise error
                return await asyncio.create_subprocess_exec("false")
            return await spawn(number, address)

        monkeypatch.setattr(stack.registry, "_spawn", fail_once)
        worker = FakeWorker(stack.registry.port)
        await caller.until(lambda: 2 in stack.fleet.replicas and caller.states[-1].ready)
        await served(caller, 1)
        worker.die()


async def test_a_scheduler_that_hangs_at_its_start_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker waits for it, and was never given to another."""
    async with running_stack() as stack, calling(stack.address) as caller:
        spawn = stack.registry._spawn

        async def hang_once(number: int, address: str) -> asyncio.subprocess.Process:
            monkeypatch.undo()
            return await asyncio.create_subprocess_exec("sleep", "1000")

        monkeypatch.setattr(stack.registry, "_spawn", hang_once)
        worker = FakeWorker(stack.registry.port)
        await caller.until(lambda: stack.registry._processes)
        let_pass(stack, 59)
        assert [*stack.fleet.replicas] == [1] and stack.registry._spawn == spawn
        let_pass(stack, 62)
        await caller.until(lambda: 2 in stack.fleet.replicas and caller.states[-1].ready)
        await served(caller, 1)
        worker.die()


async def test_a_stopped_scheduler_is_lost_and_killed() -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        worker.gate.clear()
        await caller.add(1, [1], max_tokens=50)
        await caller.until(lambda: stack.fleet.replicas[1].num_live == 1)
        (process,) = stack.registry._processes.values()
        os.kill(process.pid, signal.SIGSTOP)
        let_pass(stack, 12)
        finish = await caller.ended(1)
        assert finish.error.code == "replica_lost"
        assert "its scheduler has been silent for 1" in finish.error.message
        assert await process.wait() == -signal.SIGKILL
        worker.gate.set()
        worker.die()


async def test_a_front_that_slept_itself_loses_no_replica() -> None:
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        let_pass(stack, 60, at_once=True)
        await served(caller, 1)
        assert [*stack.fleet.replicas] == [1]
        worker.die()


async def test_a_scheduler_that_first_speaks_at_the_end_is_no_failure() -> None:
    """What it has said is read while its end is waited for; the door of the workers is closed."""
    async with running_stack() as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.until(lambda: stack.fleet.replicas)
        (replica,) = stack.fleet.replicas.values()
        await stack.registry.close()
        stack.registry._lease(replica, {}, SchedulerListening(1, "key"))
        worker.die()


async def test_a_scheduler_that_slept_beside_its_worker_loses_nobody() -> None:
    """As in a container that is paused: both have missed nothing, and either may wake first."""
    async with running_stack(worker_timeout_s=2.5) as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        patient = msgspec.structs.replace(stack.registry._config, worker_timeout_s=1000.0)
        stack.registry._config = patient
        (process,) = stack.registry._processes.values()
        worker.hang()
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(4)
        heard_at = stack.fleet.replicas[1].heard_at
        os.kill(process.pid, signal.SIGCONT)
        await caller.until(lambda: stack.fleet.replicas[1].heard_at > heard_at)
        worker.wake()
        await served(caller, 1)
        assert [*stack.fleet.replicas] == [1]
        worker.die()


def let_pass(stack: Stack, seconds: int, *, at_once: bool = False) -> None:
    """Move the front's clock while nothing is heard; it looks every second, or at the end only."""
    for passed in [seconds] if at_once else range(1, seconds + 1):
        stack.fleet.clock = partial(clock_ahead, passed)
        stack.registry.lose_silent()


def clock_ahead(seconds: int) -> float:
    return time.monotonic() + seconds


async def test_any_number_of_tenants_may_have_limits() -> None:
    """An argument of a command has 128 KiB at most."""
    tenants = {f"tenant-{i:05d}": TenantLimits(8192, 1024, 8, 4000, 100) for i in range(2000)}
    async with running_stack(tenants=tenants) as stack, calling(stack.address) as caller:
        worker = FakeWorker(stack.registry.port)
        await caller.ready()
        worker.die()
