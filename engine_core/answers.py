"""Questions about a scheduler's books, in JSON, by kind.

request_state     {request_id, tenant} → {choices: […]}: those that live here
explain           {token_ids, max_tokens, …} → {replicas: [one]}: how such a request would fare
cache_statistics  {} → {replicas: [one]}: hits, misses, tokens saved, blocks by state
cache_reset       {} → {replicas: [one]}: forget all that is cached and not in use

The lists are there to be joined by who asks several. Their fields: `scheduling/inspection.py`.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from engine_core.scheduling.scheduler import Scheduler
from protos.limits import LIMITS, MAX_U32
from protos.worker import Add, Limits, Query, QueryAnswer

log = logging.getLogger(__name__)
REQUEST_STATE = "request_state"


class RequestStateQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request_id: str
    tenant: str = ""


class ExplainQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cache_salt` is hexadecimal; the others are as in `common.proto` Limits."""

    token_ids: list[int]
    max_tokens: int | None = None
    """None = as many as fit."""
    n: int = 1
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    request_id: str = ""
    prompt_logprobs: int | None = None
    n_keep: int | None = None
    kind: str = "generate"


class CacheQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str = ""
    """Who asks; the answer is about all tenants."""


class CacheResetAnswer(msgspec.Struct, frozen=True):
    num_blocks_dropped: int


def answer(scheduler: Scheduler, query: Query, now: float) -> QueryAnswer:
    """Return the answer to `query`, or an error that says what is wrong with it."""
    try:
        body = msgspec.json.encode(_told(scheduler, query, now))
        return QueryAnswer(query.session, query.query_id, body)
    except (msgspec.DecodeError, Senseless) as error:
        return _failed(query, "InvalidRequest", f"{query.kind}: {error}")
    except Exception as error:  # a question must not stop the loop
        log.exception("a question failed", extra={"kind": query.kind})
        return _failed(query, "Internal", f"{query.kind} failed: {error!r}")


class Senseless(Exception):
    """The question cannot be answered as it is."""


def _failed(query: Query, kind: str, message: str) -> QueryAnswer:
    return QueryAnswer(query.session, query.query_id, b"", kind, message)


def _told(scheduler: Scheduler, query: Query, now: float) -> dict[str, Any]:
    if query.kind not in _KINDS:
        raise Senseless(f"no such question; there are {', '.join(_KINDS)}")
    question_type, respond = _KINDS[query.kind]
    question = msgspec.json.decode(query.body or b"{}", type=question_type)
    return respond(scheduler, question, now)


def _request_state(
    scheduler: Scheduler, question: RequestStateQuestion, now: float
) -> dict[str, Any]:
    return {"choices": scheduler.inspection.request(question.request_id, question.tenant, now)}


def _explain(scheduler: Scheduler, question: ExplainQuestion, now: float) -> dict[str, Any]:
    if any(not 0 <= token_id <= MAX_U32 for token_id in question.token_ids):
        raise Senseless("token_ids must be 32-bit values")
    try:
        salt = bytes.fromhex(question.cache_salt)
    except ValueError as error:
        raise Senseless(f"cache_salt is not hexadecimal: {error}") from error
    most = int(LIMITS["max_tokens"].high)
    limits = Limits(
        max_tokens=most if question.max_tokens is None else question.max_tokens,
        n=question.n,
        priority=question.priority,
        tenant=question.tenant,
        cache_salt=salt,
        prompt_logprobs=question.prompt_logprobs,
        n_keep=question.n_keep,
        kind=question.kind,
    )
    prompt = array("I", question.token_ids).tobytes()
    add = Add(0, 0, question.request_id, prompt, limits, b"")
    is_cut = question.max_tokens is None or question.n_keep is not None
    return {"replicas": [scheduler.inspection.explain(add, now, must_fit=not is_cut)]}


def _cache_statistics(scheduler: Scheduler, question: CacheQuestion, now: float) -> dict[str, Any]:
    return {"replicas": [scheduler.inspection.cache()]}


def _cache_reset(scheduler: Scheduler, question: CacheQuestion, now: float) -> dict[str, Any]:
    return {"replicas": [CacheResetAnswer(scheduler.reset_cache())]}


_Respond = Callable[[Scheduler, Any, float], dict[str, Any]]
_KINDS: dict[str, tuple[type[msgspec.Struct], _Respond]] = {
    REQUEST_STATE: (RequestStateQuestion, _request_state),
    "explain": (ExplainQuestion, _explain),
    "cache_statistics": (CacheQuestion, _cache_statistics),
    "cache_reset": (CacheQuestion, _cache_reset),
}
