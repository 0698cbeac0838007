"""ThinkingBudget: thoughts that have taken as many tokens as they may are ended by force."""

from __future__ import annotations

import numpy as np

from protos import common_pb2
from worker.kernels.checks import Ints
from worker.noise import Ids
from worker.sampling.candidates import column


class ThinkingBudget:
    """Where one output's thoughts stand: a function of the output ids alone, which only grow."""

    def __init__(self, asked: common_pb2.ThinkingBudget) -> None:
        self._max_tokens = asked.max_tokens
        self._begin = column(asked.begin)
        self._end = column(asked.end)
        self._heads = np.union1d(column(asked.end_heads), self._end[:1])
        self._has_ended = False

    @classmethod
    def create(cls, params: common_pb2.SamplingParams) -> ThinkingBudget | None:
        return cls(params.thinking) if params.thinking.end else None

    def forced(self, output_ids: Ints) -> Ids | None:
        """Return the one id that must come next; None while any may, and once thoughts are over.

        An end tag of several ids that the model has begun by itself is brought to its end.
        """
        thoughts = output_ids[len(self._begin) :]
        if self._has_ended or len(thoughts) < self._max_tokens:
            return None
        begin = sure(self._begin)
        is_begun = len(output_ids) >= len(self._begin)
        if not (is_begun and np.array_equal(output_ids[: len(begin)], begin)):
            return None  # it answers without a thought
        if self._is_in(thoughts):
            self._has_ended = True
            return None
        most = min(len(thoughts), len(self._end) - 1)
        begun = next(n for n in range(most, -1, -1) if self._is(tail(thoughts, n), self._end[:n]))
        return self._end[begun : begun + 1]

    def _is_in(self, thoughts: Ints) -> bool:
        """Whether the end tag has come, wherever."""
        end = sure(self._end)
        ended = thoughts[: len(thoughts) - (len(self._end) - len(end))]
        last = np.flatnonzero(ended == end[-1])
        return any(self._is(ended[max(at + 1 - len(end), 0) : at + 1], end) for at in last)

    def _is(self, ids: Ints, tag: Ids) -> bool:
        """Whether `ids` are the first ones of the end tag, perhaps with text before it."""
        return np.array_equal(ids[1:], tag[1:]) and bool(np.isin(ids[:1], self._heads).all())


def sure(tag: Ids) -> Ids:
    """Return the ids by which a tag is known: where it is spelled, all but the last.

    Newlines behind the tag may be in one token with its end, as in Qwen2.5's `>\\n\\n`.
    """
    return tag[:-1] if len(tag) > 2 else tag


def tail(ids: Ints, count: int) -> Ints:
    return ids[len(ids) - count :]
