"""Passes over a whole vocabulary that find the few tokens a draw is about.

Neither decides: NumPy does, in float64, over what they find; without them it looks at everything,
and the token is the same.

Nucleus: the mass of all tokens, nearly, and the tokens above a bound, in one pass.

Contenders: the tokens that may win a draw without truncation.

A token wins with the highest of logit / temperature + noise, and noise is −ln(−ln(uniform)). Take
`bar`, what some tokens are known to reach. Who reaches it has −ln(uniform) ≤ exp(x − bar), with x
the logit / temperature, and because −ln(u) ≥ 1 − u also

    log2(1 − uniform) ≤ (x − bar) · log2(e)

That needs integers, one conversion to float and one comparison a token, where the noise itself
needs two logarithms; a lower bound of log2 does as well, so float32 does. Whoever passes is drawn
from in float64, by the same arithmetic as a whole vocabulary: the same token, always.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np

from worker.kernels.checks import F32, Floats, require
from worker.kernels.library import Level, Library
from worker.noise import Ids, gumbel

SAMPLE = 512
"""The bar is the best of so many tokens, and the likeliest."""
ROOM = 8192
"""With more tokens there is nothing to gain."""
LOG2_E = math.log2(math.e)
MOST = 1e38
"""A difference of powers beyond it would be no number in float32."""
SLACK = 0.01
"""In powers of two; more than float32 loses in either side of the comparison."""


class _Contenders(ctypes.Structure):
    """`ContendersArguments` of draw_passes.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("key", ctypes.c_uint64),
        ("places", ctypes.c_void_p),
        ("room", ctypes.c_int64),
    )


class _Nucleus(ctypes.Structure):
    """`NucleusArguments` of draw_passes.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("highest", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("bound", ctypes.c_float),
        ("places", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("mass", ctypes.c_double),
    )


class DrawPasses:
    """Calls the kernels, and keeps their room."""

    def __init__(self, library: Library, level: Level) -> None:
        self._library = library
        self._level = level
        self._found = np.empty(ROOM, np.int32)

    def nucleus(
        self, logits: Floats, highest: float, temperature: float, bound: float
    ) -> tuple[float, Ids | None]:
        """Return the sum of exp((logit − highest) / temperature), within 1e-6, and the places,
        rising, of logits that reach `bound`; None for places when they would be too many.

        logits: float32 [V]; `highest` is the highest of them, or above.
        """
        require("nucleus", "logits", logits, F32, (None,))
        arguments = _Nucleus(
            logits.ctypes.data, len(logits), highest, LOG2_E / temperature, bound,
            self._found.ctypes.data, ROOM, 0.0,
        )  # fmt: skip
        count = self._library.nucleus(self._level, ctypes.byref(arguments))
        return arguments.mass, self._found[:count].astype(np.int64) if count <= ROOM else None

    def contenders(
        self, logits: Floats, likeliest: int, temperature: float, key: int
    ) -> Ids | None:
        """Return ids, rising, among which the winner is; None when that would be too many, or are
        too large to be compared.

        logits: float32 [V], finite at `likeliest`, the place of the highest. `key` is that of the
        token's noise.
        """
        require("contenders", "logits", logits, F32, (None,))
        some = np.append(np.arange(min(SAMPLE, len(logits))), likeliest)
        bar = float((logits[some].astype(np.float64) / temperature + gumbel(key, some)).max())
        offset = 52 - bar * LOG2_E
        offset += SLACK + 1e-6 * (abs(bar) * LOG2_E + 52)
        if abs(offset) > MOST:
            return None
        arguments = _Contenders(
            logits.ctypes.data, len(logits), LOG2_E / temperature, offset, key,
            self._found.ctypes.data, ROOM,
        )  # fmt: skip
        count = self._library.contenders(self._level, ctypes.byref(arguments))
        return self._found[:count].astype(np.int64) if count <= ROOM else None
