"""Questions about a scheduler's books, in JSON, by kind; the answer is a JSON list of one object.

request_state     {request_id, tenant}: the live choices of that request; [] when there are none
explain           {prompt_token_ids, max_tokens, …}: how such a request would fare
cache_statistics  {}: hits, misses, tokens saved, blocks by state
cache_reset       {}: forget all that is cached and not in use

The answers' fields stand in `scheduling/inspection.py`.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from engine_core.scheduling.inspection import ChoiceState
from engine_core.scheduling.scheduler import Scheduler
from protos.limits import MAX_U32
from protos.worker import Add, Limits, Query, QueryAnswer

log = logging.getLogger(__name__)


class RequestStateQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request_id: str
    tenant: str = ""


class RequestStateAnswer(msgspec.Struct, frozen=True):
    request_id: str
    choices: list[ChoiceState]


class ExplainQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cache_salt` is base64; the other fields are those of `common.proto` Limits."""

    prompt_token_ids: list[int]
    max_tokens: int
    min_tokens: int = 0
    n: int = 1
    priority: int = 0
    tenant: str = ""
    cache_salt: bytes = b""
    kind: str = "generate"
    pooling: str = "last"
    prompt_logprobs: int | None = None


class CacheQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class CacheResetAnswer(msgspec.Struct, frozen=True):
    num_blocks_dropped: int


def answer(scheduler: Scheduler, query: Query, now: float) -> QueryAnswer:
    """Return the answer to `query`, or an error that says what is wrong with it."""
    try:
        body = msgspec.json.encode(_rows(scheduler, query, now))
        return QueryAnswer(query.session, query.query_id, body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnknownKind) as error:
        return _failed(query, "InvalidRequest", f"{query.kind}: {error}")
    except Exception as error:  # a question must not stop the loop
        log.exception("a question failed", extra={"kind": query.kind})
        return _failed(query, "Internal", f"{query.kind} failed: {error!r}")


class UnknownKind(Exception):
    """There is no such question."""


def _failed(query: Query, kind: str, message: str) -> QueryAnswer:
    return QueryAnswer(query.session, query.query_id, b"", kind, message)


def _rows(scheduler: Scheduler, query: Query, now: float) -> list[msgspec.Struct]:
    if query.kind not in _KINDS:
        raise UnknownKind(f"no such question; there are {', '.join(_KINDS)}")
    question_type, respond = _KINDS[query.kind]
    question = msgspec.json.decode(query.body or b"{}", type=question_type)
    return respond(scheduler, question, now)


def _request_state(
    scheduler: Scheduler, question: RequestStateQuestion, now: float
) -> list[msgspec.Struct]:
    choices = scheduler.inspection.request(question.request_id, question.tenant, now)
    return [RequestStateAnswer(question.request_id, choices)] if choices else []


def _explain(scheduler: Scheduler, question: ExplainQuestion, now: float) -> list[msgspec.Struct]:
    if any(not 0 <= token_id <= MAX_U32 for token_id in question.prompt_token_ids):
        raise msgspec.ValidationError("prompt_token_ids must be 32-bit values")
    limits = Limits(
        max_tokens=question.max_tokens,
        min_tokens=question.min_tokens,
        n=question.n,
        priority=question.priority,
        tenant=question.tenant,
        cache_salt=question.cache_salt,
        kind=question.kind,
        pooling=question.pooling,
        prompt_logprobs=question.prompt_logprobs,
    )
    prompt = array("I", question.prompt_token_ids).tobytes()
    return [scheduler.inspection.explain(Add(0, 0, "", prompt, limits, b""), now)]


def _cache_statistics(
    scheduler: Scheduler, question: CacheQuestion, now: float
) -> list[msgspec.Struct]:
    return [scheduler.inspection.cache()]


def _cache_reset(scheduler: Scheduler, question: CacheQuestion, now: float) -> list[msgspec.Struct]:
    return [CacheResetAnswer(scheduler.reset_cache())]


_Respond = Callable[[Scheduler, Any, float], list[msgspec.Struct]]
_KINDS: dict[str, tuple[type[msgspec.Struct], _Respond]] = {
    "request_state": (RequestStateQuestion, _request_state),
    "explain": (ExplainQuestion, _explain),
    "cache_statistics": (CacheQuestion, _cache_statistics),
    "cache_reset": (CacheQuestion, _cache_reset),
}
