"""Rows of the wire made of sequences: how one starts at a worker, how it ends for its caller."""

from __future__ import annotations

from engine_core.scheduling.request import FinishReason, Problem
from engine_core.scheduling.sequence import Sequence
from protos.limits import LIMITS
from protos.worker import Add, Finished, SequenceStart


def slots_of(add: Add) -> range:
    """Return the slots of a request, also of one that asks for absurdly many."""
    return range(add.slot, add.slot + min(max(add.limits.n, 1), int(LIMITS["n"].high)))


def start_row(sequence: Sequence, num_known: int, num_tokens: int) -> SequenceStart:
    """Return all a worker must know to compute the `num_tokens` after the first `num_known`."""
    limits = sequence.request.limits
    num_dropped_outputs = sequence.num_prompt_left - sequence.first_output
    return SequenceStart(
        seq_id=sequence.seq_id,
        token_ids=sequence.tokens.tobytes(),
        num_prompt_tokens=sequence.num_prompt_left,
        num_computed=num_known,
        num_tokens=num_tokens,
        block_ids=tuple(sequence.block_ids),
        sampling=sequence.request.sampling,
        choice=sequence.choice,
        logprobs=limits.logprobs,
        min_tokens=max(limits.min_tokens - num_dropped_outputs, 0),
        stop_token_ids=limits.stop_token_ids,
        prompt_logprobs=limits.prompt_logprobs if sequence.owes_prompt_logprobs else None,
        pooling=limits.pooling if sequence.is_embed else "",
        num_dropped_outputs=num_dropped_outputs,
    )


def finished_row(
    sequence: Sequence,
    reason: FinishReason,
    now: float,
    num_output_tokens: int | None,
    problem: Problem | None,
) -> Finished:
    """Return the terminal row of `sequence`; `num_output_tokens` set means a stop string."""
    queue_s, prefill_s, decode_s = sequence.phases(now)
    by_token = reason is FinishReason.STOPPED and num_output_tokens is None
    return Finished(
        slot=sequence.slot,
        reason=int(reason),
        num_prompt_tokens=sequence.num_prompt,
        num_cached_tokens=sequence.num_cached,
        num_output_tokens=sequence.num_output if num_output_tokens is None else num_output_tokens,
        queue_s=queue_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        num_preemptions=sequence.num_preemptions,
        stop_token_id=sequence.tokens[-1] if by_token else None,
        error_kind=problem.kind if problem else "",
        error_message=problem.message if problem else "",
        error_param=problem.param if problem else "",
        error_code=problem.code if problem else "",
    )


def refused_row(slot: int, problem: Problem, num_prompt_tokens: int) -> Finished:
    """Return the terminal row of a slot that never entered."""
    return Finished(
        slot=slot,
        reason=int(problem.reason),
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=0,
        num_output_tokens=0,
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        num_preemptions=0,
        error_kind=problem.kind,
        error_message=problem.message,
        error_param=problem.param,
        error_code=problem.code,
        retry_after_ms=int(problem.retry_after_s * 1000),
    )
