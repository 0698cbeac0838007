"""Linear: out[t, :] = weight @ x[t, :] + bias, bit for bit the same at every T and place.

A BLAS picks its inner loops by the shape of the call and by the place of the row, and with them its
rounding. Hence every call has the same number of rows, a tile padded with zeros, and the tile is
one whose rows were seen to agree, whatever their place: `proven_tile` tries that on this machine's
BLAS with this very weight. One row (a matrix-vector product) always qualifies. Measured on OpenBLAS
0.3.31 (Haswell kernels): 8 and 4 hold, 16, 12 and 6 do not; 8 costs 1.7 times an untiled call at
T = 64 and 5 times a matrix-vector product at T = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.kernels.checks import F32, Floats, require
from worker.kernels.crew import Crew

TILES = (8, 4, 1)
"""Rows per BLAS call, in order of preference."""
TILES_PER_PIECE = 4
"""Tiles that one thread computes at a time; each is still a BLAS call of its own."""
MIN_SHARED = 4_000_000
"""Products of which it pays to wake a second thread (about 0.2 ms)."""
ALONE = Crew(1)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """weight [in, N] (the file's, transposed), bias [N] or None, and its proven tile."""

    weight: Floats
    bias: Floats | None
    tile: int


def pack_linear(weights: Sequence[Floats], biases: Sequence[Floats] = ()) -> PackedLinear:
    """Stack weights [Ni, in] and biases [Ni] along their outputs; float32."""
    for weight in weights:
        require("linear", "weight", weight, F32, (None, weights[0].shape[1]))
    packed = np.concatenate([weight.T for weight in weights], axis=1)
    bias = np.concatenate(biases) if biases else None
    if bias is not None:
        require("linear", "bias", bias, F32, (packed.shape[1],))
    return PackedLinear(packed, bias, proven_tile(packed))


def pack_tied(table: Floats) -> PackedLinear:
    """Use an embedding table float32 [V, H] as the weight of a linear, without a copy."""
    require("linear", "table", table, F32, (None, None))
    return PackedLinear(table.T, None, proven_tile(table.T))


def linear_reference(x: Floats, packed: PackedLinear, crew: Crew = ALONE) -> Floats:
    """x: float32 [T, in]; returns float32 [T, N]."""
    num_inputs, num_outputs = packed.weight.shape
    require("linear", "x", x, F32, (None, num_inputs))
    num_rows, tile = x.shape[0], packed.tile
    padded = -(-num_rows // tile) * tile
    if padded != num_rows:
        x = np.concatenate([x, np.zeros((padded - num_rows, num_inputs), np.float32)])
    tiles = x.reshape(-1, tile, num_inputs)
    out = np.empty((len(tiles), tile, num_outputs), np.float32)

    def piece(place: int) -> None:
        part = slice(place * TILES_PER_PIECE, (place + 1) * TILES_PER_PIECE)
        with np.errstate(all="ignore"):  # what is not finite shows in its own row's logits
            np.matmul(tiles[part], packed.weight, out=out[part])

    shared = padded * num_inputs * num_outputs >= MIN_SHARED
    (crew if shared else ALONE).each(piece, -(-len(tiles) // TILES_PER_PIECE))
    rows: Floats = out.reshape(padded, num_outputs)[:num_rows]
    if packed.bias is not None:
        rows += packed.bias
    return rows


def proven_tile(weight: Floats) -> int:
    """Return the first of TILES whose rows agree bitwise, whatever their place and neighbours.

    weight: float32 [in, N].
    """
    rng = np.random.default_rng(0)
    probe = rng.standard_normal((2, weight.shape[0]), dtype=np.float32)
    return next(tile for tile in TILES if tile == 1 or _agrees(weight, probe, tile))


def _agrees(weight: Floats, probe: Floats, tile: int) -> bool:
    """Compare a row among copies of itself with the same row among strangers, at every place."""
    expected = (np.repeat(probe[:1], tile, axis=0) @ weight)[0]
    for place in range(tile):
        rows = np.repeat(probe[1:], tile, axis=0)
        rows[place] = probe[0]
        if not np.array_equal((rows @ weight)[place], expected):
            return False
    return True
