"""The engine in a thread of this process: the same loop, scheduler and runner as on a server.

`Bridge` has two faces: towards the engine's thread it is the front, towards the text tier's event
loop it is an engine. A step that fails costs the sequences of that step's life, not the model: a
fresh scheduler and a fresh KV cache take over, and the text tier replays.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from engine_core import translate
from engine_core.loop import EngineLoop, WorkerLost
from engine_core.replica import engine_state
from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.scheduler import scheduler_of
from protos import worker as wire
from protos.common_pb2 import ERROR, EngineState, Query
from protos.engine_pb2 import GenerateRequest, TokenBatch
from protos.words import REPLICA_LEFT, REPLICA_LOST
from tokenizer_service.pipeline import TextPipeline
from worker.build import LoadedModel
from worker.errands import Errands
from worker.model_runner import ModelRunner
from worker.warm_up import warm_up

log = logging.getLogger(__name__)

SESSION = 1
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048
MAX_WAITING = 1_000_000
"""In one process the caller bounds what it asks for."""
JOIN_TIMEOUT_S = 60.0
ERRAND_WAIT_S = 0.02


class Bridge:
    """Messages between the two threads. Implements FrontLink and EngineLink."""

    name = "in-process"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ready: wire.ReplicaReady,
        deliver: Callable[[Bridge, wire.ToFront], None],
    ) -> None:
        self.state: EngineState | None = None
        self._ready = ready
        self._loop = loop
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[wire.ToScheduler] = queue.SimpleQueue()

    # ── the engine's thread ──────────────────────────────────────────────────────────────────

    def receive(self, timeout_s: float) -> list[wire.ToScheduler]:
        """Return all messages that are there, waiting up to `timeout_s` for the first."""
        if self._loop.is_closed():  # and nobody has closed us: then nobody reads us either
            return [wire.Shutdown()]
        found: list[wire.ToScheduler] = []
        try:
            found.append(self._inbox.get(block=timeout_s > 0, timeout=timeout_s or None))
            while True:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            return found

    def send(self, message: wire.ToFront) -> None:
        self.call(self._deliver, self, message)

    def call(self, what: Callable[..., None], *arguments: object) -> None:
        """Call `what` on the event loop, if there still is one."""
        with suppress(RuntimeError):  # it is closed, or was so since we looked
            self._loop.call_soon_threadsafe(what, *arguments)

    # ── the text tier's event loop ───────────────────────────────────────────────────────────

    def note(self, told: wire.SchedulerState) -> None:
        """Take in how the scheduler is."""
        self.state = engine_state(self.name, [(self._ready, told)], reasons=[])

    def add(self, request: GenerateRequest) -> None:
        self._inbox.put(translate.to_add(SESSION, request))

    def abort(self, slot: int) -> None:
        self._inbox.put(wire.Abort(SESSION, slot))

    def stop(self, slot: int, num_output_tokens: int) -> None:
        self._inbox.put(wire.StopAt(SESSION, slot, num_output_tokens))

    def pause(self, slot: int) -> None:
        self._inbox.put(wire.Pause(SESSION, slot))

    def resume(self, slot: int) -> None:
        self._inbox.put(wire.Resume(SESSION, slot))

    def ask(self, query: Query) -> None:
        self._inbox.put(wire.Query(SESSION, query.query_id, query.kind, query.body_json))

    def shut_down(self) -> None:
        self._inbox.put(wire.Shutdown())


class InlineWorker:
    """A ModelRunner as the one worker of a replica: it computes while it is waited for."""

    depth = 1

    def __init__(self, runner: ModelRunner, prepare: Callable[[bytes], str]) -> None:
        self._runner = runner
        self._plan = wire.ExecutePlan(0)
        self._answers: queue.SimpleQueue[wire.ErrandDone] = queue.SimpleQueue()
        self._has_answers = threading.Event()
        self._errands = Errands(0, runner.host_tier, prepare, self._answer)

    def launch(self, plan: wire.ExecutePlan) -> None:
        self._plan = plan

    def collect(self) -> wire.StepResult:
        """Compute the step here and now."""
        plan = self._plan
        self._errands.turn()
        try:
            return self._runner.execute(plan)
        except BaseException as error:  # whatever it was, a panic in Rust too: no row is trusted
            raise WorkerLost(f"step {plan.step_id} failed: {error!r}") from error

    def send(self, errand: wire.Errand | wire.DropKeys) -> None:
        self._errands.run(errand)

    def answers(self) -> list[wire.ErrandDone]:
        self._has_answers.clear()
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def wait(self) -> None:
        """Wait for an answer; what the front says is heard ERRAND_WAIT_S later at most."""
        if self._errands.is_busy:
            self._errands.turn()
        else:
            self._has_answers.wait(ERRAND_WAIT_S)

    def close(self) -> None:
        self._errands.close()

    def _answer(self, done: wire.ErrandDone) -> None:
        self._answers.put(done)
        self._has_answers.set()


class EngineThread:
    """Keeps one engine attached to `pipeline`. Its methods belong to the pipeline's event loop."""

    def __init__(
        self,
        loaded: LoadedModel,
        kv_cache_bytes: int,
        max_model_len: int | None,
        pipeline: TextPipeline,
        num_guesses: int = 0,
    ) -> None:
        self._num_guesses = num_guesses
        self._loaded = loaded
        self._facts = loaded.facts(kv_cache_bytes)
        self._max_model_len = max_model_len or 0
        self._pipeline = pipeline
        self._bridge: Bridge | None = None
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to compute and tell the pipeline."""
        facts = self._facts
        bounds = Bounds(MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_WAITING)
        scheduler = scheduler_of(
            facts, facts.max_blocks, bounds, self._max_model_len, self._num_guesses
        )
        ready = wire.ReplicaReady(facts, facts.max_blocks, scheduler.max_model_len)
        bridge = Bridge(asyncio.get_running_loop(), ready, self._deliver)
        runner = self._loaded.runner(facts.max_blocks)
        warm_up(runner)
        worker = InlineWorker(runner, self._loaded.grammars.prepare)
        engine = EngineLoop(scheduler, worker, bridge, time.monotonic)
        bridge.note(engine.state(time.monotonic()))

        def on_end() -> None:
            worker.close()
            ended.set()

        ended = asyncio.Event()
        self._bridge, self._ended = bridge, ended
        self._thread = threading.Thread(
            target=self._run, args=(engine, bridge, on_end), name="millrace-engine", daemon=True
        )
        self._thread.start()
        self._pipeline.attach_engine(bridge)
        self._pipeline.on_state(bridge)

    async def stop(self) -> None:
        """End the thread after the step in flight."""
        if self._restart is not None:
            self._restart.cancel()
        if self._bridge is not None:
            bridge, self._bridge = self._bridge, None
            self._pipeline.detach_engine(bridge)
            bridge.shut_down()
        if self._thread is None:
            return
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            await self._ended.wait()
        self._thread.join()  # it is past its last line

    @staticmethod
    def _run(engine: EngineLoop, bridge: Bridge, on_end: Callable[[], None]) -> None:
        try:
            engine.run()
        except WorkerLost as error:
            bridge.send(wire.ReplicaLost(str(error), error.under_way))
        except Exception as error:
            log.exception("the engine failed")
            bridge.send(wire.ReplicaLost(repr(error)))
        finally:
            bridge.call(on_end)

    def _deliver(self, bridge: Bridge, message: wire.ToFront) -> None:
        """Take a message of the engine, on the event loop."""
        if bridge is not self._bridge:
            return  # said by an engine that is gone
        if isinstance(message, wire.StepOutput):
            for output in message.sessions:
                for row in output.bulks:
                    self._pipeline.on_bulk(bridge, translate.to_bulk(row))
                self._pipeline.on_tokens(bridge, translate.to_batch(output))
        elif isinstance(message, wire.QueryAnswer):
            self._pipeline.on_answer(bridge, translate.to_answer(message))
        elif isinstance(message, wire.SchedulerState):
            bridge.note(message)
            self._pipeline.on_state(bridge)
        elif isinstance(message, wire.ReplicaLost):
            log.error("the engine starts again", extra={"reason": message.reason})
            if message.under_way is not None:
                self._end_live(bridge, message.under_way)
            self._bridge = None
            self._pipeline.detach_engine(bridge)
            self._restart = asyncio.create_task(self._start_again())

    def _end_live(self, bridge: Bridge, under_way: Collection[tuple[int, int]]) -> None:
        """End all that is live there as a front does: who was not under way has lost nothing by it.

        Else all that wait would be suspects together with the one that fails the worker.
        """
        seat = self._pipeline.seats.of(bridge)
        assert seat is not None  # it is attached as long as it is ours
        batch = TokenBatch()
        for slot in seat.live:
            finish = batch.finishes.add(slot=slot, reason=ERROR)
            finish.error.kind = "Unavailable"
            finish.error.code = REPLICA_LOST if (SESSION, slot) in under_way else REPLICA_LEFT
        self._pipeline.on_tokens(bridge, batch)

    async def _start_again(self) -> None:
        """Start when the last engine has let go of its memory: a device may not hold two caches."""
        await self._ended.wait()
        assert self._thread is not None
        self._thread.join()  # it is past its last line
        self._thread = None
        gc.collect()  # a worker and its errands know each other
        try:
            self.start()
        except Exception:
            log.exception("the engine does not start again")
