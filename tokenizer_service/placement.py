"""Where choices run: the engines at hand, the choice among them by load, waiting for a ready one.

Knows no text and no transport: an engine is anything that keeps the promises of `EngineLink`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Protocol

from common.errors import Unavailable
from protos.columns import pack
from protos.common_pb2 import EngineState, Limits, Query
from protos.engine_pb2 import GenerateRequest
from protos.words import STALE_S
from tokenizer_service.ticket import Choice, Ticket

log = logging.getLogger(__name__)
CONNECTION_LOST = "connection lost"
"""The only reason in the last state of an engine whose stream is lost."""
KEPT_S = 10.0
"""After the last word of an engine: until then only others with its weights may take its place."""

SLEPT_S = 5.0
"""Between two words of any engines: this process has slept, and their silence says nothing."""


class EngineLink(Protocol):
    """One open stream to one engine: the seam between text and tokens.

    Two implementations stand: `engines.GrpcEngine`, and the in-process engine of the offline
    interface. None of the calls may block. The owner of a link tells the pipeline
    `attach_engine(link)` when it opens, `on_tokens(link, batch)` for each TokenBatch,
    `on_bulk(link, bulk)` for each Bulk, `on_answer(link, answer)` for each QueryAnswer,
    `on_state(link)` when `state` is new (several times a second, as after a loss the pipeline sends
    nothing before the next word), and `detach_engine(link)` when it is lost, all on
    the pipeline's event loop. A link that was lost is never attached again: a new stream is a new
    link.
    """

    @property
    def name(self) -> str:
        """Who this is, for logs and for states."""

    @property
    def state(self) -> EngineState | None:
        """The engine's last state; None until it has sent one."""

    def add(self, request: GenerateRequest) -> None:
        """Start `request.limits.n` choices; the pipeline has set the slots, never used before."""

    def abort(self, slot: int) -> None:
        """End a slot; the engine answers with its Finish. A slot that has ended is ignored."""

    def stop(self, slot: int, num_output_tokens: int) -> None:
        """End a slot on a stop string; the engine answers with its Finish."""

    def pause(self, slot: int) -> None:
        """Give the memory of a slot to others until `resume`: its reader is slow."""

    def resume(self, slot: int) -> None:
        """Let a paused slot go on."""

    def ask(self, query: Query) -> None:
        """Ask about the engine's books; it answers with a QueryAnswer of the same `query_id`."""


class OneModel:
    """Refuses engines whose tokens, or whose weights, are not those of the model that is served.

    Which weights these are the first ready engine says; others may take their place when nothing
    was heard of one that has them for KEPT_S.
    """

    def __init__(self, name: str, vocab_size: int) -> None:
        """A `vocab_size` of 0 is not known."""
        self._name, self._vocab_size = name, vocab_size
        self._hash = ""
        self._heard_s = self._looked_s = -math.inf

    def check(self, state: EngineState) -> None:
        """Make `state` not ready, with the reason, if it is of another model."""
        served = ""
        if self._vocab_size and state.vocab_size not in (0, self._vocab_size):
            served = f", of {state.vocab_size} tokens; {self._name} has {self._vocab_size}"
        elif not self._is_known(state) and state.ready:
            served = f" ({state.model_hash[:12]}) than the engines before it ({self._hash[:12]})"
        if served:
            state.ready = False
            state.reasons[:] = [f"{state.engine} serves another model{served}"]

    def _is_known(self, state: EngineState) -> bool:
        now = time.monotonic()
        if now - self._looked_s > SLEPT_S:  # what they said meanwhile, if we slept, is still unread
            self._heard_s = now
        self._looked_s = now
        if state.ready and state.model_hash and (not self._hash or now - self._heard_s > KEPT_S):
            self._hash = state.model_hash
        if state.model_hash == self._hash:
            self._heard_s = now
        return state.model_hash in ("", self._hash)


class EngineSeat:
    """What the pipeline keeps for one link: the slots that are alive there."""

    def __init__(self, link: EngineLink) -> None:
        self.link = link
        self.says_ready = False
        """By its own word, though its weights may be others than those that are served."""
        self.engine = ""
        """What it is called in states; given with its first one."""
        self.live: dict[int, Choice] = {}
        self.heard_s = time.monotonic()
        self._next_slot = 0

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_s

    @property
    def is_healthy(self) -> bool:
        """True when it said just now that it is ready."""
        return self.is_ready and self.silent_s <= STALE_S

    @property
    def is_ready(self) -> bool:
        state = self.link.state
        return state is not None and state.ready

    @property
    def model_hash(self) -> str:
        return self.link.state.model_hash if self.link.state is not None else ""

    @property
    def load(self) -> float:
        """Choices per replica: those we know of, or those the engine told of if more."""
        state = self.link.state
        told = state.num_waiting + state.num_running if state is not None else 0
        return max(told, len(self.live)) / max(1, state.num_replicas if state is not None else 1)

    def start(self, ticket: Ticket, choices: Sequence[Choice], remaining_ms: int) -> None:
        """Send `choices` of `ticket`, with what they already hold; together when all are fresh."""
        ticket.model_hash = self.model_hash
        if len(choices) < len(ticket.choices) or any(choice.token_ids for choice in choices):
            for choice in choices:
                self._send(ticket, [choice], remaining_ms)
        else:
            self._send(ticket, choices, remaining_ms)

    def _send(self, ticket: Ticket, choices: Sequence[Choice], remaining_ms: int) -> None:
        assert ticket.limits is not None
        limits = Limits()
        limits.CopyFrom(ticket.limits)
        limits.n, limits.first_choice = len(choices), choices[0].index
        limits.deadline_ms = remaining_ms
        limits.waited_ms = int(choices[0].age.at(time.monotonic()) * 1000)  # all alike, if many
        first_slot = self._next_slot
        self._next_slot += len(choices)
        for engine_slot, choice in enumerate(choices, first_slot):
            choice.seat, choice.engine_slot = self, engine_slot
            choice.num_at_start, choice.started_s = len(choice.token_ids), time.monotonic()
            self.live[engine_slot] = choice
        self.link.add(
            GenerateRequest(
                slot=first_slot,
                request_id=ticket.request.request_id,
                prompt_token_ids=ticket.prompt,
                resumed_token_ids=[pack(c.token_ids) for c in choices if c.token_ids],
                limits=limits,
                sampling=ticket.sampling,
                attempt=max(choice.attempt for choice in choices),
            )
        )
        for choice in choices:
            if choice.is_paused:
                self.link.pause(choice.engine_slot)


class EngineSeats:
    """All attached engines, and those who wait for one. Belongs to one event loop."""

    def __init__(self, model: str = "", vocab_size: int = 0, sought: str = "") -> None:
        """An engine of another model, or vocabulary, is not ready; 0 = not known.

        `sought` are the engines that should be here, as the settings name them: told while none is.
        """
        self._sought = sought
        self._model = OneModel(model, vocab_size)
        self._seats: dict[int, EngineSeat] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    def attach(self, link: EngineLink) -> None:
        self._seats[id(link)] = EngineSeat(link)
        self._wake()

    def detach(self, link: EngineLink) -> EngineSeat | None:
        return self._seats.pop(id(link), None)

    def of(self, link: EngineLink) -> EngineSeat | None:
        """Return the seat of `link`, None when it is not attached."""
        return self._seats.get(id(link))

    def all(self) -> list[EngineSeat]:
        return list(self._seats.values())

    def best(self, heard_after_s: float = 0.0, model_hash: str = "") -> EngineSeat | None:
        """Return the ready seat with the least load that spoke so late; a healthy one if any.

        Of one with `model_hash`, if told: what it has begun, other weights do not go on with.
        """
        seats = [seat for seat in self._seats.values() if seat.heard_s >= heard_after_s]
        if model_hash:
            ready = [s for s in seats if s.says_ready and s.model_hash == model_hash]
        else:
            ready = [seat for seat in seats if seat.is_ready]
        return min(ready, key=lambda seat: (not seat.is_healthy, seat.load), default=None)

    async def ready(
        self, timeout_s: float, heard_after_s: float = 0.0, model_hash: str = ""
    ) -> EngineSeat:
        """Wait for what `best` returns; raise Unavailable in the end."""
        seat = self.best(heard_after_s, model_hash)
        try:
            async with asyncio.timeout(timeout_s):
                while seat is None:
                    await self._news()
                    seat = self.best(heard_after_s, model_hash)
        except TimeoutError:
            reasons = ", ".join(self.reasons()) or "not a word since one was lost"
            raise Unavailable(f"no engine is ready: {reasons}", retry_after_s=1) from None
        return seat

    async def _news(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def told(self, link: EngineLink) -> None:
        """An engine has told its state: let those who wait look again."""
        seat = self._seats.get(id(link))
        if link.state is not None:
            if seat is not None:
                seat.says_ready = link.state.ready
                seat.engine = link.state.engine = seat.engine or self._name(link, link.state.engine)
            self._model.check(link.state)
        if seat is not None:
            self.heard(seat)
        self._wake()

    def _name(self, link: EngineLink, told: str) -> str:
        """Return what an engine is to be called: hosts of one image may have one name.

        The tiers above know engines by it, and took what one said for the other's.
        """
        if not told or all(seat.engine != told for seat in self._seats.values()):
            return told
        log.warning("two engines are called alike", extra={"engine": told, "address": link.name})
        return f"{told} at {link.name}"

    def heard(self, seat: EngineSeat) -> None:
        """An engine has said something: let those who wait for a word look again."""
        seat.heard_s = time.monotonic()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def reasons(self) -> list[str]:
        """Return why no engine is ready; empty when one is. Any thread may ask."""
        seats = self.all()
        ready = [seat for seat in seats if seat.is_ready]
        if any(seat.is_healthy for seat in ready):
            return []
        if ready:
            return [f"{seat.link.name}: not heard of for {seat.silent_s:.1f} s" for seat in ready]
        states = [seat.link.state for seat in seats]
        told = [reason for state in states if state is not None for reason in state.reasons]
        return told or [f"{len(states)} engines loading" if states else nobody(self._sought)]


def nobody(sought: str) -> str:
    """Say that no engine is connected, and whom we look for: no name may stand for any."""
    return f"no engine connected ({sought})" if sought else "no engine connected"
