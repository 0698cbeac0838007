"""The clock and the counts of one request: histograms as tokens come, usage and timings at its end.

Token counts are the engine's; where a request ends before the engine's word, what arrived counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api_gateway.job import Job
from api_gateway.metrics import REASONS, GatewayMetrics
from api_gateway.sessions import Choice
from protos.common_pb2 import ABORTED, IGNORED, LENGTH, STOPPED

Usage = dict[str, Any]


def num_prompt_tokens(choice: Choice) -> int:
    return choice.finish.num_prompt_tokens if choice.finish else choice.num_prompt_tokens


def num_output_tokens(choice: Choice) -> int:
    finish = choice.finish
    if finish is not None and finish.reason in (STOPPED, LENGTH):
        return finish.num_output_tokens
    return choice.num_tokens


def num_reasoning_tokens(choice: Choice) -> int:
    finish = choice.finish
    if finish is not None and finish.reason in (STOPPED, LENGTH):
        return finish.num_reasoning_tokens
    return choice.num_reasoning


def usage_of(job: Job, is_begin: bool = False) -> Usage:
    """Return the usage so far: a prompt counts once, its cached part as the first choice found.

    At the begin of a stream nothing of an answer is told yet.
    """
    choices = [] if is_begin else job.choices
    prompt = sum(max(map(num_prompt_tokens, group)) for group in job.groups)
    output = sum(map(num_output_tokens, choices))
    cached = sum(
        min(choice.finish.num_cached_tokens if choice.finish else 0 for choice in group)
        for group in job.groups
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(map(num_reasoning_tokens, choices))},
    }


def num_taken_in(job: Job) -> int:
    """Return the prompt tokens of what was not refused: a full queue is no load."""
    taken = [
        [choice for choice in group if not (choice.finish and choice.finish.reason == IGNORED)]
        for group in job.groups
    ]
    return sum(max(map(num_prompt_tokens, group), default=0) for group in taken)


class Meter:
    """Watches one job. Times are on the monotonic clock, in seconds."""

    def __init__(self, metrics: GatewayMetrics, job: Job, started_s: float) -> None:
        self._metrics = metrics
        self._job = job
        self._started_s = started_s
        self._first_s: float | None = None
        self._observe_itl = metrics.itl.of(job.model).observe

    def note(self, news: Sequence[Choice], now: float) -> None:
        """Take the time of what just arrived."""
        for choice in news:
            num_tokens = len(choice.token_ids) >> 2
            if num_tokens == choice.num_seen:
                continue
            if choice.num_seen:  # tokens that come together came one by one, as far as one can say
                count = num_tokens - choice.num_seen
                for _ in range(count):
                    self._observe_itl((now - choice.last_arrival_s) / count)
            elif self._first_s is None:
                self._first_s = now
                self._metrics.ttft.labels(self._job.model).observe(now - self._started_s)
            choice.num_seen = num_tokens
            choice.last_arrival_s = now

    def timings(self) -> dict[str, float | int]:
        """Return where the time went: the engine's figures, and the gateway's clock for ttft."""
        ends = [choice.finish.timings for choice in self._job.choices if choice.finish]
        usage = usage_of(self._job)
        decodes = [end.decode_s for end in ends]
        # An engine that did not see all of it, as after a replay, says nothing.
        decode_s = max(decodes) if decodes and all(decodes) else self._spread_s()
        output = usage["completion_tokens"]
        return {
            "queue_ms": ms(max((end.queue_s for end in ends), default=0.0)),
            "prefill_ms": ms(max((end.prefill_s for end in ends), default=0.0)),
            "ttft_ms": ms(self._first_s - self._started_s if self._first_s else 0.0),
            "decode_ms": ms(decode_s),
            "tokens_per_s": round(output / decode_s, 2) if decode_s > 0 else 0.0,
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
            "preemptions": sum(end.num_preemptions for end in ends),
        }

    @property
    def _is_told(self) -> bool:
        """Whether an engine has said how it went: not of who leaves before, say, in its queue."""
        ends = (choice.finish for choice in self._job.choices)
        return any(end is not None and end.HasField("timings") for end in ends)

    def _spread_s(self) -> float:
        if self._first_s is None:
            return 0.0
        return max(choice.last_arrival_s for choice in self._job.choices) - self._first_s

    def end(self, now: float) -> dict[str, Any]:
        """Count the request and return its part of the log line."""
        job, metrics, usage, timings = self._job, self._metrics, usage_of(self._job), self.timings()
        model, reasons = job.model, [reason_of(choice) for choice in job.choices]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        metrics.prompt_tokens.labels(model).inc(num_taken_in(job))
        metrics.cached_tokens.labels(model).inc(cached)
        metrics.output_tokens.labels(model).inc(usage["completion_tokens"])
        for reason in reasons:
            metrics.success.labels(model, reason).inc()
        if all(reason in ("stop", "length") for reason in reasons):
            self._observe_success(usage, timings, now)
        return {
            "finish_reason": reasons[0] if len(reasons) == 1 else reasons,
            "prompt_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "cached_tokens": cached if self._is_told else None,
            "queue_ms": timings["queue_ms"] if self._is_told else None,
            "ttft_ms": timings["ttft_ms"] if self._first_s else None,
            "attempts": job.num_replays + max(choice.num_moves for choice in job.choices) + 1,
        }

    def _observe_success(self, usage: Usage, timings: dict[str, float | int], now: float) -> None:
        metrics, model = self._metrics, self._job.model
        metrics.e2e.labels(model).observe(now - self._started_s)
        metrics.request_prompt.labels(model).observe(usage["prompt_tokens"])
        metrics.request_output.labels(model).observe(usage["completion_tokens"])
        if self._is_told:
            metrics.queue.labels(model).observe(timings["queue_ms"] / 1000)
            metrics.prefill.labels(model).observe(timings["prefill_ms"] / 1000)
        metrics.decode.labels(model).observe(timings["decode_ms"] / 1000)


def reason_of(choice: Choice) -> str:
    """Return the word for how a choice ended; one that was cut off here counts as aborted."""
    return REASONS[choice.finish.reason if choice.finish else ABORTED]


def ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
