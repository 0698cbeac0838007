"""Protos of the gRPC hop ↔ structs of the ZeroMQ hop. Columns pass as they are, never unpacked.

Also the door of the offline API, which has no gRPC but speaks the same protos.
"""

from __future__ import annotations

from array import array

from protos import common_pb2 as common
from protos import engine_pb2 as pb
from protos.limits import LIMITS
from protos.worker import (
    Add,
    Bulk,
    Finished,
    Limits,
    Logprobs,
    Progress,
    QueryAnswer,
    SessionOutput,
)

_KINDS = {common.GENERATE: "generate", common.EMBED: "embed", common.SCORE: "score"}
_POOLINGS = {common.LAST: "last", common.MEAN: "mean"}


def to_add(session: int, request: pb.GenerateRequest) -> Add:
    """Return the scheduler's form of `request`; raise ValueError for a torn column."""
    return Add(
        session=session,
        slot=request.slot,
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        limits=to_limits(request.limits),
        sampling=request.sampling,
        resumed_token_ids=tuple(request.resumed_token_ids),
        attempt=request.attempt,
    )


def to_limits(limits: common.Limits) -> Limits:
    """Return the scheduler's form of `limits`; raise ValueError for a torn column."""
    has_max = limits.HasField("max_tokens")
    return Limits(
        max_tokens=limits.max_tokens if has_max else int(LIMITS["max_tokens"].high),
        min_tokens=limits.min_tokens,
        stop_token_ids=tuple(array("I", limits.stop_token_ids)),
        n=limits.n or 1,
        logprobs=limits.logprobs if limits.HasField("logprobs") else None,
        priority=limits.priority,
        tenant=limits.tenant,
        cache_salt=limits.cache_salt,
        deadline_s=limits.deadline_ms / 1000 if limits.deadline_ms else None,
        kind=_KINDS.get(limits.kind, f"kind {limits.kind}"),
        first_choice=limits.first_choice,
        prompt_logprobs=limits.prompt_logprobs if limits.HasField("prompt_logprobs") else None,
        has_grammar=limits.has_grammar,
        n_keep=limits.n_keep if limits.HasField("n_keep") else None,
        rotate_kv=limits.rotate_kv,
        pooling=_POOLINGS.get(limits.pooling, f"pooling {limits.pooling}"),
        report_progress=limits.report_progress,
        waited_s=limits.waited_ms / 1000,
        max_is_ours=limits.max_is_ours,
    )


def to_batch(output: SessionOutput) -> pb.TokenBatch:
    """Return what one step means for one caller."""
    return pb.TokenBatch(
        slots=output.slots,
        counts=output.counts,
        token_offsets=output.token_offsets,
        token_ids=output.token_ids,
        finishes=[to_finish(row) for row in output.finishes],
        logprobs=[to_logprobs(row) for row in output.logprobs],
        progress=[to_progress(row) for row in output.progress],
    )


def to_finish(row: Finished) -> common.Finish:
    """Return the terminal event of a slot."""
    finish = common.Finish(
        slot=row.slot,
        reason=common.FinishReason.Name(row.reason),
        num_prompt_tokens=row.num_prompt_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_output_tokens=row.num_output_tokens,
        stop_token_id=row.stop_token_id,
        timings=common.Timings(
            queue_s=row.queue_s,
            prefill_s=row.prefill_s,
            decode_s=row.decode_s,
            num_preemptions=row.num_preemptions,
        ),
    )
    if row.error_kind:
        finish.error.kind = row.error_kind
        finish.error.message = row.error_message
        finish.error.param = row.error_param
        finish.error.code = row.error_code
        finish.error.retry_after_ms = row.retry_after_ms
    return finish


def to_bulk(row: Bulk) -> pb.Bulk:
    """Return what is too large for columns; the row's key is a slot."""
    if row.embedding:
        return pb.Bulk(slot=row.key, embedding=row.embedding)
    if row.trace:
        return pb.Bulk(slot=row.key, trace_json=row.trace)
    tokens = [to_logprobs(one) for one in row.prompt_logprobs]
    return pb.Bulk(slot=row.key, prompt_logprobs=pb.PromptLogprobs(tokens=tokens))


def to_progress(row: Progress) -> common.PromptProgress:
    """Return how far the prompt of a slot has come."""
    told = common.PromptProgress(
        slot=row.slot,
        num_total=row.num_total,
        num_cached=row.num_cached,
        num_computed=row.num_computed,
    )
    if row.queue_s is not None:
        told.timings.queue_s, told.timings.prefill_s = row.queue_s, row.prefill_s
    return told


def to_answer(answer: QueryAnswer) -> common.QueryAnswer:
    """Return a scheduler's answer; its session is the caller's business."""
    told = common.QueryAnswer(query_id=answer.query_id, body_json=answer.body)
    if answer.error_kind:
        told.error.kind = answer.error_kind
        told.error.message = answer.error_message
    return told


def to_logprobs(row: Logprobs) -> pb.TokenLogprobs:
    """Return the logprobs of one token; the row's key is a slot."""
    return pb.TokenLogprobs(
        slot=row.key, index=row.index, token_ids=row.token_ids, logprobs=row.logprobs
    )
