"""The tokenizers behind a gateway: one stream to each, the choice among them, and replay.

A tokenizer may come, go and die at any time. What ran on a lost stream runs on another one with
the ids and text it already delivered; the consumer of its mailbox notices nothing but a pause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from api_gateway.job import Job
from api_gateway.link import Breach, Link
from api_gateway.sessions import Choice
from api_gateway.watch import CANCELLED
from common.errors import NotFound, ServiceError, Unavailable
from common.rpc import channel, resolve
from protos.common_pb2 import ERROR, EngineState, ErrorDetail, Finish, ModelInfo
from protos.limits import MAX_ATTEMPTS, attempts, waits
from protos.tokenizer_pb2 import CancelRequest, TextMessage
from protos.tokenizer_pb2_grpc import TokenizerStub
from protos.words import REPLICA_LOST, RESOLVE_EVERY_S, STALE_S

log = logging.getLogger(__name__)
WAIT_TIMEOUT_S = 5.0
"""How long a new job waits for a tokenizer."""
REPLAY_TIMEOUT_S = 60.0
"""The same of a job that was lost."""
CANCEL_TIMEOUT_S = 3.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0


@dataclass(eq=False)
class Peer:
    """One tokenizer address; `link` is set while a stream to it is open."""

    address: str
    channel: grpc.aio.Channel
    link: Link | None = None
    task: asyncio.Task[None] | None = None
    was_up: bool = True  # so that the first failure is logged


class TextClients:
    """Runs jobs on the least-loaded tokenizer that serves their model."""

    def __init__(self, tokenizers: str) -> None:
        self.tokenizers = tokenizers
        """The addresses as configured."""
        self._peers: dict[str, Peer] = {}
        self._waiting: dict[Job, None] = {}
        self._connected = asyncio.Event()
        self._known: set[str] = set()  # names of models that were served here
        self._resolver: asyncio.Task[None] | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Begin to connect; returns at once, whoever is up."""
        self._resolver = asyncio.create_task(self._keep_resolving())

    async def close(self) -> None:
        """Close every stream; jobs that still run are lost."""
        self._is_closing = True
        tasks = [t for t in (self._resolver, *(p.task for p in self._peers.values())) if t]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            await peer.channel.close(None)

    # ── what is out there ────────────────────────────────────────────────────────────────────

    def links(self) -> list[Link]:
        return [peer.link for peer in list(self._peers.values()) if peer.link is not None]

    def stubs(self, model: str | None = None) -> list[Any]:
        """Return the connected tokenizers that serve `model`, least loaded first, for one call."""
        peers = [
            (len(peer.link.demux.choices), address, peer)
            for address, peer in self._peers.items()
            if peer.link is not None and (model is None or peer.link.serves(model))
        ]
        return [stub(peer) for _, _, peer in sorted(peers, key=lambda found: found[:2])]

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
            await asyncio.wait_for(self._connected.wait(), WAIT_TIMEOUT_S)
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
        """Return per engine its latest state and when it was heard (monotonic seconds)."""
        latest: dict[str, tuple[EngineState, float]] = {}
        for link in self.links():
            for engine, heard in list(link.states.items()):
                if engine not in latest or heard[1] > latest[engine][1]:
                    latest[engine] = heard
        return latest

    def fingerprint(self) -> str:
        """Return the fingerprint of a ready engine, empty while there is none."""
        states = [state for state, _ in self.states().values()]
        return next((s.fingerprint for s in states if s.ready), "")

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
        peers = [peer for peer in self._peers.values() if peer.link is not None]
        calls = [stub(peer).Cancel(request, timeout=CANCEL_TIMEOUT_S) for peer in peers]
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
        now = time.monotonic()
        links = [link for link in self.links() if link.serves(job.model)]
        if not links:
            return False
        link = min(links, key=lambda k: (not k.is_ready(now, STALE_S), len(k.demux.choices)))
        job.link = link
        link.jobs[job] = None
        for choice in job.running:  # of an attempt before this one
            link.send(job.replay_of(choice), [choice])
        self.go_on(job)
        return True

    def _hold(self, job: Job, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[job] = None
        job.expiry = loop.call_later(timeout_s, self._expire, job)

    def _unhold(self, job: Job) -> None:
        self._waiting.pop(job, None)
        if job.expiry is not None:
            job.expiry.cancel()
            job.expiry = None

    def _expire(self, job: Job) -> None:
        self._unhold(job)
        fail(job, Unavailable("no tokenizer is connected", code="no_tokenizer", retry_after_s=1))

    def _replay(self, job: Job, choices: list[Choice], heard_s: float = 0.0) -> None:
        """Run `choices` again from where they are, on whichever link there is.

        `heard_s`: when a tokenizer that was lost spoke for the last time.
        """
        most = max(choice.num_tokens - choice.num_at_send for choice in choices)
        sent_s = max(choice.sent_s for choice in choices)
        job.num_waits = waits(job.num_waits, most, sent_s, heard_s)
        job.attempt = max(1, job.attempt) if job.num_waits else attempts(job.attempt, most)
        job.num_replays += 1
        log.warning(
            "replay",
            extra={"request_id": job.request_id, "attempt": job.attempt, "choices": len(choices)},
        )
        if job.attempt >= MAX_ATTEMPTS:
            fail(job, Unavailable(f"lost {MAX_ATTEMPTS} times", code=REPLICA_LOST))
        elif job.link is not None:  # a gap on a stream that stands
            for choice in choices:
                job.link.send(job.replay_of(choice), [choice])
        elif not self._place(job):
            self._hold(job, REPLAY_TIMEOUT_S)

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    async def _keep_resolving(self) -> None:
        while True:
            found = await resolve(self.tokenizers)
            for address in sorted(found - self._peers.keys()):
                peer = self._peers[address] = Peer(address, channel(address))
                peer.task = asyncio.create_task(self._keep_connected(peer))
            for address in sorted(self._peers.keys() - found):
                if found and self._peers[address].link is None:
                    await self._drop(self._peers.pop(address))
            await asyncio.sleep(RESOLVE_EVERY_S)

    async def _drop(self, peer: Peer) -> None:
        assert peer.task is not None
        peer.task.cancel()
        with suppress(asyncio.CancelledError):
            await peer.task
        await peer.channel.close(None)

    async def _keep_connected(self, peer: Peer) -> None:
        """Open a stream, use it until it breaks, and again; waits longer after each failure."""
        backoff_s = MIN_BACKOFF_S
        while True:
            try:
                await self._converse(peer)
                reason = "the tokenizer closed the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except (Breach, ValueError) as error:
                reason = f"protocol: {error}"
            except Exception as error:
                log.exception("stream failed", extra={"address": peer.address})
                reason = f"failure: {error}"
            if peer.was_up:
                log.warning("tokenizer away", extra={"address": peer.address, "reason": reason})
                backoff_s = MIN_BACKOFF_S
            peer.was_up = False
            await asyncio.sleep(backoff_s)
            backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)

    async def _converse(self, peer: Peer) -> None:
        call = stub(peer).Session()
        try:
            first = await call.read()
            if not isinstance(first, TextMessage) or first.WhichOneof("body") != "opened":
                raise Breach("the stream did not open with a session")
            peer.link = Link(peer.address, call, first.opened, self._replay)
            peer.was_up = True
            self._known |= {name for info in peer.link.models for name in (info.id, *info.aliases)}
            self._connected.set()
            log.info("tokenizer connected", extra={"address": peer.address})
            for job in list(self._waiting):
                if self._place(job):
                    self._unhold(job)
            await peer.link.converse()
        finally:
            call.cancel()
            self._lose(peer)

    def _lose(self, peer: Peer) -> None:
        """Replay what ran on a stream that is gone."""
        link, peer.link = peer.link, None
        if link is None:
            return
        if not self.links():
            self._connected.clear()
        for job in list(link.jobs):
            job.link = None
            if not self._is_closing and job.unfinished:
                self._replay(job, job.unfinished, link.heard_s)


def stub(peer: Peer) -> Any:
    """Return the generated stub, which carries no types."""
    return TokenizerStub(peer.channel)  # type: ignore[no-untyped-call]


def fail(job: Job, error: ServiceError) -> None:
    """End every unfinished choice of `job` with `error`."""
    for choice in job.unfinished:
        choice.end(Finish(reason=ERROR, error=ErrorDetail(**error.fields())))
