"""Stages one by one where no reference reaches: masks, DRY at length, XTC's coin, odd orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from protos.limits import STAGES as NAMES
from tests.support.fake_engine import column
from tests.worker.plans import columns
from tests.worker.sampling.rows import row, some_logits
from worker.errors import NothingLeft, RowError
from worker.rows import Row
from worker.sampler import Sampler
from worker.sampling.candidates import Candidates, History
from worker.sampling.chain import STAGES
from worker.sampling.repetition import Breakers, Dry, breakers_of
from worker.sampling.truncation import TopP, TypicalP

NO_HISTORY = History(np.zeros(0, np.int32), np.zeros(0, np.int32))


def left(row: Row, seed: int = 0, vocab_size: int = 24) -> Candidates:
    logits = some_logits(1, vocab_size, seed)[0]
    return (
        Sampler(vocab_size).survivors(logits, row.draw, row.history, float(logits.max())).possible()
    )


def test_the_doors_and_the_worker_know_the_same_stages_in_the_same_order() -> None:
    assert list(STAGES) == list(NAMES)


@pytest.mark.parametrize("samplers", [["top_k", "nucleus"], ["top_k", "min_p", "top_k"]])
def test_a_chain_that_is_none_is_refused(samplers: list[str]) -> None:
    with pytest.raises(RowError, match="samplers"):
        row(samplers=samplers)


def test_a_stage_that_is_not_named_does_not_act() -> None:
    given: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "min_p": 0.5}
    assert [name for name, _ in row(**given, samplers=["top_k"]).draw.stages] == ["top_k"]
    assert len(row(**given).draw.stages) == 3


def test_the_order_is_the_requests() -> None:
    given: dict[str, Any] = {"temperature": 2.0, "top_p": 0.6}
    first, second = (
        left(row(**given, samplers=order))
        for order in (["temperature", "top_p"], ["top_p", "temperature"])
    )
    assert len(first.ids) > len(second.ids)


@pytest.mark.parametrize("order", [*itertools.permutations(["penalties", "top_k", "logit_bias"])])
def test_stages_by_id_work_on_what_is_left(order: tuple[str, ...]) -> None:
    """A penalty or bias after a truncation still finds its token, or does not miss it."""
    logits = np.array([5, 4, 3, 2, 1, 0], np.float32)
    bias = [{"token_id": 0, "bias": -1.5}, {"token_id": 5, "bias": 9.0}]
    one = row(
        (1,), 6, temperature=1.0, top_k=2, repetition_penalty=2.0, logit_bias=bias, samplers=order
    )
    got = Sampler(6).survivors(logits, one.draw, one.history, float(logits.max()))
    by_hand = dict(enumerate(logits.tolist()))
    for name in order:
        if name == "penalties":
            by_hand |= {i: v / 2 for i, v in by_hand.items() if i == 1}
        elif name == "logit_bias":
            by_hand = {i: v + {0: -1.5, 5: 9.0}.get(i, 0) for i, v in by_hand.items()}
        else:
            kept = sorted(by_hand, key=lambda i: -by_hand[i])[:2]
            by_hand = {i: by_hand[i] for i in sorted(kept)}
    assert dict(zip(got.ids.tolist(), got.logits.tolist(), strict=True)) == by_hand


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def test_only_allowed_ids_survive() -> None:
    assert left(row(allowed_token_ids=columns([7, 3, 3]), temperature=1.0)).ids.tolist() == [3, 7]
    with pytest.raises(RowError, match="vocabulary is 24"):
        row(allowed_token_ids=columns([24]))


def test_a_bad_word_is_broken_at_its_last_token() -> None:
    words = [columns([5]), columns([8, 9]), columns([8, 9, 10])]

    def forbidden(prompt: list[int], *output: int) -> set[int]:
        known = (*prompt, *output)
        one = row(known, bad_words=words, temperature=1.0, num_prompt_tokens=len(prompt))
        return set(range(24)) - set(left(one).ids.tolist())

    assert forbidden([1]) == {5}
    assert forbidden([1], 8) == {5, 9}
    assert forbidden([1], 8, 9) == {5, 10}
    assert forbidden([1, 8]) == {5}, "the prompt is not the output"
    assert forbidden([1], 9, 8) == {5, 9}


def test_greedy_minds_masks_and_penalties_and_nothing_else() -> None:
    logits = np.array([[0, 9, 8, 7, 6]], np.float32)

    def drawn(**fields: Any) -> int:
        one = row((0, 1), 5, temperature=0.0, num_prompt_tokens=1, **fields)
        return Sampler(5).sample(logits, [one])[0].token_id

    assert drawn() == 1
    assert drawn(bad_words=[columns([1])]) == 2
    assert drawn(allowed_token_ids=columns([3, 4])) == 3
    assert drawn(frequency_penalty=1.5) == 2
    assert drawn(xtc={"probability": 1.0, "threshold": 0.0}) == 1


def test_masks_that_leave_nothing_are_a_fault_that_names_the_stage() -> None:
    logits = some_logits(2, 4)
    bad = row((1,), 4, allowed_token_ids=columns([2]), bad_words=[columns([2])])
    drawn = Sampler(4).sample(logits, [bad, row((1,), 4)])
    assert str(drawn[0].error) == "every token is forbidden, the last ones by bad_words"
    assert isinstance(drawn[0].error, NothingLeft) and drawn[0].error.code == "no_token_left"
    assert drawn[1].error is None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-300},
        {"temperature": 1e-12, "min_p": 1.0, "top_p": 0.0, "typical_p": 0.0},
        {"temperature": 2.0, "dynamic_temperature": {"range": 2.0, "exponent": 10.0}},
        {"top_n_sigma": 1e-9, "xtc": {"probability": 1.0, "threshold": 0.0}},
        {"min_tokens": 9, "stop_token_ids": tuple(range(23)), "typical_p": 0.5, "top_n_sigma": 1.0},
        {"allowed_token_ids": columns([4]), "dynamic_temperature": {"range": 1.0, "exponent": 1.0}},
    ],
)
def test_at_the_edge_of_the_bounds_one_token_is_left(fields: dict[str, Any]) -> None:
    drawn = Sampler(24).sample(some_logits(1), [row(**{"temperature": 1.0} | fields)])[0]
    assert drawn.error is None and 0 <= drawn.token_id < 24


ODD = (0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 0.5)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_comes_through_the_doors_stays_with_its_row(seed: int) -> None:
    """Parameters that no door lets pass give a token or a fault, never an exception."""
    pick = np.random.default_rng(seed).choice
    fields: dict[str, Any] = {
        name: pick(ODD)
        for name in ("temperature", "top_p", "min_p", "typical_p", "top_n_sigma",
                     "repetition_penalty", "presence_penalty", "frequency_penalty")
        if pick(2)
    }  # fmt: skip
    if pick(2):
        fields["dry"] = {"multiplier": pick(ODD), "base": pick(ODD), "allowed_length": pick(3)}
        fields["xtc"] = {"probability": pick(ODD), "threshold": pick(ODD)}
        fields["dynamic_temperature"] = {"range": pick(ODD), "exponent": pick(ODD)}
    fields["allowed_token_ids"] = pick([b"", b"\1\0\0\0", b"\1\0\0"], p=[0.8, 0.1, 0.1])
    fields["logit_bias"] = [{"token_id": 1, "bias": pick(ODD)}]
    try:
        one = row((1, 2, 1, 2), **fields)
    except RowError:
        return
    with np.errstate(all="ignore"):
        drawn = Sampler(24).sample(some_logits(1), [one])[0]
    assert drawn.error or 0 <= drawn.token_id < 24


# ── DRY and XTC ──────────────────────────────────────────────────────────────────────────────


def naive_dry(tokens: list[int], base: float, allowed: int) -> dict[int, float]:
    """Every earlier place, every length: the definition without breakers."""
    longest: dict[int, int] = {}
    for place in range(1, len(tokens)):
        length = 0
        while length < place and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= allowed:
            longest[tokens[place]] = max(length, longest.get(tokens[place], 0))
    return {token_id: base ** (length - allowed) for token_id, length in longest.items()}


@pytest.mark.parametrize("seed", range(40))
def test_dry_is_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, rng.integers(1, 60)).tolist()
    stage = Dry(1.0, 1.5, 2, None, Breakers(()))
    history = History(np.array(tokens[:5], np.int32), np.array(tokens[5:], np.int32))
    got = stage(Candidates(np.arange(3), np.zeros(3)), history).logits
    wanted = naive_dry(tokens, 1.5, 2)
    np.testing.assert_allclose(-got, [wanted.get(i, 0) for i in range(3)], rtol=1e-12)


def test_dry_of_one_endless_repetition_stays_finite() -> None:
    history = History(np.full(5000, 7, np.int32), np.zeros(0, np.int32))
    got = Dry(100.0, 1.75, 2, None, Breakers(()))(
        Candidates(np.arange(9), np.zeros(9)), history
    ).logits
    assert np.isfinite(got).all() and got[7] < -1e30


def since_the_last(breakers: list[list[int]], tokens: list[int]) -> int:
    """The breaker that begins last; of several that begin there, the longest."""
    for start in range(len(tokens) - 1, -1, -1):
        sizes = [len(one) for one in breakers if one and tokens[start : start + len(one)] == one]
        if sizes:
            return len(tokens) - start - max(sizes)
    return len(tokens)


@pytest.mark.parametrize("seed", range(60))
def test_the_last_breaker_is_found_whatever_they_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    breakers = [rng.integers(0, 4, rng.integers(0, 5)).tolist() for _ in range(rng.integers(0, 4))]
    found = Breakers(map(column, breakers))
    assert found.single == {one[0] for one in breakers if len(one) == 1}
    for _ in range(20):
        tokens = rng.integers(0, 4, rng.integers(0, 12)).tolist()
        assert found.tokens_since(tokens[::-1]) == since_the_last(breakers, tokens)


def test_choices_share_their_breakers() -> None:
    """Each choice of a request built the same automaton anew, and all rows waited."""
    packed = [[column([7, number]) for number in range(at, at + 9)] for at in (0, 0, 100)]
    dry = [{"multiplier": 1.0, "base": 1.5, "breakers": breakers} for breakers in packed]
    first, second, other = (dict(row(dry=one).draw.stages)["dry"] for one in dry)
    assert isinstance(first, Dry) and isinstance(second, Dry) and isinstance(other, Dry)
    assert first.breakers is second.breakers and first.breakers is not other.breakers
    assert breakers_of.cache_info().maxsize


def test_xtc_acts_as_often_as_asked_and_on_the_same_tokens_again() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    xtc = {"probability": 0.3, "threshold": 0.1}

    def counts(seed: int) -> int:
        one = row((1,), 4, temperature=1.0, xtc=xtc, seed=seed)
        history = one.history._replace(key=Sampler.key(one))
        return len(Sampler(4).survivors(logits[0], one.draw, history, float(logits[0].max())).ids)

    seen = [counts(seed) for seed in range(2000)]
    assert set(seen) == {2, 4}
    assert abs(seen.count(2) - 600) < 4 * (2000 * 0.3 * 0.7) ** 0.5
    assert seen[:50] == [counts(seed) for seed in range(50)]


# ── large vocabularies ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_a_mass_beyond_the_first_look_is_the_same_set(p: float) -> None:
    """A flat vocabulary needs more than the first look among the likeliest."""
    logits = some_logits(1, 5000, seed=4)[0].astype(np.float64) * 0.1
    shares = np.exp(logits) / np.exp(logits).sum()
    surprise = np.abs(-np.log(shares) + (shares * np.log(shares)).sum())
    for stage, keys in ((TopP(p), -logits), (TypicalP(p), surprise)):
        order = np.argsort(keys, kind="stable")
        count = int(np.searchsorted(np.cumsum(shares[order]), p)) + 1
        got = stage(Candidates(np.arange(5000), logits), NO_HISTORY)
        assert got.ids.tolist() == sorted(order[:count].tolist())


CHAINS: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.7, "top_k": 900},
    {"temperature": 0.3, "min_p": 0.01, "top_p": 0.99},
    {"top_k": 1, "samplers": ["top_k"]},
    {"top_k": 50, "min_p": 0.3, "temperature": 2.0, "samplers": ["top_k", "min_p", "temperature"]},
    {"temperature": 2.0, "min_p": 1e-9, "top_k": 5},
    {"temperature": 0.6, "top_p": 0.9},
    {"top_p": 0.3, "top_k": 4, "temperature": 0.9, "samplers": ["top_p", "top_k", "temperature"]},
    {"temperature": 2.0, "top_p": 0.95},
    {"top_p": 0.0},
    {"top_p": 0.9, "repetition_penalty": 1.3, "temperature": 0.7},
    {"top_p": 0.9, "repetition_penalty": 0.5, "frequency_penalty": -1.5, "temperature": 0.7},
    {"top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "temperature": 0.7},
    {"min_p": 0.1, "presence_penalty": 2.0, "logit_bias": [{"token_id": 9, "bias": 20.0}]},
    {"min_p": 0.1, "bad_words": [columns([i]) for i in range(0, 20_000, 3)]},
    {"top_k": 3, "dry": {"multiplier": 9.0, "base": 2.0, "allowed_length": 1}},
    {"top_p": 0.5, "logit_bias": [{"token_id": i, "bias": -50.0} for i in range(400)]},
]
LIKELY = [3, 6, 9, 12, 700, 3000]


@pytest.mark.parametrize("fields", CHAINS)
def test_a_shortlist_changes_no_bit(fields: dict[str, Any]) -> None:
    sampler = Sampler(20_000)
    for seed in range(5):
        logits = some_logits(1, 20_000, seed)[0]
        logits[::3] = np.round(logits[::3], 1)  # many that are equal
        logits[LIKELY] += 9
        history = [5, *LIKELY, *LIKELY[:3], *range(0, 5000, 7), *LIKELY[:2]]
        one = row(history, 20_000, num_prompt_tokens=4, **{"temperature": 1.0} | fields)
        assert one.draw.shortlist is not None
        quick = sampler.survivors(logits, one.draw, one.history, float(logits.max()))
        one.draw.shortlist = None
        slow = sampler.survivors(logits, one.draw, one.history, float(logits.max()))
        assert np.array_equal(quick.ids, slow.ids) and np.array_equal(quick.logits, slow.logits)


def test_a_nucleus_bears_large_logits_at_the_lowest_temperature() -> None:
    """A touched token's logit lies between two float32; the gap over the temperature is vast."""
    logits = some_logits(1, 640)[0]
    one = row([7], 640, temperature=1e-6, top_p=0.5, repetition_penalty=0.01)
    assert one.draw.shortlist is not None
    for step in range(8):  # the penalty multiplies it by 100
        logits[7] = 401.3 - step
        assert Sampler(640).sample(logits[np.newaxis], [one])[0].error is None


def test_xtc_keeps_to_what_is_possible() -> None:
    """At a threshold of 0 a forbidden token would be the least likely of the likely ones."""
    one = row((1,), 4, temperature=1.0, xtc={"probability": 1.0, "threshold": 0.0})
    logits = np.array([3.0, -np.inf, 2.0, 1.0], np.float32)
    history = one.history._replace(key=Sampler.key(one))
    assert Sampler(4).survivors(logits, one.draw, history, 3.0).ids.tolist() == [3]
