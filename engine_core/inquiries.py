"""Questions about the engine's books: asked of every replica, their answers told as one.

An answer is a JSON object of lists; those of the replicas are joined, and each object in them says
its replica's number. Whether a question makes sense is judged by the schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine_core.caller import CallerSession
from engine_core.replica import Replica
from engine_core.translate import to_answer
from protos import common_pb2 as common
from protos.worker import Query, QueryAnswer

Send = Callable[[Replica, Query], None]
Lists = dict[str, list[dict[str, Any]]]


@dataclass(slots=True)
class _Open:
    """A question that is under way."""

    caller: CallerSession
    silent: set[int]
    """Numbers of the replicas that have not answered."""
    told: dict[int, Lists] = field(default_factory=dict)
    """By number of the replica."""
    held: Sequence[dict[str, Any]] = ()
    error_kind: str = ""
    error_message: str = ""


class Inquiries:
    """The open questions of all callers, by session and query_id."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _Open] = {}

    def ask(
        self,
        caller: CallerSession,
        query: common.Query,
        replicas: Iterable[Replica],
        send: Send,
        held: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Ask all `replicas`; without any the answer is an error.

        `held` are choices of a request asked for that no replica has yet: they stand in the answer.
        """
        asked = list(replicas)
        key = (caller.number, query.query_id)
        self._open[key] = _Open(caller, {replica.number for replica in asked}, held=held)
        for replica in asked:
            send(replica, Query(*key, query.kind, query.body_json))
        if not asked and not held:
            self._open[key].error_kind = "Unavailable"
            self._open[key].error_message = "no replica is up"
        if not asked:
            self._close(key)

    def answered(self, replica: Replica, answer: QueryAnswer) -> None:
        """Take in one replica's answer; the last one completes the question."""
        key = (answer.session, answer.query_id)
        question = self._open.get(key)
        if question is None:
            return
        if answer.error_kind:
            question.error_kind = answer.error_kind
            question.error_message = answer.error_message
        else:
            question.told[replica.number] = msgspec.json.decode(answer.body, type=Lists)
        question.silent.discard(replica.number)
        self._close(key)

    def replica_lost(self, replica: Replica) -> None:
        """Nobody waits for it any more."""
        for key, question in list(self._open.items()):
            question.silent.discard(replica.number)
            self._close(key)

    def drop_session(self, session: int) -> None:
        self._open = {key: one for key, one in self._open.items() if key[0] != session}

    def _close(self, key: tuple[int, int]) -> None:
        question = self._open[key]
        if question.silent:
            return
        del self._open[key]
        lists = joined(question.told)
        if question.held:
            lists["choices"] = [*question.held, *lists.get("choices", ())]
        body = b"" if question.error_kind else msgspec.json.encode(lists)
        answer = QueryAnswer(*key, body, question.error_kind, question.error_message)
        question.caller.answer(to_answer(answer))


def joined(told: dict[int, Lists]) -> Lists:
    """Return the lists of all replicas as one object, in order of the replicas' numbers."""
    found: Lists = {}
    for number, lists in sorted(told.items()):
        for name, rows in lists.items():
            found.setdefault(name, []).extend({"replica": number, **row} for row in rows)
    return found
