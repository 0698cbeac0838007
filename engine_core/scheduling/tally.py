"""What the scheduler counts: steps, tokens, preemptions, and how fast requests drain."""

from __future__ import annotations

from bisect import bisect_left

from protos.worker import ITERATION_BUCKETS

_SMOOTHING = 0.1
_LONGEST_RETRY_S = 60.0


class Tally:
    """Cumulative counters since the scheduler started."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self.num_found = 0
        self.num_not_found = 0
        self.num_host_hits = 0
        self.num_host_losses = 0
        self.num_guesses = 0
        self.num_right_guesses = 0
        self.iteration_tokens = [0] * (len(ITERATION_BUCKETS) + 1)
        self._last_end: float | None = None
        self._interval_s = 0.0

    def step(self, num_tokens: int) -> None:
        """Count a step of `num_tokens` tokens."""
        self.num_steps += 1
        self.iteration_tokens[bisect_left(ITERATION_BUCKETS, num_tokens)] += 1

    def looked_up(self, num_tokens: int, num_found: int) -> None:
        """Count a sequence of `num_tokens` tokens that started with `num_found` of them cached."""
        self.num_prefix_queries += num_tokens
        self.num_prefix_hits += num_found
        if num_found:
            self.num_found += 1
        else:
            self.num_not_found += 1

    def fetched(self, num_good: int, num_lost: int) -> None:
        """Count tokens that came back from host memory, and those that should have."""
        self.num_host_hits += num_good
        self.num_host_losses += num_lost

    def awoke(self, now: float) -> None:
        """Somebody is there again: the time in which nobody was drained no queue."""
        if self._last_end is not None:
            self._last_end = max(self._last_end, now)

    def finished(self, now: float) -> None:
        """Note an end; the mean time between two ends is the rate at which the queue drains."""
        if self._last_end is not None:
            interval_s = now - self._last_end
            weight = _SMOOTHING if self._interval_s else 1.0
            self._interval_s += weight * (interval_s - self._interval_s)
        self._last_end = now

    def wait_s(self, place: int) -> float | None:
        """Return in how many seconds so many have ended as they did lately; None = not known."""
        return self._interval_s * place if self._last_end is not None else None

    def retry_after_s(self, num_waiting: int) -> float:
        """Return in how many seconds a queue of `num_waiting` has drained, 1 to 60."""
        return min(max(self._interval_s * num_waiting, 1.0), _LONGEST_RETRY_S)
