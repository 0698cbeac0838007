"""WorkerServer on real ZeroMQ: registration, steps, heartbeats, loss, new lives, SIGTERM."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from common.errors import CANNOT_WORK
from common.metrics import new_registry, serve
from protos import common_pb2
from protos import worker as wire
from tests.conftest import ROOT
from tests.support.fake_scheduler import FakeEngine, FakeScheduler
from tests.support.running_worker import HELLO, Running
from tests.support.stack import eventually
from tests.worker.plans import generate, sampling, start
from worker.build import LoadedModel
from worker.flights import Flight, Flights
from worker.host_tier import HostTier
from worker.kernels.checks import Bytes
from worker.memory import DeviceMemory
from worker.metrics import WorkerMetrics
from worker.model_runner import ModelRunner

PROMPT = list(range(5, 40))


@pytest.fixture
def running(engine: FakeEngine, tiny: LoadedModel) -> Iterator[Running]:
    running = Running(engine, tiny)
    yield running
    running.end()


def first_token(scheduler: FakeScheduler, step_id: int = 0) -> int:
    result = scheduler.execute(wire.ExecutePlan(step_id, starts=(start(1, PROMPT, range(3)),)))
    assert (result.step_id, result.seq_ids) == (step_id, (1,))
    return result.token_ids[0]


def test_registration_then_steps(engine: FakeEngine, running: Running, tiny: LoadedModel) -> None:
    scheduler = engine.scheduler()
    peer, hello = engine.front.hello()
    assert hello == HELLO
    told = f"waiting for a lease of the engine ({engine.front.address})"  # it may be a wrong one
    assert running.server.reasons() == [told]
    engine.front.lease(peer, scheduler.port)
    report, ready_message = scheduler.start_worker(24)
    assert report.facts == tiny.facts(10**6)
    assert set(ready_message.startup_s) == {"load", "measure", "allocate", "warm_up", "grammars"}
    assert set(ready_message.memory) == {"weights", "kv", "workspace", "reserve"}
    expected = generate(tiny.runner(24), {1: PROMPT}, 3).token_ids[1]
    tokens = [first_token(scheduler)]
    for step_id in (1, 2):
        plan = wire.ExecutePlan(step_id, steps=(wire.SequenceStep(1, 1),))
        tokens += scheduler.execute(plan).token_ids
    assert tokens == expected
    assert running.server.reasons() == []
    assert running.registry.get_sample_value("millrace_worker_steps_total") == 3
    assert running.registry.get_sample_value("millrace_worker_tokens_total") == 3
    value = running.registry.get_sample_value
    assert 0 < (value("millrace_worker_device_free_bytes") or 0)
    assert (value("millrace_worker_device_total_bytes") or 0) > 2**20
    for seconds in ("busy_seconds_total", "forward_seconds_sum", "sample_seconds_sum"):
        assert (value(f"millrace_worker_{seconds}") or 0) > 0


def test_two_plans_may_be_in_flight(engine: FakeEngine, running: Running) -> None:
    _, scheduler = engine.ready()
    scheduler.send(wire.ExecutePlan(0, starts=(start(1, PROMPT, range(3)),)))
    scheduler.send(wire.ExecutePlan(1, steps=(wire.SequenceStep(1, 1),)))
    assert [scheduler.expect(wire.StepResult).step_id for _ in range(2)] == [0, 1]


class SlowDevice:
    """Makes runners whose steps take until `go_on`; counts those that have begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)
        begin = ModelRunner.begin

        def slow(runner: ModelRunner, plan: wire.ExecutePlan, land: Callable[[], None]) -> Flight:
            flight = begin(runner, plan, land)
            self.begun.release()
            return flight._replace(wait=self._wait)

        monkeypatch.setattr(ModelRunner, "begin", slow)

    def _wait(self) -> None:
        assert self.go_on.wait(20)


def test_a_step_begins_while_a_device_computes_the_one_before(
    engine: FakeEngine, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, scheduler = engine.ready()
    device = SlowDevice(monkeypatch)
    scheduler.send(wire.ExecutePlan(0, starts=(start(1, PROMPT, range(3)),)))
    scheduler.send(wire.ExecutePlan(1, steps=(wire.SequenceStep(1, 1),)))
    assert all(device.begun.acquire(timeout=20) for _ in range(2))
    device.go_on.set()
    assert [scheduler.expect(wire.StepResult).step_id for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("message", [wire.ExecutePlan(9), wire.StoreBlocks(3, (), ())])
def test_what_is_said_behind_a_step_in_flight_is_answered_behind_it(
    engine: FakeEngine, running: Running, monkeypatch: pytest.MonkeyPatch, message: wire.ToWorker
) -> None:
    _, scheduler = engine.ready()
    device = SlowDevice(monkeypatch)
    scheduler.send(wire.ExecutePlan(0))
    assert device.begun.acquire(timeout=20)
    land_all = Flights.land_all

    def land(flights: Flights) -> None:
        device.go_on.set()
        land_all(flights)

    monkeypatch.setattr(Flights, "land_all", land)
    scheduler.send(message)
    assert scheduler.expect(wire.StepResult).step_id == 0
    is_plan = isinstance(message, wire.ExecutePlan)
    scheduler.expect(wire.WorkerFault if is_plan else wire.ErrandDone)


def test_a_life_that_ends_in_flight_waits_for_the_device(
    engine: FakeEngine, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, scheduler = engine.ready()
    device = SlowDevice(monkeypatch)
    scheduler.send(wire.ExecutePlan(0))
    assert device.begun.acquire(timeout=20)
    scheduler.close()
    device.go_on.set()
    new_peer, scheduler = engine.ready()
    assert new_peer != peer
    first_token(scheduler)


def test_errands_are_answered_beside_the_steps(engine: FakeEngine, running: Running) -> None:
    _, scheduler = engine.ready()
    rule = common_pb2.Grammar(kind=common_pb2.Grammar.REGEX, text="a")
    scheduler.send(wire.CompileGrammar(7, sampling(grammar=rule)))
    done = scheduler.expect(wire.ErrandDone)
    assert (done.rank, done.errand_id) == (0, 7)
    assert "tokenizer.json" in done.error, "this folder has none"
    scheduler.send(wire.CompileGrammar(8, b"\xff"))
    assert "compiling failed" in scheduler.expect(wire.ErrandDone).error
    first_token(scheduler)


def test_grammars_are_compiled_beside_the_steps(engine: FakeEngine, tiny: LoadedModel) -> None:
    go_on = threading.Event()

    class Slow:
        def warm_up(self) -> None:
            """There is no tokenizer to read."""

        def prepare(self, sampling: bytes) -> str:
            assert go_on.wait(20)
            if sampling == b"broken":
                raise RuntimeError("compiler")
            return "no rule" * (sampling == b"bad")

    running = Running(engine, replace(tiny, grammars=Slow()))  # type: ignore[arg-type]
    try:
        _, scheduler = engine.ready()
        for errand_id, sampling in enumerate((b"good", b"bad", b"broken")):
            scheduler.send(wire.CompileGrammar(errand_id, sampling))
        first_token(scheduler)
        go_on.set()
        answers = [scheduler.expect(wire.ErrandDone) for _ in range(3)]
        assert answers[:2] == [wire.ErrandDone(0, 0), wire.ErrandDone(0, 1, "no rule")]
        assert answers[2].errand_id == 2 and "compiler" in answers[2].error
    finally:
        go_on.set()
        running.end()


def test_the_answer_to_an_errand_of_an_earlier_life_is_dropped(
    engine: FakeEngine, tiny: LoadedModel
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def warm_up(self) -> None:
            """There is no tokenizer to read."""

        def prepare(self, sampling: bytes) -> str:
            begun.set()
            assert go_on.wait(20)
            return ""

    running = Running(engine, replace(tiny, grammars=Slow()))  # type: ignore[arg-type]
    try:
        _, scheduler = engine.ready()
        scheduler.send(wire.CompileGrammar(1, b""))
        assert begun.wait(20)
        scheduler.close()
        _, scheduler = engine.ready()
        go_on.set()
        for thread in threading.enumerate():
            if thread.name.startswith("errand"):
                thread.join(20)  # it has answered
        first_token(scheduler)
    finally:
        go_on.set()
        running.end()


def test_heartbeats_go_out_while_a_step_runs(
    engine: FakeEngine,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, scheduler = engine.ready()
    go_on = threading.Event()
    begin = ModelRunner.begin

    def slow(self: ModelRunner, plan: wire.ExecutePlan, land: Callable[[], None]) -> Flight:
        assert go_on.wait(20)
        return begin(self, plan, land)

    monkeypatch.setattr(ModelRunner, "begin", slow)
    scheduler.send(wire.ExecutePlan(0))
    scheduler.heartbeat()
    scheduler.heartbeat()
    go_on.set()
    assert scheduler.expect(wire.StepResult).step_id == 0


def test_a_step_that_throws_is_a_fault_and_a_new_life(
    engine: FakeEngine,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    peer, scheduler = engine.ready()
    expected = first_token(scheduler)
    scheduler.send(wire.ExecutePlan(1, copies=(wire.BlockCopy(0, 1000),)))
    fault = scheduler.expect(wire.WorkerFault)
    assert fault.step_id == 1 and "1000" in fault.message
    new_peer, scheduler = engine.ready()
    assert new_peer != peer
    assert first_token(scheduler) == expected
    assert running.num_loads == 1


def test_a_gap_in_the_steps_is_a_fault(engine: FakeEngine, running: Running) -> None:
    _, scheduler = engine.ready()
    first_token(scheduler, step_id=5)
    scheduler.send(wire.ExecutePlan(7))
    assert "step 7 came after step 5" in scheduler.expect(wire.WorkerFault).message
    engine.front.hello()


def test_a_lost_scheduler_means_a_new_life_with_the_old_weights(
    engine: FakeEngine, running: Running
) -> None:
    peer, scheduler = engine.ready()
    expected = first_token(scheduler)
    scheduler.close()
    new_peer, scheduler = engine.ready()
    assert new_peer != peer and running.num_loads == 1
    assert first_token(scheduler) == expected


def test_a_lost_front_means_a_new_life(engine: FakeEngine, running: Running) -> None:
    engine.ready()
    port = engine.front.router.port
    engine.front.close()
    engine.new_front(port)
    _, scheduler = engine.ready()
    first_token(scheduler)


def test_a_front_that_is_not_up_yet_is_waited_for(engine: FakeEngine, tiny: LoadedModel) -> None:
    port = engine.front.router.port
    engine.front.close()
    running = Running(engine, tiny)
    try:
        engine.new_front(port)
        try:
            engine.ready()
        except AssertionError:  # the Hello was of a life that ended with the front that went
            engine.ready()
    finally:
        running.end()


def test_a_scheduler_that_is_not_there_means_a_new_life(
    engine: FakeEngine, running: Running
) -> None:
    peer, scheduler = engine.lease()
    scheduler.expect(wire.KvReport)
    scheduler.close()
    other, _ = engine.front.hello()
    engine.front.lease(other, scheduler.port)
    engine.ready()


def test_a_message_out_of_turn_means_a_new_life(engine: FakeEngine, running: Running) -> None:
    _, scheduler = engine.lease()
    scheduler.expect(wire.KvReport)
    scheduler.send(wire.ExecutePlan(0))
    engine.front.hello()


def test_a_message_out_of_turn_while_it_serves_means_a_new_life(
    engine: FakeEngine, running: Running
) -> None:
    _, scheduler = engine.ready()
    scheduler.send(wire.Allocate(1))
    engine.front.hello()


def test_what_a_worker_waits_for_is_told(engine: FakeEngine, running: Running) -> None:
    peer, _ = engine.front.hello()
    scheduler = engine.scheduler()
    engine.front.router.send(peer, wire.Waiting("1 worker waits"))
    told = ["waiting for a lease of the engine: 1 worker waits"]
    eventually(lambda: running.server.reasons() == told)
    engine.front.lease(peer, scheduler.port)
    scheduler.expect(wire.KvReport)


def run_process(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "worker", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_process_serves_and_ends_on_sigterm(engine: FakeEngine, tiny_folder: Path) -> None:
    process = run_process(
        f"--model={tiny_folder}", f"--engine={engine.front.address}", "--metrics-port=0",
        "--threads=1", "--kv-cache-memory=1MiB",
    )  # fmt: skip
    with process:
        scheduler = engine.scheduler()
        peer, hello = engine.front.hello()
        assert len(hello.model_hash) == 16
        engine.front.lease(peer, scheduler.port)
        report, _ = scheduler.start_worker(24)
        assert report.facts.max_blocks == 2**20 // (2 * 2 * 16 * 16 * 4)
        first_token(scheduler)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None and '"stopped"' in process.stderr.read()


def test_a_stop_that_a_destructor_swallows_is_heard_behind_the_load(
    engine: FakeEngine, tiny: LoadedModel
) -> None:
    """Python hands on nothing that is raised there, and handlers run wherever signals come."""

    def swallow() -> None:
        with suppress(Exception):
            running.server.interrupt()

    running = Running(engine, tiny, swallow)
    scheduler = engine.scheduler()
    peer, _ = engine.front.hello()
    engine.front.lease(peer, scheduler.port)
    try:
        running.wait()
    finally:
        running.end()


def test_a_stop_breaks_off_the_compilation_of_the_kernels(
    engine: FakeEngine, tiny_folder: Path, tmp_path: Path
) -> None:
    compiler, began = tmp_path / "endless-c++", tmp_path / "began"
    compiler.write_text(f"#!/bin/sh\n[ $1 = --version ] || {{ echo > {began}; sleep 1000; }}\n")
    compiler.chmod(0o755)
    os.mkfifo(began)
    arguments = (f"--model={tiny_folder}", f"--engine={engine.front.address}", "--metrics-port=0")
    cache = tmp_path / "cache"
    with run_process(*arguments, CXX=str(compiler), XDG_CACHE_HOME=str(cache)) as process:
        scheduler = engine.scheduler()
        peer, _ = engine.front.hello()
        engine.front.lease(peer, scheduler.port)
        began.read_text()  # returns when a compiler has begun
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None and '"stopped"' in process.stderr.read()
    assert [path.name for path in (cache / "millrace" / "kernels").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model=/nowhere"], "/nowhere/config.json"),
        (["--model=/nowhere", "--kv-cache-memory=lots"], "kv_cache_memory is 'lots'"),
        (["--model=/nowhere", "--colour=red"], "colour"),
        (["--model=/nowhere", "--engine=here"], "engine is 'here', expected: host:port"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], words: str) -> None:
    with run_process(*arguments, "--metrics-port=0") as process:
        assert process.wait(20) == CANNOT_WORK
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    assert len(lines) == 1 and words in lines[0]


@pytest.mark.parametrize("num_more", [0, 5])
def test_a_load_goes_on_when_an_answer_comes_between(
    engine: FakeEngine, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, num_more: int
) -> None:
    """Both errands lie there when the step ends; nobody says anything more, or steps go on."""
    go_on, begin = threading.Event(), ModelRunner.begin
    loaded: list[float | None] = []

    def slow(self: ModelRunner, plan: wire.ExecutePlan, land: Callable[[], None]) -> Flight:
        assert plan.step_id == 0 or go_on.wait(20)
        name, event = "millrace_worker_host_blocks_total", {"event": "loaded"}
        loaded.append(served.registry.get_sample_value(name, event))
        return begin(self, plan, land)

    monkeypatch.setattr(ModelRunner, "begin", slow)
    served = Running(engine, replace(tiny, host_kv_bytes=10**6))
    try:
        _, scheduler = engine.ready()
        scheduler.send(wire.ExecutePlan(1))
        keys = tuple(bytes([i]) for i in range(20))
        scheduler.send(wire.StoreBlocks(1, tuple(range(20)), keys))
        scheduler.send(wire.LoadBlocks(2, tuple(range(20)), keys))
        for step_id in range(2, 2 + num_more):
            scheduler.send(wire.ExecutePlan(step_id))
        scheduler.heartbeat()
        scheduler.heartbeat()  # all of it has arrived
        go_on.set()
        for _ in range(1 + num_more):
            scheduler.expect(wire.StepResult)
        answers = [scheduler.expect(wire.ErrandDone) for _ in range(2)]
        assert [answer.num_blocks for answer in answers] == [20, 20]
        assert not num_more or loaded[-1] == 20
    finally:
        go_on.set()
        served.end()


def test_busy_time_is_counted_once_where_steps_overlap() -> None:
    now = 0.0
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, lambda: now)

    def at(time: float, begun: int | None = None, done: int | None = None) -> float | None:
        nonlocal now
        now = time
        if begun is not None:
            metrics.begin_step(begun)
        if done is not None:
            metrics.observe_step(wire.StepResult(done), 1)
        return registry.get_sample_value("millrace_worker_busy_seconds_total")

    at(8.0, begun=1)
    at(9.0, begun=2)
    assert at(10.0, done=1) == pytest.approx(2.0)
    assert at(11.0, done=2) == pytest.approx(3.0), "it began before the last one ended"
    at(19.5, begun=3)
    assert at(20.0, done=3) == pytest.approx(3.5), "idle in between"
    at(21.0, begun=4)
    assert registry.get_sample_value("millrace_worker_sequences") == 1
    metrics.begin_life()
    assert registry.get_sample_value("millrace_worker_sequences") == 0, "none of this life"
    assert at(30.0, done=4) == pytest.approx(3.5), "of another life"


def test_host_memory_that_is_given_up_is_not_told_as_used() -> None:
    """By a reset of the cache, and by the life before this one."""
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)

    def used(tier: HostTier) -> float | None:
        metrics.observe_host_tier(tier)
        return registry.get_sample_value("millrace_worker_host_used_bytes")

    class Blocks:
        num_blocks = 4

        def read(self, block_ids: Sequence[int], outs: Sequence[Bytes]) -> None: ...
        def write(self, block_ids: Sequence[int], contents: Sequence[Bytes]) -> None: ...

    def tier() -> HostTier:
        return HostTier(Blocks(), np.zeros((4, 8), np.uint8))

    first = tier()
    first.store([0, 1, 2], [b"a", b"b", b"c"])
    assert used(first) == 24
    first.drop([b"a"])
    assert used(first) == 16
    assert used(tier()) == 0
    labels = {"event": "stored"}
    assert registry.get_sample_value("millrace_worker_host_blocks_total", labels) == 3


def test_the_device_is_looked_at_now_and_then() -> None:
    now, looks = 0.0, 0
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, lambda: now)

    def read() -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return 100 - looks, 200

    metrics.watch(DeviceMemory("chip", "1.2", read))
    info = {"name": "chip", "driver": "1.2"}
    assert registry.get_sample_value("millrace_worker_device_info", info) == 1
    assert registry.get_sample_value("millrace_worker_device_total_bytes") == 200
    for _ in range(3):
        metrics.observe_step(wire.StepResult(1), 1)
    assert registry.get_sample_value("millrace_worker_device_free_bytes") == 99
    now = 5.0
    metrics.observe_step(wire.StepResult(1), 1)
    assert registry.get_sample_value("millrace_worker_device_free_bytes") == 98


def test_metrics_port_answers() -> None:
    registry = new_registry()
    metrics = WorkerMetrics(registry)
    metrics.observe_step(wire.StepResult(1, (1,), (1,), (9,), forward_s=0.01), 1)
    metrics.observe_startup({"load": 0.5}, {"kv": 1024, "weights": 2048})
    port = serve("127.0.0.1", 0, registry, lambda: ["loading"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text = reply.read().decode()
    for series in (
        "millrace_worker_forward_seconds_count 1.0",
        "millrace_worker_sample_seconds_count 1.0",
        "millrace_worker_steps_total 1.0",
        "millrace_worker_tokens_total 1.0",
        'millrace_worker_memory_bytes{purpose="kv"} 1024.0',
        'millrace_worker_memory_bytes{purpose="weights"} 2048.0',
        'millrace_worker_startup_seconds{phase="load"} 0.5',
        "process_resident_memory_bytes",
    ):
        assert series in text


def test_a_device_that_cannot_be_read_costs_no_step() -> None:
    """As where a flood of connections has taken all descriptors that the process may have."""
    registry, now = new_registry(), 0.0
    metrics = WorkerMetrics(registry, lambda: now)
    sizes = iter([(30, 100)])

    def read() -> tuple[int, int]:
        if size := next(sizes, None):
            return size
        raise OSError(errno.EMFILE, "Too many open files")

    metrics.watch(DeviceMemory("cpu", "", read))
    now = 100.0
    assert registry.get_sample_value("millrace_worker_device_free_bytes") == 30
    metrics.observe_step(wire.StepResult(1), 0)
    assert registry.get_sample_value("millrace_worker_steps_total") == 1
    free = registry.get_sample_value("millrace_worker_device_free_bytes")
    assert free is not None and math.isnan(free), "what was free once is not what is free"
