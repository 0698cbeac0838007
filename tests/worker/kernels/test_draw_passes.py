"""Passes over a vocabulary: what they find holds what is drawn, at every level, and is little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.operators import levels, library
from tests.worker.plans import columns
from tests.worker.sampling.rows import row
from worker.errors import KernelError
from worker.kernels.checks import Floats
from worker.kernels.draw_passes import ROOM, DrawPasses
from worker.kernels.library import Level
from worker.logprobs import with_alternatives
from worker.noise import gumbel, stream
from worker.sampler import Sampler


def bell(size: int, spread: float, seed: int) -> Floats:
    logits: Floats = (spread * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    logits[:: max(2, size // 7)] = -np.inf
    return logits


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("size", [1, 255, 257, 9_001])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 300.0])
def test_the_winner_is_among_them(level: Level, size: int, spread: float) -> None:
    passes = DrawPasses(library(), level)
    for seed, temperature in enumerate((1.0, 0.3, 2.0, 1e-6, 0.05)):
        logits = bell(size, spread, seed)
        logits[size // 2] = 1.5
        key = stream(seed, 1, size)
        places = passes.contenders(logits, int(logits.argmax()), temperature, key)
        if places is None:
            assert size > ROOM and spread * temperature < 1
            continue
        keys = logits.astype(np.float64) / temperature + gumbel(key, np.arange(size))
        assert int(keys.argmax()) in places
        assert np.all(np.diff(places) > 0)


def test_levels_find_the_same_ones() -> None:
    logits = bell(5000, 2.0, 5)
    found = [
        DrawPasses(library(), level).contenders(logits, int(logits.argmax()), 1.0, 99)
        for level in levels()
    ]
    for one in found:
        assert one is not None and found[0] is not None
        assert np.array_equal(one, found[0]) and 0 < len(one) < 200


def test_more_than_there_is_room_for_is_told() -> None:
    logits = np.full(30_000, -50, np.float32)
    logits[20_000:] = 0  # none of those the bar is made of
    logits[29_999] = -1
    found = DrawPasses(library(), levels()[-1]).contenders(logits, 0, 1.0, 3)
    assert found is None


@pytest.mark.parametrize("fields", [{"temperature": 1.0}, {"temperature": 0.6}, {}])
def test_a_draw_is_the_same_with_and_without(fields: dict[str, Any]) -> None:
    quick = Sampler(20_000, DrawPasses(library(), levels()[-1]))
    slow = Sampler(20_000)
    params = {"temperature": None, **fields}
    rows = [row(vocab_size=20_000, seed=seed, logprobs=1, **params) for seed in range(30)]
    logits = np.stack([bell(20_000, 0.2 + seed / 10, seed) for seed in range(30)])
    ours, theirs = quick.sample(logits, rows), slow.sample(logits, rows)
    assert [one.token_id for one in ours] == [one.token_id for one in theirs]
    assert rows[0].draw.free_temperature is not None


def test_the_highest_noise_draws_nothing_that_is_forbidden() -> None:
    """It was infinite: this seed drew token 3 whatever its logit, and failed with the passes."""
    logits = np.array([[9, 1, 2, -40, 0, 0, 0, 0]], np.float32)
    masks: list[dict[str, Any]] = [{}, {"bad_words": [columns([3])]}]
    for fields in masks:
        one = row((1, 2), 8, seed=13432327527288150470, temperature=1.0, **fields)
        for passes in (None, *[DrawPasses(library(), level) for level in levels()]):
            assert Sampler(8, passes).sample(logits, [one])[0].token_id == 0


@pytest.mark.parametrize(("highest", "temperature"), [(3e38, 0.7), (-3e38, 0.7), (1e33, 1e-6)])
def test_logits_as_large_as_float32_has_them_are_drawn_from(
    highest: float, temperature: float
) -> None:
    """Over the temperature they were infinite, nobody contended, and the draw failed."""
    logits = np.full((1, 600), -3.2e38, np.float32)
    logits[0, 77] = highest
    one = row(vocab_size=600, temperature=temperature)
    for level in levels():
        drawn = Sampler(600, DrawPasses(library(), level)).sample(logits, [one])[0]
        assert (drawn.token_id, drawn.error) == (77, None)


def test_wrong_logits_are_refused() -> None:
    passes = DrawPasses(library(), levels()[0])
    with pytest.raises(KernelError, match="contenders: logits has dtype float64"):
        passes.contenders(np.zeros(4), 0, 1.0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 0.2, 2.0])
@pytest.mark.parametrize("size", [1, 17, 9_001])
def test_the_mass_is_right_and_the_same_at_every_level(size: int, temperature: float) -> None:
    logits = bell(size, 3.0, size)
    logits[size // 3] = 1.0  # what equals the bound reaches it
    logits[size // 2] = 4.0
    highest = float(logits.max()) + 0.25
    exact = np.exp((logits.astype(np.float64) - highest) / temperature).sum()
    seen = [
        DrawPasses(library(), level).nucleus(logits, highest, temperature, 1.0)
        for level in levels()
    ]
    for mass, places in seen:
        assert mass == pytest.approx(exact, rel=1e-6) and mass == seen[0][0]
        assert places is not None and places.tolist() == np.flatnonzero(logits >= 1).tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.9, "temperature": 0.6},
        {"top_p": 0.99, "temperature": 2.0},
        {"top_p": 0.5, "repetition_penalty": 1.3, "logit_bias": [{"token_id": 5, "bias": 3.0}]},
    ],
)
def test_survivors_are_the_same_with_and_without(fields: dict[str, Any]) -> None:
    quick = Sampler(20_000, DrawPasses(library(), levels()[-1]))
    for seed in range(12):
        one = row((1, 5, 7, 9, 9), 20_000, num_prompt_tokens=2, **{"temperature": 1.0} | fields)
        logits = bell(20_000, 0.5 + seed / 4, seed)
        logits[[5, 9, 11, 13, 3000]] = 12.0
        highest = float(logits.max())
        ours = quick.survivors(logits, one.draw, one.history, highest)
        one.draw.shortlist = None
        theirs = quick.survivors(logits, one.draw, one.history, highest)
        assert np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.logits, theirs.logits)


@pytest.mark.parametrize("count", [0, 1, 5, 300])
@pytest.mark.parametrize("size", [3, 200, 20_000])
def test_logprobs_are_the_same_with_and_without(size: int, count: int) -> None:
    logits = bell(size, 3.0, count)
    logits[[0, size - 1]] = 9.5  # a tie goes to the lowest id
    exact = logits.astype(np.float64)
    exact -= 9.5 + np.log(np.exp(exact - 9.5).sum())
    likeliest = np.argsort(-exact, kind="stable")[:count].tolist()
    for passes in (None, *[DrawPasses(library(), level) for level in levels()]):
        ids, logprobs = with_alternatives(logits, 2, count, passes)
        assert list(ids) == [2, *likeliest]
        np.testing.assert_allclose(logprobs, exact[list(ids)], atol=1e-6)


def test_logits_that_are_no_numbers_have_logprobs_that_are_none() -> None:
    logits = np.array([1.0, np.nan, 2.0], np.float32)
    for passes in (None, DrawPasses(library(), levels()[-1])):
        assert all(np.isnan(with_alternatives(logits, 0, 0, passes)[1]))
