"""The tokenizers behind a gateway: one stream to each, the choice among them, and replay.

A tokenizer may come, go and die at any time. What ran on a lost stream runs on another one with
the ids and text it already delivered; the consumer of its mailbox notices nothing but a pause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from api_gateway.job import Job
from api_gateway.link import Link, fail
from api_gateway.sessions import Choice
from api_gateway.watch import CANCELLED
from common.errors import NotFound, Unavailable
from common.peers import Peers, Stream
from protos import limits
from protos.common_pb2 import EngineState, ModelInfo, SessionOpened
from protos.tokenizer_pb2 import CancelRequest
from protos.tokenizer_pb2_grpc import TokenizerStub
from protos.words import STALE_S

log = logging.getLogger(__name__)
WAIT_TIMEOUT_S = 5.0
"""How long a new job waits for a tokenizer."""
REPLAY_TIMEOUT_S = 60.0
"""The same of a job that was lost."""
CANCEL_TIMEOUT_S = 3.0
RETRY_S = 0.1
"""Between looks for a place for the jobs that wait for one."""


class TextClients:
    """Runs jobs on the least-loaded tokenizer that serves their model."""

    def __init__(self, tokenizers: str) -> None:
        self.tokenizers = tokenizers
        """The addresses as configured."""
        self._peers = Peers(
            "tokenizer", tokenizers, lambda line: stub(line).Session(), self._converse
        )
        self._links: dict[str, Link] = {}  # by address
        self._waiting: dict[Job, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._connected = asyncio.Event()
        self._known: set[str] = set()  # names of models that were served here
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._fingerprint = ""
        self.num_replays = 0
        """Choices that were lost with a tokenizer, or a part of them on the way."""

    async def start(self) -> None:
        """Begin to connect; returns at once, whoever is up."""
        self._task = asyncio.create_task(self._peers.run())

    async def close(self) -> None:
        """Close every stream; jobs that still run are lost."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ── what is out there ────────────────────────────────────────────────────────────────────

    def links(self) -> list[Link]:
        return list(self._links.values())

    def stubs(self, model: str | None = None) -> list[Any]:
        """Return the connected tokenizers that serve `model`, for one call: the best one first."""
        links = [link for link in self.links() if model is None or link.serves(model)]
        return [stub(link.channel) for link in sorted(links, key=by_worth(time.monotonic()))]

    def models(self) -> list[ModelInfo]:
        """Return every served model once."""
        found = {info.id: info for link in self.links() for info in link.models}
        return list(found.values())

    async def model(self, name: str | None) -> ModelInfo:
        """Return the model of this id or alias, waiting a while when no tokenizer is connected.

        None stands for the first one served.

        Raises NotFound, or Unavailable when nobody came.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not self._links:  # one that came may be gone by now
                    await self._connected.wait()
        models = self.models()
        for info in models:
            if name is None or name == info.id or name in info.aliases:
                return info
        if name is None or not models or name in self._known:
            which = f" that serves {name!r}" if models else ""
            message = f"no tokenizer{which} is connected"
            raise Unavailable(message, code="no_tokenizer", retry_after_s=1)
        served = ", ".join(name for info in models for name in (info.id, *info.aliases))
        raise NotFound(
            f"the model {name[:100]!r} does not exist; served: {served}",
            param="model",
            code="model_not_found",
        )

    def states(self) -> dict[str, tuple[EngineState, float]]:
        """Return per engine its state and when that was heard (monotonic seconds).

        The last word counts, but a good one that is fresh, whichever tokenizer says it, before all:
        another one may not reach the engine, or not be made for it.
        """
        fresh_s = time.monotonic() - STALE_S
        told: dict[str, list[tuple[EngineState, float]]] = {}
        for link in self.links():
            for engine, heard in list(link.states.items()):
                told.setdefault(engine, []).append(heard)
        return {
            engine: max(heard, key=lambda word: (word[0].ready and word[1] >= fresh_s, word[1]))
            for engine, heard in told.items()
        }

    def fingerprint(self) -> str:
        """Return the fingerprint of a ready engine; while there is none, of the last there was."""
        states = [state for state, _ in self.states().values()]
        ready = (state.fingerprint for state in states if state.ready)
        self._fingerprint = next(ready, self._fingerprint)
        return self._fingerprint

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Run `job`, now or when a tokenizer is there; all news goes to its mailbox."""
        if not self._place(job):
            self._hold(job, WAIT_TIMEOUT_S)

    def go_on(self, job: Job) -> None:
        """Send what of `job` has waited for its own prompts to end."""
        if job.link is not None:
            for request, choices in job.next_requests():
                job.link.send(request, choices)

    def release(self, job: Job) -> None:
        """Forget `job`; what of it still runs is aborted. The one way out for every job."""
        self._unhold(job)
        if job.link is not None:
            job.link.jobs.pop(job, None)
            job.link.abort(job.choices)
            job.link = None

    async def cancel(self, request_id: str, tenant: str) -> int:
        """End the tenant's live requests of this id on every tokenizer; return how many."""
        ended = self._cancel_waiting(request_id, tenant)
        request = CancelRequest(request_id=request_id, tenant=tenant)
        calls = [each.Cancel(request, timeout=CANCEL_TIMEOUT_S) for each in self.stubs()]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        failed = [reply for reply in replies if isinstance(reply, BaseException)]
        if failed and len(failed) == len(replies) and not ended:
            raise Unavailable("no tokenizer answered the cancel call", retry_after_s=1)
        return ended + sum(
            int(reply.num_cancelled) for reply in replies if not isinstance(reply, BaseException)
        )

    def _cancel_waiting(self, request_id: str, tenant: str) -> int:
        held = [j for j in self._waiting if (j.request_id, j.tenant) == (request_id, tenant)]
        for job in held:
            self._unhold(job)
            job.mailbox.ring(CANCELLED)
        return len(held)

    def _place(self, job: Job) -> bool:
        """Send `job` to the best link; return False when there is none."""
        heard_after_s = job.heard_after_s
        links = [k for k in self.links() if k.serves(job.model) and k.heard_s >= heard_after_s]
        if not links:
            return False
        job.link = link = min(links, key=by_worth(time.monotonic()))
        link.jobs[job] = None
        for choice in job.running:  # of an attempt before this one
            link.send(job.replay_of(choice), [choice])
        self.go_on(job)
        return True

    def _hold(self, job: Job, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[job] = None
        job.expiry = loop.call_later(timeout_s, self._expire, job)
        if self._retry is None:
            self._retry = loop.call_later(RETRY_S, self._look_again)

    def _look_again(self) -> None:
        self._retry = None
        self._place_waiting()
        if self._waiting:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._look_again)

    def _place_waiting(self) -> None:
        for job in list(self._waiting):
            if self._place(job):
                self._unhold(job)

    def _unhold(self, job: Job) -> None:
        self._waiting.pop(job, None)
        if job.expiry is not None:
            job.expiry.cancel()
            job.expiry = None

    def _expire(self, job: Job) -> None:
        self._unhold(job)
        lost = Unavailable("no tokenizer is connected", code="no_tokenizer", retry_after_s=1)
        fail(job.unfinished, lost)

    def _replay(self, job: Job, choices: list[Choice], heard_s: float = 0.0) -> None:
        """Run `choices` again from where they are, on a link that speaks after the loss.

        `heard_s`: when a tokenizer that was lost spoke for the last time.
        """
        most = max(choice.num_tokens - choice.num_at_send for choice in choices)
        sent_s = max(choice.sent_s for choice in choices)
        job.num_waits = limits.waits(job.num_waits, most, sent_s, heard_s)
        job.attempt = max(1, job.attempt) if job.num_waits else limits.attempts(job.attempt, most)
        job.num_replays += 1
        self.num_replays += len(choices)
        now_s = time.monotonic()
        for choice in choices:
            choice.age.wait(now_s)
        job.heard_after_s = now_s + limits.AFTERMATH_S
        log.warning(
            "replay",
            extra={"request_id": job.request_id, "attempt": job.attempt, "choices": len(choices)},
        )
        if job.attempt >= limits.MAX_ATTEMPTS:
            lost = Unavailable(limits.given_up(job.attempt), code=limits.ATTEMPTS_EXHAUSTED)
            fail(job.unfinished, lost)
        elif job.link is not None:  # a gap on a stream that stands
            for choice in choices:
                job.link.send(job.replay_of(choice), [choice])
        else:
            self._hold(job, REPLAY_TIMEOUT_S)

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    async def _converse(self, stream: Stream, opened: SessionOpened) -> None:
        link = self._links[stream.address] = Link(stream, opened, self._replay)
        try:
            self._known |= {name for info in link.models for name in (info.id, *info.aliases)}
            self._connected.set()
            self._place_waiting()
            await link.converse()
        finally:
            self._lose(self._links.pop(stream.address))

    def _lose(self, link: Link) -> None:
        """Replay what ran on a stream that is gone."""
        if not self._links:
            self._connected.clear()
        for job in list(link.jobs):
            job.link = None
            if not self._is_closing and job.unfinished:
                self._replay(job, job.unfinished, link.heard_s)


def by_worth(now_s: float) -> Callable[[Link], tuple[bool, int, str]]:
    """Return a key that sorts links: ready ones first, then the least loaded."""
    return lambda k: (not k.is_ready(now_s, STALE_S), len(k.demux.choices), k.address)


def stub(channel: Any) -> Any:
    """Return the generated stub, which carries no types."""
    return TokenizerStub(channel)  # type: ignore[no-untyped-call]
