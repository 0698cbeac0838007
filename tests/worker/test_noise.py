"""Noise: exact integers, golden values for other implementations, and the right distribution."""

from __future__ import annotations

import numpy as np

from worker.noise import coin, gumbel, stream, uniforms

IDS = np.arange(100_000)


def test_golden_values() -> None:
    """Another implementation (a GPU's) must give these very numbers."""
    assert stream(0, 0, 0) == 0
    assert stream(1, 0, 0) == 0x71CAC37448049CE4
    assert stream(2**64 - 1, 3, 70_000) == 0x655C37425C186042


def test_golden_uniforms() -> None:
    expected = [0.21707728872515164, 0.9396906519955154, 0.3007072692274789]
    assert uniforms(stream(42, 1, 7), np.array([0, 1, 151_935])).tolist() == expected


def test_uniforms_follow_the_documented_integers() -> None:
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    key = mix((mix((mix(42) + golden) & mask) + 7 * golden) & mask)
    for token_id in (0, 1, 2047, 151_935):
        bits = mix((key + (token_id + 1) * golden) & mask)
        expected = ((bits >> 12) + 0.5) / 2**52
        assert uniforms(stream(42, 1, 7), np.array([token_id]))[0] == expected


def test_no_noise_is_infinite() -> None:
    """All bits of this token are 1: with 53 of them the half was rounded up, and its uniform 1."""
    key = stream(13432327527288150470, 0, 0)
    assert uniforms(key, np.array([3])).tolist() == [1 - 2.0**-53]
    assert 36 < gumbel(key, np.array([3]))[0] < 37


def test_gumbel_is_the_double_logarithm() -> None:
    key = stream(7, 0, 0)
    exact = -np.log(-np.log(uniforms(key, IDS[:1000])))
    assert np.array_equal(gumbel(key, IDS[:1000]), exact)


def test_a_token_meets_its_noise_in_any_company() -> None:
    key = stream(5, 0, 3)
    some = np.array([3, 17, 99_999])
    assert np.array_equal(uniforms(key, some), uniforms(key, IDS)[some])


def test_uniform_over_tokens_indices_and_seeds() -> None:
    by_token = uniforms(stream(1, 0, 0), IDS)
    by_index = np.array([uniforms(stream(1, 0, i), IDS[:1])[0] for i in range(5000)])
    by_seed = np.array([uniforms(stream(s, 0, 0), IDS[:1])[0] for s in range(5000)])
    for numbers in (by_token, by_index, by_seed):
        assert 0 < numbers.min() and numbers.max() < 1
        counts = np.histogram(numbers, 100, (0, 1))[0]
        expected = len(numbers) / 100
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < 160  # 99 degrees of freedom: one in 10,000 is above


def test_the_commonest_seeds_have_no_coin_of_their_own() -> None:
    """The coin of the first token of seed 0 was 0: XTC acted there however seldom it was asked."""
    coins = [coin(stream(seed, 0, index)) for seed in range(40) for index in range(40)]
    assert 1e-5 < min(coins) and max(coins) < 1 - 1e-5


def test_neighbours_are_not_related() -> None:
    a, b = uniforms(stream(1, 0, 0), IDS), uniforms(stream(1, 0, 1), IDS)
    c = uniforms(stream(1, 1, 0), IDS)
    for other in (b, c, np.roll(a, 1)):
        assert abs(np.corrcoef(a, other)[0, 1]) < 0.015


def test_choices_and_indices_never_share_a_stream() -> None:
    keys = {stream(9, choice, index) for choice in range(8) for index in range(2000)}
    assert len(keys) == 8 * 2000
