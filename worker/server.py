"""WorkerServer: registers with the front, loads, then executes the scheduler's plans.

    Hello → Lease → (connect to the scheduler) → load → KvReport → Allocate → warm-up → WorkerReady
    → ExecutePlan / StepResult …

A plan that comes while a device computes the one before is begun at once; results go out in order.

Whoever is lost, the state goes and the weights stay: a new life begins with Hello, under a new
identity. Knows the order of messages; knows nothing of arrays.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import zmq

from protos import worker as wire
from worker.build import LoadedModel
from worker.errands import Errands
from worker.errors import WeightsWritten
from worker.flights import Flight, Flights, StepFailed
from worker.link import Answer, Event, Landed, Link, Lost, Received
from worker.metrics import WorkerMetrics
from worker.model_runner import ModelRunner
from worker.warm_up import warm_up

log = logging.getLogger(__name__)

PAUSE_S = 0.3
"""Between two lives: a front that has died takes a moment to come back."""

WAITING = "waiting for a lease of the engine"

ERRANDS = wire.Errand | wire.DropKeys
M = TypeVar("M")


class LifeOver(Exception):
    """This incarnation ends; the next one says Hello again."""


class Stopped(Exception):
    """The process is to end."""


def _checked(message: wire.ToWorker | Flight, kind: type[M]) -> M:
    if not isinstance(message, kind):
        raise LifeOver(f"{type(message).__name__} instead of {kind.__name__}")
    return message


class WorkerServer:
    """Runs in the main thread; `interrupt` is for its signal handler, `stop` for anybody."""

    def __init__(
        self,
        context: zmq.Context[Any],
        engine: str,
        hello: wire.Hello,
        load: Callable[[], LoadedModel],
        kv_cache_bytes: Callable[[LoadedModel], int],
        metrics: WorkerMetrics,
    ) -> None:
        self._context = context
        self._engine = engine
        self._hello = hello
        self._load = load
        self._kv_cache_bytes = kv_cache_bytes
        self._metrics = metrics
        self._loaded: LoadedModel | None = None
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._links: list[Link] = []
        self._startup_s: dict[str, float] = {}
        self._state = "starting"
        self._is_loading = False

    def reasons(self) -> list[str]:
        """Return why this worker is not ready; empty = it serves."""
        return [self._state] if self._state else []

    def stop(self) -> None:
        """Make `run` return after the step in flight."""
        self._inbox.put(None)

    def interrupt(self) -> None:
        """`stop` from a signal handler of the thread that runs: a load is broken off by raising."""
        self.stop()  # also where the load swallows what is raised, as in a destructor
        if self._is_loading:
            raise Stopped

    def run(self) -> None:
        """Live until stopped; an error while loading the model is raised."""
        try:
            while True:
                try:
                    self._live()
                except LifeOver as end:
                    log.warning("registering again", extra={"reason": str(end)})
                self._pause()
        except Stopped:
            log.info("stopped")
        finally:
            self._close_links()

    def _live(self) -> None:
        try:
            self._state = f"{WAITING} ({self._engine})"  # before anybody hears of this life
            self._metrics.begin_life()
            log.info("asking for a lease", extra={"engine": self._engine})
            self._connect(self._engine, self._hello)
            lease = self._await_lease()
            if lease.world_size > 1:
                log.warning(
                    f"tensor_parallel_size is {lease.world_size}, and every worker computes the "
                    "whole model: nothing is gained"
                )
            host = self._engine.rpartition(":")[0]
            scheduler = self._connect(f"{host}:{lease.port}", wire.Heartbeat(lease.rank), lease.key)
            runner = self._prepare(scheduler, lease.rank)
            assert self._loaded is not None
            errands = Errands(
                lease.rank,
                runner.host_tier,
                self._loaded.grammars.prepare,
                lambda done: self._inbox.put(Answer(scheduler, done)),
            )
            flights = Flights(
                runner,
                lambda result: self._deliver(scheduler, runner, result),
                lambda flight: self._inbox.put(Landed(scheduler, flight)),
            )
            try:
                self._serve(scheduler, runner, errands, flights)
            except StepFailed as failed:
                log.exception("step failed", extra={"step_id": failed.step_id})
                scheduler.send(wire.WorkerFault(failed.step_id, repr(failed.cause)))
                if isinstance(failed.cause, WeightsWritten):
                    raise failed.cause from None  # the weights do not outlive it
                raise LifeOver(str(failed)) from failed
            finally:
                errands.close()
                flights.close()
        finally:
            self._close_links()

    def _prepare(self, scheduler: Link, rank: int) -> ModelRunner:
        """Go from a lease to a warm runner."""
        self._state = "loading the model"
        if self._loaded is None:
            self._is_loading = True
            try:
                self._loaded = self._timed("load", self._load)
            finally:
                self._is_loading = False
            self._startup_s |= self._loaded.load_seconds
            self._metrics.watch(self._loaded.device)
        loaded = self._loaded
        kv_cache_bytes = self._timed("measure", lambda: self._kv_cache_bytes(loaded))
        scheduler.send(wire.KvReport(rank, loaded.facts(kv_cache_bytes)))
        self._state = "waiting for the scheduler to allocate"
        num_blocks = _checked(self._next(), wire.Allocate).num_blocks
        runner = self._timed("allocate", lambda: loaded.runner(num_blocks))
        self._timed("warm_up", lambda: warm_up(runner))
        self._timed("grammars", loaded.grammars.warm_up)
        gc.collect()
        gc.freeze()
        self._metrics.observe_startup(self._startup_s, runner.memory)
        scheduler.send(wire.WorkerReady(rank, self._startup_s, dict(runner.memory)))
        log.info("ready", extra={"startup_s": self._startup_s, "num_blocks": num_blocks})
        return runner

    def _serve(
        self, scheduler: Link, runner: ModelRunner, errands: Errands, flights: Flights
    ) -> None:
        """Do what the scheduler says until this life ends.

        A gap in the count of plans means that one was lost.
        """
        self._state = ""
        previous: int | None = None
        while True:
            self._metrics.observe_host_tier(runner.host_tier)
            message = self._next(errands)
            if isinstance(message, Flight):
                flights.land(message)
                continue
            if isinstance(message, ERRANDS):
                if isinstance(message, wire.StoreBlocks | wire.LoadBlocks):
                    flights.land_all()  # before anybody waits for the device
                errands.run(message)
                continue
            plan = _checked(message, wire.ExecutePlan)
            if previous is not None and plan.step_id != previous + 1:
                flights.land_all()
                reason = f"step {plan.step_id} came after step {previous}"
                scheduler.send(wire.WorkerFault(plan.step_id, reason))
                raise LifeOver(reason)
            previous = plan.step_id
            self._metrics.begin_step(plan.step_id)
            flights.begin(plan)
            errands.turn()

    def _deliver(self, scheduler: Link, runner: ModelRunner, result: wire.StepResult) -> None:
        """Send a result, unless its step may have read what is no part of the model."""
        assert self._loaded is not None
        if path := self._loaded.written_file():
            why = WeightsWritten(
                f"{path} was written to while it was served: it is to be loaded anew"
            )
            raise StepFailed(result.step_id, why)
        self._metrics.observe_step(result, runner.num_sequences)
        scheduler.send(result)

    def _await_lease(self) -> wire.Lease:
        """Return the lease; until it comes, say what for it is kept waiting."""
        while isinstance(message := self._next(), wire.Waiting):
            state = f"{WAITING}: {message.reason}"
            if state != self._state:
                log.warning(state)
            self._state = state
        return _checked(message, wire.Lease)

    def _connect(
        self, address: str, beat: wire.Hello | wire.Heartbeat, name: str = "worker"
    ) -> Link:
        link = Link(self._context, f"tcp://{address}", self._inbox, beat, name)
        self._links.append(link)
        return link

    def _close_links(self) -> None:
        while self._links:
            self._links.pop().close()

    def _next(self, errands: Errands | None = None) -> wire.ToWorker | Flight:
        """Return the next message, or a flight that is done, doing `errands` until it is there.

        Raises LifeOver or Stopped.
        """
        while True:
            while errands is not None and errands.is_busy and self._inbox.empty():
                errands.turn()
            event = self._inbox.get()
            if event is None:
                raise Stopped
            if event.link not in self._links:
                continue  # said by or about a connection of an earlier life
            if isinstance(event, Lost):
                raise LifeOver(event.reason)
            if isinstance(event, Received):
                return event.message
            if isinstance(event, Landed):
                return event.flight
            event.link.send(event.message)

    def _pause(self) -> None:
        """Wait a moment; what arrives meanwhile is of an earlier life."""
        self._state = "between two lives"
        end = time.monotonic() + PAUSE_S
        while (left := end - time.monotonic()) > 0:
            try:
                if self._inbox.get(timeout=left) is None:
                    raise Stopped
            except Empty:
                return

    def _timed(self, phase: str, work: Callable[[], M]) -> M:
        begin = time.perf_counter()
        done = work()
        self._startup_s[phase] = time.perf_counter() - begin
        return done
