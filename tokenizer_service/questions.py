"""Questions to all engines at once: each answers for itself, and who does not is named.

Knows no question's meaning: kinds and bodies pass through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from common.errors import DeadlineExceeded, ServiceError, Unavailable
from protos.common_pb2 import ErrorDetail, Query, QueryAnswer
from protos.tokenizer_pb2 import AskReply, EngineAnswer
from tokenizer_service.placement import EngineLink, EngineSeats

ASK_TIMEOUT_S = 2.0
"""An engine answers between two steps."""

Answer = asyncio.Future[QueryAnswer]


class Questions:
    """Sends queries to the attached engines and waits for what each says."""

    def __init__(self, seats: EngineSeats, timeout_s: float = ASK_TIMEOUT_S) -> None:
        self._seats = seats
        self._timeout_s = timeout_s
        self._last_id = 0
        self._waiting: dict[tuple[EngineLink, int], Answer] = {}

    async def ask(self, query: Query, unreachable: Iterable[str] = ()) -> AskReply:
        """Return one answer, or one error, per engine.

        `unreachable` names the engines that should be there and have no open stream.
        """
        loop = asyncio.get_running_loop()
        self._last_id += 1
        sent = Query(query_id=self._last_id, kind=query.kind, body_json=query.body_json)
        asked: dict[EngineLink, Answer] = {}
        for seat in self._seats.all():
            asked[seat.link] = self._waiting[seat.link, sent.query_id] = loop.create_future()
            seat.link.ask(sent)
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=self._timeout_s)
        finally:
            for link in asked:
                self._waiting.pop((link, sent.query_id), None)
        reply = AskReply()
        for link, answer in asked.items():
            reply.answers.append(self._told(link, answer, query.query_id))
        for name in unreachable:
            error = Unavailable(f"engine {name} is not connected")
            reply.answers.append(refused(name, query.query_id, error))
        return reply

    def answered(self, link: EngineLink, answer: QueryAnswer) -> None:
        """Take an engine's answer; one that comes too late is dropped."""
        waiting = self._waiting.pop((link, answer.query_id), None)
        if waiting is not None:
            waiting.set_result(answer)

    def lost(self, link: EngineLink) -> None:
        """End the wait for an engine that is gone."""
        for key in [key for key in self._waiting if key[0] is link]:
            self._waiting.pop(key).cancel()

    def _told(self, link: EngineLink, answer: Answer, query_id: int) -> EngineAnswer:
        name = engine_name(link)
        if answer.cancelled():
            return refused(name, query_id, Unavailable(f"engine {name} was lost"))
        if not answer.done():
            late = f"engine {name} did not answer within {self._timeout_s:g} s"
            return refused(name, query_id, DeadlineExceeded(late))
        told = QueryAnswer()
        told.CopyFrom(answer.result())
        told.query_id = query_id
        return EngineAnswer(engine=name, answer=told)


def engine_name(link: EngineLink) -> str:
    """Return the engine's own name, or its address while it has told none."""
    return link.state.engine if link.state is not None else link.name


def refused(engine: str, query_id: int, error: ServiceError) -> EngineAnswer:
    """Return the answer that carries `error`."""
    detail = ErrorDetail(**error.fields())
    return EngineAnswer(engine=engine, answer=QueryAnswer(query_id=query_id, error=detail))
