"""The life of a request in the text tier: text → prompt ids → an engine → tokens → text → one end.

Knows every stage by name and no transport: gateways are sinks, engines are `EngineLink`s. Runs on
one event loop, which owns all of its state; the offline interface runs it without any server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import orjson

from common.errors import DeadlineExceeded, Internal, Overloaded, ServiceError, Unavailable
from protos import limits
from protos.common_pb2 import (
    ABORTED,
    DEADLINE,
    ERROR,
    IGNORED,
    EngineState,
    ErrorDetail,
    Finish,
    FinishReason,
    ModelInfo,
    Query,
    QueryAnswer,
)
from protos.engine_pb2 import Bulk, TokenBatch
from protos.tokenizer_pb2 import (
    AskReply,
    ConvertReply,
    ConvertRequest,
    EngineAnswer,
    TextBatch,
    TextBulk,
    TextRequest,
)
from tokenizer_service.bulks import BulkText
from tokenizer_service.conversion import convert
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.opening import Opening
from tokenizer_service.placement import CONNECTION_LOST, EngineLink, EngineSeat, EngineSeats
from tokenizer_service.questions import Questions
from tokenizer_service.step_decoder import StepDecoder
from tokenizer_service.step_text import StepText
from tokenizer_service.text_model import TextModel
from tokenizer_service.ticket import BulkSink, Choice, Session, Sink, Ticket

log = logging.getLogger(__name__)
REQUEST_STATE = "request_state"
"""The one kind of question that this tier has an answer to."""
THIS_TIER = "tokenizer"
MAX_PENDING = 1024
"""Requests being encoded or waiting for an engine; more are refused, but none that is replayed."""


class TextPipeline:
    """Owns sessions, tickets and seats. Every choice gets exactly one Finish, and it is the last.

    Gateways: `open_session`, `submit`, `abort`, `pause`, `resume`, `cancel`, `close_session`.
    Engines: `attach_engine`, `on_tokens`, `on_bulk`, `on_answer`, `on_state`, `detach_engine`
    (see `EngineLink`).
    """

    def __init__(
        self,
        model: TextModel,
        metrics: TokenizerMetrics,
        max_pending: int = MAX_PENDING,
        engine_wait_s: float = 10.0,
        replay_timeout_s: float = 60.0,
        on_engine_state: Callable[[EngineState], None] = lambda state: None,
        sought: str = "",
    ) -> None:
        """`on_engine_state` is told each state an engine tells, and an unready one at its loss.

        `sought` names the engines that should be there.
        """
        self._model = model
        self._metrics = metrics
        self._max_pending = max_pending
        self._replay_timeout_s = replay_timeout_s
        self._on_engine_state = on_engine_state
        self._bulks = BulkText(model)
        self._decoder = StepDecoder(model, metrics, self._bulks, self._end, self._replay)
        self.seats = EngineSeats(model.folder.name, model.vocab_size, sought)
        self.questions = Questions(self.seats)
        self._opening = Opening(
            model, metrics, self.seats, engine_wait_s, replay_timeout_s, self._end
        )
        self.sessions: dict[int, Session] = {}
        self._tickets: dict[tuple[str, str], list[Ticket]] = {}
        self._last_session = 0
        self._num_pending = self._num_replaying = 0
        metrics.watch(
            pending=lambda: self._num_pending,
            live=lambda: sum(len(seat.live) for seat in self.seats.all()),
            replaying=lambda: self._num_replaying,
            held=self._num_held,
            ready=lambda: sum(seat.is_healthy for seat in self.seats.all()),
        )

    # ── gateways ─────────────────────────────────────────────────────────────────────────────

    def open_session(self, sink: Sink, bulk_sink: BulkSink) -> int:
        """Return the number of a new session whose text goes to `sink`, the rest to `bulk_sink`."""
        self._last_session += 1
        self.sessions[self._last_session] = Session(self._last_session, sink, bulk_sink)
        return self._last_session

    def models(self) -> list[ModelInfo]:
        """Return the served models; max_model_len is 0 while no engine has reported it."""
        states = [seat.link.state for seat in self.seats.all()]
        lengths = [state.max_model_len for state in states if state and state.max_model_len]
        return [self._model.info(min(lengths, default=0))]

    async def convert(self, request: ConvertRequest) -> ConvertReply:
        """Do text work without generation."""
        return await convert(self._model, request, self.models()[0].max_model_len)

    async def ask(self, query: Query, unreachable: Iterable[str]) -> AskReply:
        """Put a question to every engine; add what only this tier knows of a request."""
        own = self._own_state(query) if query.kind == REQUEST_STATE else []
        reply = await self.questions.ask(query, unreachable)
        if own:
            body = orjson.dumps({"choices": own})
            answer = QueryAnswer(query_id=query.query_id, body_json=body)
            reply.answers.append(EngineAnswer(engine=THIS_TIER, answer=answer))
        return reply

    def _own_state(self, query: Query) -> list[dict[str, Any]]:
        """Return the choices of the asked request that no engine has."""
        asked = orjson.loads(query.body_json or b"{}")
        key = (asked.get("tenant", ""), asked.get("request_id", ""))
        return [
            {"choice": choice.index, "state": "opening" if choice.stream is None else "replaying"}
            for ticket in self._tickets.get(key, ())
            for choice in ticket.choices
            if choice.is_open and choice.seat is None
        ]

    def submit(self, session: int, request: TextRequest) -> asyncio.Task[None]:
        """Take a request; return the task that ends when it runs in an engine or was refused.

        All that becomes of it, errors too, goes to the session's sink. A closed session, a slot
        still in use or too many of them are faults of the caller: KeyError or ValueError.
        """
        owner = self.sessions[session]
        now_s = asyncio.get_running_loop().time()
        ticket = Ticket(owner, request, now_s, model_hash=request.model_hash)
        if any(slot in owner.choices for slot in ticket.slots):
            raise ValueError(f"slot {request.slot} of session {session} is still in use")
        for index, slot in enumerate(ticket.slots, request.limits.first_choice):
            owner.choices[slot] = Choice(ticket, slot, index, request.attempt)
            ticket.choices.append(owner.choices[slot])
        self._tickets.setdefault(ticket.key, []).append(ticket)
        return self._spawn(ticket, self._run(ticket))

    def abort(self, session: int, slot: int) -> None:
        """End one choice; one that has ended, or never was, is ignored."""
        choice = self._choice(session, slot)
        if choice is not None:
            self._abort(choice)

    def pause(self, session: int, slot: int, is_paused: bool = True) -> None:
        """Give a choice's place to others while its client reads slowly, wherever it runs next."""
        choice = self._choice(session, slot)
        if choice is None or choice.is_paused == is_paused:
            return
        choice.is_paused = is_paused
        if choice.seat is not None:
            link = choice.seat.link
            (link.pause if is_paused else link.resume)(choice.engine_slot)

    def resume(self, session: int, slot: int) -> None:
        """Let a paused choice go on."""
        self.pause(session, slot, is_paused=False)

    def _choice(self, session: int, slot: int) -> Choice | None:
        owner = self.sessions.get(session)
        return owner.choices.get(slot) if owner is not None else None

    def cancel(self, request_id: str, tenant: str) -> int:
        """End every live request of `tenant` with exactly this id; return how many there were."""
        tickets = [t for t in self._tickets.get((tenant, request_id), ()) if t.is_open]
        for ticket in tickets:
            for choice in ticket.choices:
                self._abort(choice)
        return len(tickets)

    def close_session(self, session: int) -> None:
        """End all choices of a gateway that is gone; nothing more is sent to its sink."""
        owner = self.sessions.pop(session, None)
        if owner is None:
            return
        owner.sink = owner.bulk_sink = discard
        for choice in list(owner.choices.values()):
            if choice.seat is not None:
                choice.seat.link.abort(choice.engine_slot)
            self._end(StepText(), choice, Finish(reason=ABORTED))

    def _abort(self, choice: Choice) -> None:
        """Ask the engine to end it; end it here when no engine has it."""
        if not choice.is_open or choice.is_aborted:
            return
        choice.is_aborted = True
        if choice.seat is not None:
            choice.seat.link.abort(choice.engine_slot)
        else:
            self._end_alone(choice, Finish(reason=ABORTED))

    # ── from text to an engine ───────────────────────────────────────────────────────────────

    async def _run(self, ticket: Ticket) -> None:
        """Start a request, or end it with what went wrong."""
        self._num_pending += 1
        deadline_ms = ticket.request.limits.deadline_ms
        try:
            async with asyncio.timeout(deadline_ms / 1000 if deadline_ms else None):
                if self._num_pending > self._max_pending and not ticket.request.attempt:
                    raise Overloaded(f"{self._max_pending} requests are pending", retry_after_s=1)
                await self._opening.open(ticket)
        except asyncio.CancelledError:
            if ticket.is_open:
                raise  # the loop ends; otherwise the request was aborted, which is no failure
        except TimeoutError:
            self._refuse(ticket, DeadlineExceeded("the deadline has passed before the start"))
        except ServiceError as error:
            self._refuse(ticket, error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of a library in Rust is no Exception
            log.exception("request failed", extra={"request_id": ticket.request.request_id})
            self._refuse(ticket, Internal("the text tier failed on this request"))
        finally:
            self._num_pending -= 1

    def _refuse(self, ticket: Ticket, error: ServiceError) -> None:
        """End every open choice of a request that did not run."""
        reason = DEADLINE if isinstance(error, DeadlineExceeded) else IGNORED
        for choice in ticket.choices:
            if choice.is_open:
                self._end_alone(choice, failed(reason, error))

    # ── from an engine to text ───────────────────────────────────────────────────────────────

    def attach_engine(self, link: EngineLink) -> None:
        """A stream to an engine is open."""
        self.seats.attach(link)

    def on_state(self, link: EngineLink) -> None:
        """The engine has told a new state."""
        self.seats.told(link)
        if link.state is not None:
            self._on_engine_state(link.state)

    def detach_engine(self, link: EngineLink) -> None:
        """The stream is lost: replay what ran there."""
        seat = self.seats.detach(link)
        if seat is None:
            return
        self.questions.lost(link)
        if link.state is not None:
            lost = EngineState()
            lost.CopyFrom(link.state)
            lost.ready = False
            lost.reasons[:] = [CONNECTION_LOST]
            lost.num_waiting = lost.num_running = lost.num_replicas = 0  # they go on elsewhere
            lost.kv_usage = 0.0
            self._on_engine_state(lost)
        step = StepText()
        for choice in list(seat.live.values()):
            self._replay(step, seat, choice, not choice.note_loss(seat.heard_s))
        step.deliver()

    def on_tokens(self, link: EngineLink, batch: TokenBatch) -> None:
        """Turn one engine step into one TextBatch per session that it concerns."""
        seat = self.seats.of(link)
        if seat is not None:
            self.seats.heard(seat)
            self._decoder.decode(seat, batch)

    def on_bulk(self, link: EngineLink, bulk: Bulk) -> None:
        """Pass on what is too large for a step's columns."""
        seat = self.seats.of(link)
        choice = seat.live.get(bulk.slot) if seat is not None else None
        if choice is None or not choice.is_open:
            return
        shown = self._bulks.show(choice, bulk)
        if shown is not None:
            choice.ticket.session.bulk_sink(shown)

    def on_answer(self, link: EngineLink, answer: QueryAnswer) -> None:
        """Take an engine's answer to a query."""
        self.questions.answered(link, answer)

    # ── replay ───────────────────────────────────────────────────────────────────────────────

    def _replay(self, step: StepText, seat: EngineSeat, choice: Choice, is_crash: bool) -> None:
        """Send a choice again, with all it holds, to any ready engine that speaks after the loss.

        `is_crash` counts as an attempt where it got no further; to have waited does not, nor to be
        refused while engines come back.
        """
        seat.live.pop(choice.engine_slot, None)
        choice.seat = None
        if not choice.is_open:
            return
        if choice.is_aborted:
            self._end(step, choice, Finish(reason=ABORTED))
            return
        choice.attempt = choice.attempt_after_loss() if is_crash else max(1, choice.attempt)
        if is_crash:
            self._metrics.replays.inc()
            name = {"request_id": choice.ticket.request.request_id, "choice": choice.index}
            log.warning("replay", extra={**name, "attempt": choice.attempt})
        choice.age.wait(time.monotonic())
        choice.heard_after_s = time.monotonic() + limits.AFTERMATH_S
        until_s = choice.give_up_at(seat.heard_s, self._replay_timeout_s)
        self._spawn(choice.ticket, self._resend(choice, until_s))

    async def _resend(self, choice: Choice, until_s: float) -> None:
        self._num_replaying += 1
        try:
            if choice.attempt >= limits.MAX_ATTEMPTS:
                raise Unavailable(limits.given_up(choice.attempt), code=limits.ATTEMPTS_EXHAUSTED)
            wait_s = until_s - asyncio.get_running_loop().time()
            begun_by = choice.ticket.begun_by
            seat = await self.seats.ready(max(0.0, wait_s), choice.heard_after_s, begun_by)
            remaining_ms = choice.ticket.remaining_ms()
            if choice.is_open:
                seat.start(choice.ticket, [choice], remaining_ms)
                self._opening.tell(choice)
        except DeadlineExceeded as error:
            self._end_alone(choice, failed(DEADLINE, error))
        except ServiceError as error:
            self._end_alone(choice, failed(ERROR, error))
        finally:
            self._num_replaying -= 1

    # ── the one end ──────────────────────────────────────────────────────────────────────────

    def _end_alone(self, choice: Choice, finish: Finish) -> None:
        """End a choice outside an engine step."""
        step = StepText()
        self._end(step, choice, finish)
        step.deliver()

    def _end(self, step: StepText, choice: Choice, finish: Finish) -> None:
        """Send the Finish and forget the slot: nothing about it is sent afterwards."""
        if not choice.is_open:
            return
        ticket = choice.ticket
        choice.is_open = False
        ticket.session.choices.pop(choice.slot, None)
        finish.slot = choice.slot
        finish.num_prompt_tokens = ticket.num_prompt_tokens
        if choice.begun is not None and not finish.HasField("timings"):  # not the engine's end
            finish.num_cached_tokens = choice.begun.num_cached
            finish.timings.CopyFrom(choice.begun.timings)
        if choice.split is not None:
            finish.num_reasoning_tokens = choice.split.num_reasoning_tokens
        step.of(ticket.session).finishes.append(finish)
        self._metrics.requests.labels(FinishReason.Name(finish.reason).lower()).inc()
        if not ticket.is_open:
            self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        tickets = self._tickets[ticket.key]
        tickets.remove(ticket)
        if not tickets:
            del self._tickets[ticket.key]
        ticket.choices.clear()  # what knows each other would wait for a collection of garbage
        for task in ticket.tasks - {asyncio.current_task()}:
            task.cancel()

    def _spawn(self, ticket: Ticket, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        ticket.tasks.add(task)
        task.add_done_callback(ticket.tasks.discard)
        return task

    def _num_held(self) -> int:
        live = [choice for seat in self.seats.all() for choice in list(seat.live.values())]
        return sum(choice.stream is not None and choice.stream.held for choice in live)


def failed(reason: FinishReason, error: ServiceError) -> Finish:
    """Return the Finish that carries `error`."""
    return Finish(reason=reason, error=ErrorDetail(**error.fields()))


def discard(said: TextBatch | TextBulk) -> None:
    """Stand in for the sinks of a gateway that is gone."""
