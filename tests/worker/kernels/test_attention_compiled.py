"""Paged attention, compiled: the reference's results; no bit from batch, chunks, pages, threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given as any_of
from hypothesis import settings
from hypothesis import strategies as st

from tests.support.operators import backend, batch_of, compute, given, levels
from tests.support.pages import laid
from tests.worker.kernels.test_operators_compiled import floats, kept
from worker.backends.cpu import CpuBackend, StepInputs
from worker.errors import KernelError
from worker.kernels.checks import Floats, to_float32
from worker.kernels.paged_attention import paged_attention_reference, plan_attention
from worker.kv_cache import LayerPages

BOUNDS = {"f32": 2e-6, "bf16": 2e-2}
"""Of results near 1; with bf16 the queries and the weights are rounded."""
Span = tuple[int, int]


class Case(NamedTuple):
    """Sequences over scattered blocks; each computes the tokens `first` .. `stop` of its span."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int = 0
    form: str = "f32"
    spans: tuple[Span, ...] = ((0, 70), (129, 130), (3, 9), (127, 129), (300, 301), (200, 260))

    @property
    def length(self) -> int:
        return max(stop for _, stop in self.spans)

    def history(self, of: int) -> tuple[Floats, Floats, Floats]:
        """q, keys and values of all positions of sequence `of`, whatever is computed of it."""
        rng = np.random.default_rng(of)
        shapes = [(self.length, n, self.head_dim) for n in (self.heads, *[self.kv_heads] * 2)]
        q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        return q, k, v

    def tables(self) -> Any:
        per_sequence = -(-self.length // self.block_size)
        order = np.random.default_rng(7).permutation(per_sequence * len(self.spans) + 5)
        return order[: per_sequence * len(self.spans)].reshape(len(self.spans), -1).astype(np.int32)

    def cache(self, left_over: float = np.nan) -> LayerPages:
        """Keys and values up to each span's end; `left_over` in every other cell."""
        shape = (int(self.tables().max()) + 6, self.block_size, self.kv_heads, self.head_dim)
        pages = [np.full(shape, left_over, np.float32) for _ in range(2)]
        for b, (_, stop) in enumerate(self.spans):
            places = np.arange(stop)
            cells = self.tables()[b][places // self.block_size] * self.block_size
            for page, rows in zip(pages, self.history(b)[1:], strict=True):
                flat = page.reshape(-1, self.kv_heads, self.head_dim)
                flat[cells + places % self.block_size] = rows[:stop]
        return laid(*(kept(self.form, page) for page in pages))

    def run(self, ops: CpuBackend, only: tuple[int, ...] | None = None) -> dict[int, Floats]:
        """Return [tokens, heads * head_dim] of each sequence, all in one batch, or `only` some."""
        return next(self.runs(ops, only))

    def runs(
        self, ops: CpuBackend, only: tuple[int, ...] | None = None
    ) -> Iterator[dict[int, Floats]]:
        """The same again and again."""
        which = range(len(self.spans)) if only is None else only
        spans = [self.spans[b] for b in which]
        parts = [self.history(b)[0][slice(*self.spans[b])] for b in which]
        q = np.concatenate(parts).reshape(-1, self.heads * self.head_dim)
        starts = np.cumsum([0, *(stop - first for first, stop in spans)]).astype(np.int32)
        batch = batch_of(
            len(q),
            positions=np.concatenate([np.arange(*span) for span in spans]).astype(np.int32),
            query_starts=starts,
            block_tables=np.ascontiguousarray(self.tables()[list(which)]),
            block_size=self.block_size,
        )
        cache = self.cache()
        operand = given(q)
        while True:
            out = compute(
                ops, lambda: ops.paged_attention(operand, StepInputs(), cache, self.window), batch
            )
            yield dict(zip(which, np.split(out, starts[1:-1]), strict=True))

    def expected(self, of: int) -> Floats:
        """The reference's, one sequence in pages of 16."""
        q, k, v = self.history(of)
        first, stop = self.spans[of]
        pages = [np.zeros((-(-stop // 16), 16, *k.shape[1:]), np.float32) for _ in range(2)]
        for page, rows in zip(pages, (k, v), strict=True):
            stored = to_float32(kept(self.form, rows[:stop]))
            page.reshape(-1, *k.shape[1:])[:stop] = stored
        plan = plan_attention(
            np.array([0, stop - first], np.int32), np.arange(first, stop, dtype=np.int32),
            np.arange(len(pages[0]), dtype=np.int32)[None], 16, self.window,
        )  # fmt: skip
        return paged_attention_reference(
            np.ascontiguousarray(q[first:stop]), plan, (pages[0], pages[1])
        ).reshape(stop - first, self.heads * self.head_dim)


CASES = [
    Case(4, 2, 8),
    Case(7, 1, 16, window=9),
    Case(2, 2, 64, block_size=1, window=70),
    Case(12, 2, 128, form="bf16"),
    Case(3, 1, 80, window=130, form="bf16"),
    Case(40, 1, 6, block_size=1, form="bf16"),
    Case(2, 1, 256),
    Case(8, 8, 20, window=1),
    # As many keys for each of some threads; and sequences without rows before, between and after.
    Case(16, 8, 32, form="bf16", spans=tuple((start, start + 1) for start in range(200, 208))),
    Case(6, 6, 40, block_size=1, window=77, spans=((9, 9), (129, 130), (0, 3), (140, 141))),
    Case(2, 1, 16, spans=((9, 9), (129, 130), (7, 7), (140, 141), (5, 5))),
    # Long ones, of which threads compute parts: in rounds, beside a short one, three of them.
    Case(6, 2, 8, form="bf16", spans=((9000, 9001),)),
    Case(8, 4, 16, form="bf16", spans=((1100, 1103), (40, 41))),
    Case(4, 2, 8, block_size=1, window=1500, spans=((2100, 2101), (1030, 1031), (2047, 2049))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_references_result_at_every_level(case: Case) -> None:
    results = [case.run(backend(level)) for level in levels()]
    for b in range(len(case.spans)):
        np.testing.assert_allclose(results[0][b], case.expected(b), rtol=0, atol=BOUNDS[case.form])
        for result in results[1:]:
            assert np.array_equal(result[b], results[0][b])


@pytest.mark.parametrize("case", CASES[-6:], ids=str)
def test_nor_from_how_many_key_heads_are_computed_side_by_side(case: Case) -> None:
    """As many as leave each thread as much to do."""
    one, two, three = (case.run(backend(num_threads=n)) for n in (1, 2, 3))
    for b in range(len(case.spans)):
        assert np.array_equal(one[b], two[b])
        assert np.array_equal(one[b], three[b])


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_no_bit_comes_from_anything_but_the_row(case: Case) -> None:
    whole = case.run(backend())
    pages = case._replace(block_size=17 - case.block_size).run(backend())
    for threads in (1, 3):
        for b in range(len(case.spans)):
            alone = case.run(backend(num_threads=threads), (b,))
            assert np.array_equal(alone[b], whole[b])
            assert np.array_equal(pages[b], whole[b])
    cut = case._replace(spans=((0, 40), (40, 41), (41, 70)))
    parts = {span: cut._replace(spans=(span, (0, 301))).run(backend(), (0,)) for span in cut.spans}
    joined = np.concatenate([parts[span][0] for span in cut.spans])
    assert np.array_equal(joined, whole[0])


@settings(max_examples=25, deadline=None)
@any_of(
    group=st.integers(1, 9), kv_heads=st.integers(1, 3), half=st.integers(1, 40),
    block_size=st.sampled_from([1, 16]), window=st.integers(0, 200),
    form=st.sampled_from(["f32", "bf16"]),
    spans=st.lists(st.tuples(st.integers(0, 260), st.integers(1, 50)), min_size=1, max_size=4),
)  # fmt: skip
def test_any_shape(
    group: int, kv_heads: int, half: int, block_size: int, window: int, form: str,
    spans: list[Span],
) -> None:  # fmt: skip
    ends = tuple((first, first + count) for first, count in spans)
    case = Case(group * kv_heads, kv_heads, 2 * half, block_size, window, form, ends)
    got, low = case.run(backend()), case.run(backend(levels()[0]))
    for b in range(len(ends)):
        np.testing.assert_allclose(got[b], case.expected(b), rtol=0, atol=BOUNDS[form])
        assert np.array_equal(got[b], low[b])


class Sharp(Case):
    """Scores that lie hundreds apart: nearly all keys weigh nothing."""

    def history(self, of: int) -> tuple[Floats, Floats, Floats]:
        q, k, v = super().history(of)
        return 60 * q, k, v


@pytest.mark.parametrize("form", ["f32", "bf16"])
@pytest.mark.parametrize("block_size", [1, 16])
def test_keys_far_below_the_likeliest_weigh_nothing(form: str, block_size: int) -> None:
    """Powers of e that float32 does not have, within a split and from split to split."""
    case = Sharp(4, 2, 8, block_size, form=form, spans=((0, 40), (299, 301)))
    first, *others = (case.run(backend(level)) for level in levels())
    for b in range(len(case.spans)):
        if form == "f32":  # of bf16 the queries are rounded, and the likeliest key is another
            np.testing.assert_allclose(first[b], case.expected(b), rtol=0, atol=2e-4)
        assert np.abs(first[b]).max() < 5  # as the values
        for other in others:
            assert np.array_equal(other[b], first[b])


def test_a_long_sequence_is_shared_by_the_threads() -> None:
    """Its splits go round the scratch more than once."""
    case = Case(2, 1, 16, spans=((9000, 9001), (0, 3)))
    one, three = (case.run(backend(num_threads=n)) for n in (1, 3))
    for b in (0, 1):
        assert np.array_equal(one[b], three[b])
        np.testing.assert_allclose(one[b], case.expected(b), rtol=0, atol=2e-6)


MANY_SHORT = Case(4, 4, 8, spans=tuple((n, n + 1) for n in range(10, 110)))
"""Of one split each, so that what another thread took looks like what was next."""


@pytest.mark.parametrize("case", [MANY_SHORT, CASES[12]._replace(block_size=1)], ids=str)
@pytest.mark.parametrize("threads", [3, 4, 5, 300])
def test_what_one_thread_takes_from_another_is_computed_like_its_own(
    case: Case, threads: int
) -> None:
    """More threads than work or cores: what a thread had in mind to do next is often gone."""
    expected = case.run(backend(num_threads=1))
    for got in islice(case.runs(backend(num_threads=threads)), 60):
        for b in range(len(case.spans)):
            assert np.array_equal(got[b], expected[b])


def test_what_it_refuses() -> None:
    ops, cache = backend(), LayerPages(floats(1, 16, 1, 258), floats(1, 16, 1, 258))
    with pytest.raises(KernelError, match="head_dim is 258, allowed: at most 256, and even"):
        operand = given(floats(1, 258))
        compute(ops, lambda: ops.paged_attention(operand, StepInputs(), cache), batch_of(1))
    with pytest.raises(KernelError, match="q has width 100"):
        operand = given(floats(1, 100))
        compute(ops, lambda: ops.paged_attention(operand, StepInputs(), cache), batch_of(1))
    cache = LayerPages(floats(1, 8, 1, 16), floats(1, 8, 1, 16))
    with pytest.raises(KernelError, match="block_size is 8, allowed: 1 or 16"):
        operand = given(floats(1, 16))
        compute(ops, lambda: ops.paged_attention(operand, StepInputs(), cache), batch_of(1))
