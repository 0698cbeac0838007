"""Affine: weights from codes, zero points and scales, and what unpacks codes from words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.kernels.checks import Floats, Stored, to_float32

Shape = tuple[int, int]
Codes = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Affine:
    """weight = (code - zero point) * scale; each scale is of a block of outputs and inputs."""

    num_inputs: int
    block: Shape
    codes: Callable[[int, int], Codes]
    """Outputs first..end-1 → [end - first, in]."""
    scales: Stored
    """[blocks of outputs, blocks of inputs]"""
    zeros: Callable[[int, int], Codes] | int = 0
    """Blocks of outputs first..end-1 → [end - first, blocks of inputs]; or one for all."""
    groups: Stored | None = None
    """Of which block each input is, where they do not lie side by side."""

    def __call__(self, first: int, end: int) -> Floats:
        height = self.block[0]
        blocks = (first // height, -(-end // height))
        weight = self.codes(first, end).astype(np.float32)
        if isinstance(self.zeros, int):
            weight -= np.float32(self.zeros)
        else:
            self._apply(np.subtract, weight, self.zeros(*blocks).astype(np.float32), first)
        self._apply(np.multiply, weight, to_float32(self.scales[slice(*blocks)]), first)
        return weight

    def _apply(self, operator: np.ufunc, weight: Floats, values: Floats, first: int) -> None:
        """Apply the values [blocks, blocks] to weights [.., in] from output `first` on."""
        height, width = self.block
        if height > 1:
            values = values[np.arange(first, first + len(weight)) // height - first // height]
        if self.groups is not None:
            values = values[:, self.groups]
        elif self.num_inputs % width == 0:
            weight = weight.reshape(len(weight), -1, width)
            values = values[:, :, None]
        else:
            values = np.repeat(values, width, axis=1)[:, : self.num_inputs]
        with np.errstate(all="ignore"):  # what is no number is found where it is packed
            operator(weight, values, out=weight)


def unpacked(words: Stored, bits: int, places: Sequence[int] = ()) -> Codes:
    """int32 [..., n] → uint8 [..., n * count], count = 32 / bits: code i of a word lies at place
    `places[i]` of it, counted from the lowest bits; without `places` at place i."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    if bits == 8:
        return octets.reshape(*words.shape[:-1], -1)
    codes = np.empty((*words.shape, 32 // bits), np.uint8)
    for i, place in enumerate(places or range(32 // bits)):
        octet, shift = divmod(place * bits, 8)
        np.right_shift(octets[..., octet], shift, out=codes[..., i])
    codes &= (1 << bits) - 1
    return codes.reshape(*words.shape[:-1], -1)


def unpacked_outputs(
    words: Stored, bits: int, first: int, end: int, places: Sequence[int] = ()
) -> Codes:
    """int32 [n, out / count] → uint8 [n, end - first]: outputs first..end-1; see `unpacked`."""
    count = 32 // bits
    codes = unpacked(words[:, first // count : -(-end // count)], bits, places)
    return codes[:, first % count :][:, : end - first]
