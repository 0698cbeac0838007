"""Paged attention: out[t, h] = softmax(q[t, h] · K / sqrt(D)) · V over the token's own sequence.

Keys are taken SPLIT at a time, at fixed absolute positions, and combined in that order with a
running maximum and sum. Each token is its own matrix product per split and key head, of one shape,
[heads per key head, D] x [D, SPLIT], in prefill as in decode: so its bits depend on neither the
batch, nor the cut of the prompt into chunks, nor the blocks.

Work is cut into segments. Decoding sequences share segments: split j of all that reach it, longest
first, each with its own blocks. The tokens of one prompt share the blocks of a segment. With a
window a token takes part in the splits that its window touches, and in no other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from worker.kernels.checks import F32, Floats, Ints, require

SPLIT = 64
"""Keys per split; a multiple of the block size."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


class Segment(NamedTuple):
    """One split of some tokens, `start` up to `stop` in the plan's order."""

    start: int
    stop: int
    blocks: Ints
    """[tokens or 1, SPLIT / block_size]."""
    hidden: Mask | None
    """[tokens, 1, 1, SPLIT]: keys that a token does not see; None when it sees all."""
    stale: Mask | None
    """[len(blocks), SPLIT]: cells past the sequence's end. What a former owner left there may be
    nan, and 0 * nan is not 0."""


class AttentionPlan(NamedTuple):
    """The segments of one step, made once and used by every layer."""

    order: Indices
    """Which token of the step stands at each place."""
    segments: list[Segment]


def plan_attention(
    query_starts: Ints, positions: Ints, block_tables: Ints, block_size: int, window: int = 0
) -> AttentionPlan:
    """Cut a step into segments.

    query_starts: int32 [B + 1], sequence b owns tokens query_starts[b] .. query_starts[b + 1];
    positions: int32 [T], consecutive within a sequence; block_tables: int32 [B, max_blocks], of
    which entries past a sequence's last block may hold any valid id; window: how many positions a
    token sees, its own included, 0 = all.
    """
    counts = np.diff(query_starts)
    tables = _padded(block_tables, SPLIT // block_size)
    decodes = np.flatnonzero(counts == 1)
    tokens = query_starts[decodes]
    longest_first = np.argsort(-positions[tokens], kind="stable")
    decodes, tokens = decodes[longest_first], tokens[longest_first]
    order = [tokens.astype(np.int64)]
    segments = _segments(0, positions[tokens], tables[decodes], window)
    place = len(tokens)
    for b in np.flatnonzero(counts > 1):
        span = np.arange(query_starts[b], query_starts[b + 1])
        order.append(span)
        segments += _segments(place, positions[span], tables[b : b + 1], window)
        place += len(span)
    return AttentionPlan(np.concatenate(order), segments)


def _padded(block_tables: Ints, per_split: int) -> Ints:
    """Return the tables as [B, splits, per_split], filled up with block 0."""
    missing = -block_tables.shape[1] % per_split
    padded = np.pad(block_tables, ((0, 0), (0, missing)))
    return padded.reshape(len(padded), -1, per_split)


def _segments(place: int, positions: Ints, tables: Ints, window: int) -> list[Segment]:
    """Cut tokens of which the first stands at `place`: int32 [n], falling with a table each, or
    rising with one for all; tables: int32 [n or 1, splits, per_split]."""
    segments = []
    for split in range(int(positions.max(initial=-1)) // SPLIT + 1):
        part = _touching(positions, split, window)
        own = part if len(tables) == len(positions) else slice(None)
        blocks = np.ascontiguousarray(tables[own, split])
        segments.append(_segment(place, part, positions, blocks, split, window))
    return [segment for segment in segments if segment.start < segment.stop]


def _touching(positions: Ints, split: int, window: int) -> slice:
    """Return which of the sorted `positions` see any key of the split."""
    seeing = positions >= split * SPLIT
    if window:
        seeing &= positions - window < (split + 1) * SPLIT - 1
    places = np.flatnonzero(seeing)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _segment(
    place: int, part: slice, positions: Ints, blocks: Ints, split: int, window: int
) -> Segment:
    """The tokens `part`, of which the first stands at `place`; the last one that shares blocks ends
    its sequence."""
    start, stop = place + part.start, place + part.stop
    keys = np.arange(split * SPLIT, (split + 1) * SPLIT)
    own = positions[part, None]
    later: Mask = keys > own
    hidden = later | (keys <= own - window) if window else later
    stale = later[-len(blocks) :]
    return Segment(
        start,
        stop,
        blocks,
        hidden[:, None, None, :] if hidden.any() else None,
        stale if stale.any() else None,
    )


def paged_attention_reference(
    q: Floats, plan: AttentionPlan, cache: tuple[Floats, Floats]
) -> Floats:
    """q: float32 [T, num_heads, D]; cache: float32 [num_blocks, block_size, kv_heads, D] twice.

    Returns float32 [T, num_heads, D].
    """
    num_tokens, num_heads, head_dim = q.shape
    require("paged_attention", "q", q, F32, (len(plan.order), None, None))
    keys, values = cache
    for name, pages in (("keys", keys), ("values", values)):
        require("paged_attention", name, pages, F32, (None, None, keys.shape[2], head_dim))
    grouped = (num_tokens, keys.shape[2], num_heads // keys.shape[2], head_dim)
    ordered = q[plan.order].reshape(grouped) * np.float32(head_dim**-0.5)
    running = _Running(grouped)
    for segment in plan.segments:
        part = slice(segment.start, segment.stop)
        shape = (len(segment.blocks), SPLIT, *keys.shape[2:])
        scores = ordered[part] @ keys[segment.blocks].reshape(shape).transpose(0, 2, 3, 1)
        seen = values[segment.blocks].reshape(shape)
        if segment.stale is not None:
            seen[segment.stale] = 0
        if segment.hidden is not None and not np.isfinite(seen).all():
            seen = _seen_by_each(seen, segment.hidden)
        running.add(part, scores, seen.transpose(0, 2, 1, 3), segment.hidden)
    out = np.empty_like(q)
    out[plan.order] = running.result().reshape(q.shape)
    return out


def _seen_by_each(values: Floats, hidden: Mask) -> Floats:
    """Return `values` [1 or n, SPLIT, kv_heads, D] for each of n tokens, zero where it is hidden.

    A later token's values may be nan (a guess that overflows), and 0 * nan is not 0.
    """
    hides = hidden.reshape(len(hidden), SPLIT, 1, 1)
    each: Floats = np.where(hides, np.float32(0), values)
    return each


class _Running:
    """Softmax-weighted sums so far: maximum, sum and weighted values per token and head."""

    def __init__(self, grouped: tuple[int, ...]) -> None:
        self._maximum = np.full((*grouped[:-1], 1), -np.inf, np.float32)
        self._sum = np.zeros((*grouped[:-1], 1), np.float32)
        self._values = np.zeros(grouped, np.float32)

    def add(self, part: slice, scores: Floats, values: Floats, hidden: Mask | None) -> None:
        """scores: [n, kv_heads, group, SPLIT], spent; values: [n or 1, kv_heads, SPLIT, D]."""
        if hidden is not None:
            np.copyto(scores, np.float32(-np.inf), where=hidden)
        before = self._maximum[part]
        maximum = np.maximum(before, scores.max(axis=-1, keepdims=True))
        scores -= maximum
        np.exp(scores, out=scores)
        fade = np.exp(before - maximum)
        self._maximum[part] = maximum
        self._sum[part] = self._sum[part] * fade + scores.sum(axis=-1, keepdims=True)
        self._values[part] = self._values[part] * fade + scores @ values

    def result(self) -> Floats:
        out: Floats = self._values / self._sum
        return out
