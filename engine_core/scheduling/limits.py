"""The engine's door: an `Add` becomes a `Request`, or is refused with numbers and a remedy.

Bounds are those of `protos/limits.py`, the same table as at the gateway's door.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from engine_core.scheduling.bounds import TenantLimits
from engine_core.scheduling.request import FinishReason, Problem, Refused, Request
from engine_core.scheduling.sequence import Room
from protos.limits import (
    ATTEMPTS_EXHAUSTED,
    LIMITS,
    MAX_ATTEMPTS,
    MAX_EOS_TOKEN_IDS,
    MAX_REQUEST_ID_CHARS,
    MAX_STOP_TOKEN_IDS,
    given_up,
    violation,
)
from protos.worker import Add, Limits

MAX_NEW_TOKENS = int(LIMITS["max_tokens"].high)
MAX_ENDS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS


class Facts(NamedTuple):
    """What bounds every request of one replica."""

    vocab_size: int
    max_model_len: int
    kv_capacity_tokens: int
    block_size: int
    layout: str
    has_head: bool

    @property
    def max_total(self) -> int:
        """Tokens of one sequence at most, prompt and output."""
        return min(self.max_model_len, self.kv_capacity_tokens)


def admit(add: Add, facts: Facts, own: TenantLimits, now: float) -> Request:
    """Return the request behind `add`; raise Refused when it may not enter.

    `own` are the limits of its tenant.
    """
    if add.attempt >= MAX_ATTEMPTS:
        raise Refused(_given_up(add.attempt))
    for problem in _wrong_numbers(add, facts):
        raise Refused(problem)
    request = _decode(add, _in_turn(add.limits, own), now)
    for problem in _wrong_tokens(request, facts):
        raise Refused(problem)
    for problem in _too_much(request, facts, own):
        raise Refused(problem)
    return request


def room(facts: Facts, own: TenantLimits) -> Room:
    """Return what a sequence of a tenant with `own` limits may have."""
    bounds = (facts.max_total, own.context, own.blocks * facts.block_size)
    return Room(min(bound for bound in bounds if bound), own.new_tokens or MAX_NEW_TOKENS)


def _too_much(request: Request, facts: Facts, own: TenantLimits) -> Iterator[Problem]:
    """Yield what the tenant's own limits forbid, with field, limit and tenant.

    `max_tokens` that nobody asked for, or that fills the context, is cut.
    """
    length, drawn = len(request.prompt), _num_drawn(request)
    asked = request.limits.max_tokens
    left, goes_on = facts.max_total - length, request.limits.n_keep is not None
    is_ours = not drawn or request.limits.max_is_ours
    is_open = is_ours or asked == left or (asked > left and not goes_on)
    is_bounded = not is_open and not goes_on
    for key, limit, unit in (
        ("context", own.context, "a context of"),
        ("blocks", own.blocks * facts.block_size, f"{own.blocks} KV blocks, that is"),
    ):
        most = f"{unit} {limit} tokens with the output"
        if limit and length + drawn > limit:
            why, param = f"the prompt has {length} tokens", "prompt"
        elif limit and is_bounded and length + asked > limit:
            why, param = f"max_tokens is {asked}, the prompt has {length}", "max_tokens"
        else:
            continue
        yield _beyond(request, f"{why}, but {{}} may have {most}", key, param)
    if own.waiting and request.limits.n > own.waiting:  # no wait would help
        why = f"n is {request.limits.n}, but {{}} may have {own.waiting} that wait"
        yield _beyond(request, why, "waiting", "n")
    if own.new_tokens and asked > own.new_tokens and not is_open:
        why = f"max_tokens is {asked}, but {{}} may have {own.new_tokens} new tokens"
        yield _beyond(request, why, "new_tokens", "max_tokens")
    if own.priority is not None and request.limits.priority < own.priority:
        why = f"priority is {request.limits.priority}, but {{}} may ask for {own.priority} or more"
        yield _beyond(request, why, "priority", "priority")


def _beyond(request: Request, why: str, key: str, param: str) -> Problem:
    message = why.format(f"tenant {request.limits.tenant!r}")
    code = "context_length_exceeded" if key == "context" else "tenant_limit_exceeded"
    return _invalid(f"{message} (tenant_limits: {key})", param, code)


def _given_up(attempt: int) -> Problem:
    code, reason = ATTEMPTS_EXHAUSTED, FinishReason.ERROR
    return Problem("Unavailable", given_up(attempt), code=code, reason=reason)


def _invalid(message: str, param: str, code: str = "") -> Problem:
    return Problem("InvalidRequest", message, param, code)


def check_fit(request: Request, facts: Facts) -> None:
    """Raise Refused when max_tokens are more than the context; those that do not fit behind the
    prompt are cut."""
    if request.limits.max_tokens > facts.max_model_len:
        context = f"this model's maximum context length is {facts.max_model_len} tokens"
        message = f"{context}, and max_tokens is {request.limits.max_tokens}"
        raise Refused(_invalid(message, "max_tokens", "context_length_exceeded"))


def _wrong_numbers(add: Add, facts: Facts) -> Iterator[Problem]:
    limits = add.limits
    yield from _wrong_kind(limits, facts)
    for name, value in _bounded(limits):
        if why := violation(name, value):
            yield _invalid(why, name)
    if limits.min_tokens > limits.max_tokens:
        numbers = f"{limits.min_tokens} > {limits.max_tokens}"
        yield _invalid(f"min_tokens must not exceed max_tokens: {numbers}", "min_tokens")
    if (count := len(limits.stop_token_ids)) > MAX_ENDS:
        yield _invalid(f"at most {MAX_ENDS} stop_token_ids, got {count}", "stop_token_ids")
    if len(add.request_id) > MAX_REQUEST_ID_CHARS:
        yield _invalid(f"request_id is longer than {MAX_REQUEST_ID_CHARS} characters", "request_id")
    if len(add.resumed_token_ids) not in (0, limits.n):
        count = len(add.resumed_token_ids)
        yield _invalid(f"{count} resumed outputs for {limits.n} choices", "resumed_token_ids")
    if any(len(ids) % 4 for ids in (add.prompt_token_ids, *add.resumed_token_ids)):
        yield _invalid("token ids must be columns of 32-bit values", "prompt_token_ids")
    yield from _wrong_shift(limits, facts)


def _wrong_kind(limits: Limits, facts: Facts) -> Iterator[Problem]:
    if limits.kind not in ("generate", "embed", "score"):
        yield _invalid(f"this engine generates, embeds and scores; not {limits.kind}", "kind")
    if limits.kind != "embed" and not facts.has_head:
        why = "this model has no head (lm_head.weight): it serves embeddings, and no text"
        yield _invalid(why, "model", "model_embeds_only")
    if limits.kind == "embed" and limits.n != 1:
        yield _invalid(f"an embedding has one choice, n is {limits.n}", "n")
    if limits.pooling not in ("last", "mean"):
        yield _invalid(f"pooling must be last or mean, got {limits.pooling}", "pooling")


def _wrong_shift(limits: Limits, facts: Facts) -> Iterator[Problem]:
    """A context shift forgets output, and may need cells that can move."""
    if limits.rotate_kv and limits.n_keep is None:
        yield _invalid("rotate_kv needs n_keep: it says how the context is shifted", "rotate_kv")
    if limits.rotate_kv and facts.layout != "slot":
        yield _invalid(
            f"rotate_kv needs kv_layout=slot, this engine has {facts.layout}; without it what is "
            "left of the context is computed again",
            "rotate_kv",
        )
    if limits.n_keep is not None and limits.has_grammar:
        yield _invalid(
            "n_keep cannot go with a grammar: it must see all that was written", "n_keep"
        )


def _bounded(limits: Limits) -> Iterator[tuple[str, float]]:
    yield "max_tokens", limits.max_tokens
    yield "min_tokens", limits.min_tokens
    yield "n", limits.n
    yield "priority", limits.priority
    if limits.logprobs is not None:
        yield "logprobs", limits.logprobs
    if limits.prompt_logprobs is not None:
        yield "prompt_logprobs", limits.prompt_logprobs
    if limits.n_keep is not None:
        yield "n_keep", limits.n_keep


def _in_turn(limits: Limits, own: TenantLimits) -> Limits:
    """Return `limits`; who names no priority, which is 0, gets the tenant's own above that."""
    if limits.priority == 0 and own.priority is not None and own.priority > 0:
        return replace(limits, priority=own.priority)
    return limits


def _decode(add: Add, limits: Limits, now: float) -> Request:
    return Request(
        session=add.session,
        slot=add.slot,
        request_id=add.request_id,
        prompt=array("I", add.prompt_token_ids),
        resumed=tuple(array("I", ids) for ids in add.resumed_token_ids),
        limits=limits,
        stop_ids=frozenset(limits.stop_token_ids),
        sampling=add.sampling,
        attempt=add.attempt,
        arrival=now,
        deadline=None if limits.deadline_s is None else now + limits.deadline_s,
    )


def _wrong_tokens(request: Request, facts: Facts) -> Iterator[Problem]:
    length = len(request.prompt)
    if length == 0:
        yield _invalid("the prompt is empty", "prompt")
    if length + _num_drawn(request) > facts.max_total:
        yield _too_long(request, facts)
    for name, ids in _columns(request):
        if ids and max(ids) >= facts.vocab_size:
            yield _invalid(
                f"token id {max(ids)} is outside the vocabulary of {facts.vocab_size}", name
            )


def _columns(request: Request) -> Iterator[tuple[str, array[int] | frozenset[int]]]:
    yield "prompt_token_ids", request.prompt
    yield "stop_token_ids", request.stop_ids
    for ids in request.resumed:
        yield "resumed_token_ids", ids


def _num_drawn(request: Request) -> int:
    """Return how many tokens there must be room for behind the prompt."""
    return 1 if request.limits.kind == "generate" else 0


def _too_long(request: Request, facts: Facts) -> Problem:
    """A prompt needs room for one output token; say which bound is in the way and its knob."""
    length = len(request.prompt)
    if length + _num_drawn(request) > facts.max_model_len:
        return _invalid(
            f"the prompt has {length} tokens, the context is {facts.max_model_len} tokens with the "
            "output (max_model_len); shorten the prompt",
            "prompt",
            "context_length_exceeded",
        )
    return Problem(
        "PayloadTooLarge",
        f"the prompt has {length} tokens, the whole KV cache holds {facts.kv_capacity_tokens} "
        "with the output; raise the worker's kv_cache_memory or shorten the prompt",
        "prompt",
        "kv_cache_too_small",
    )
