"""Gumbel noise as a pure function of (seed, choice, output index, token id).

Counter-based: no state, no history, so that the same token of the same request meets the same noise
in any batch, after any preemption and on any replica. Integers modulo 2^64 throughout:

    mix(z)  = z ^= z >> 30; z *= BF58476D1CE4E5B9; z ^= z >> 27; z *= 94D049BB133111EB; z ^ z >> 31
    stream  = mix(mix(mix(seed) + choice * GOLDEN) + index * GOLDEN)
    bits    = mix(stream + (token_id + 1) * GOLDEN)              GOLDEN = 9E3779B97F4A7C15
    uniform = ((bits >> 12) + 0.5) / 2^52                        exact in float64, inside (0, 1)
    noise   = −ln(−ln(uniform))                                  float64

The coin of a place is the uniform of token_id −2, which no token has; −1 would leave mix of the
stream alone, which is 0 for the first token of seed 0. mix is the finaliser of SplitMix64. Every
step up to `uniform` is exact on any machine (a half behind 53 bits would be rounded, up to 1); the
two logarithms are within 1 ulp of each other everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Ids = np.ndarray[Any, np.dtype[np.int64]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]


def stream(seed: int, choice: int, index: int) -> int:
    """Return the 64-bit key of one token's noise."""
    return _mix_int(_choice_key(seed, choice) + index * GOLDEN)


@lru_cache(4096)
def _choice_key(seed: int, choice: int) -> int:
    return _mix_int(_mix_int(seed & MASK) + choice * GOLDEN)


def uniforms(key: int, token_ids: Ids) -> Doubles:
    """Return a number inside (0, 1) for each token id, of the stream `key`."""
    bits: Words = np.uint64(key) + (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(SECOND)
    bits ^= bits >> np.uint64(31)
    exact: Doubles = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return exact


def coin(key: int) -> float:
    """Return a number inside (0, 1) that belongs to no token, of the stream `key`."""
    return float(uniforms(key, np.array([-2]))[0])


def gumbel(key: int, token_ids: Ids) -> Doubles:
    """Return the noise of each token id, of the stream `key`."""
    noise: Doubles = -np.log(-np.log(uniforms(key, token_ids)))
    return noise


def _mix_int(z: int) -> int:
    z &= MASK
    z = (z ^ (z >> 30)) * FIRST & MASK
    z = (z ^ (z >> 27)) * SECOND & MASK
    return z ^ (z >> 31)
