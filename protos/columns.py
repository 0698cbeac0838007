"""A column: a bytes field of little-endian u32 values. Knows no field's meaning."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

BIG_ENDIAN = sys.byteorder == "big"


def pack(values: Iterable[int]) -> bytes:
    """Return `values` as a column; raise OverflowError when one is not a u32."""
    column = array("I", values)
    if BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def unpack(column: bytes | bytearray) -> array[int]:
    """Return the values of `column`; raise ValueError when its length is no multiple of four."""
    values = array("I")
    values.frombytes(column)
    if BIG_ENDIAN:
        values.byteswap()
    return values
