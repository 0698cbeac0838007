"""Layouts: how the tools lay out a quantised linear, and how its weights come back as floats.

Almost all are affine: weight = (code - zero point) * scale, with a scale for a block of outputs
and inputs. They differ in how codes and zero points are packed, n = 32 / bits of them a word:

gptq    qweight [in / n, out], the first lowest, and qzeros [groups, out / n]; with g_idx an input
        says which group it is of (AutoGPTQ, GPTQModel).
awq     qweight [in, out / 8] and qzeros [groups, out / 8]; from the lowest on lie 0 2 4 6 1 3 5 7
        (AutoAWQ's "gemm").
packed  weight_packed [out, in / n]; codes are stored as from -2^(bits - 1) on (compressed-tensors).
codes   weight [out, in] as int8 or float8 e4m3, a scale for all, for an output or for a block.
blocks  4 bits each that are places in a table of 16 values, 64 weights a scale; the scales may be
        quantised as well (bitsandbytes nf4 and fp4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from common.model_folder import Fields, ModelFolderError
from worker.kernels.checks import Floats, Stored, to_float32
from worker.quantized.affine import Affine, Codes, Shape, unpacked, unpacked_outputs
from worker.quantized.scheme import Scheme
from worker.safetensors import STORED_AS, SafetensorsFile

FLOATS = tuple(STORED_AS)
STATE = "weight.quant_state.bitsandbytes__"
SCALES = ("weight_scale", "weight_scale_inv", "SCB")
"""Names of the scale of plain codes; all multiply."""
ZEROS = "weight_zero_point"
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the 8 outputs of a word lie in it."""


def _e4m3_values() -> Floats:
    """Return what each byte of float8 e4m3 stands for: no infinities, 0x7f and 0xff no number."""
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, (bits & 7) / 8
    sizes = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7))
    values = np.where(bits & 128, -sizes, sizes)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


E4M3 = _e4m3_values()
Rows = Callable[[int, int], Floats]
"""Outputs first..end-1 of a linear → their weights [end - first, in]."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one linear, by what stands behind its name."""

    name: str
    files: Mapping[str, SafetensorsFile]

    def __contains__(self, part: object) -> bool:
        return part in self.files

    def take(self, part: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> Stored:
        """Return a tensor as it lies in the file, of one of these shapes (of any without); raise
        ModelFolderError."""
        if (file := self.files.get(part)) is None:
            path = next(iter(self.files.values())).path
            raise ModelFolderError(f"{path}: missing tensors: {self.name}.{part}")
        tensor = file.tensors[f"{self.name}.{part}"]
        if tensor.dtype not in dtypes:
            raise self.error(part, f"dtype {tensor.dtype}", " or ".join(dtypes))
        if shapes and tensor.shape not in shapes:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(part, f"shape {list(tensor.shape)}", allowed)
        return file.read_stored(f"{self.name}.{part}")

    def error(self, part: str, found: str, expected: str) -> ModelFolderError:
        path = self.files[part].path
        return ModelFolderError(
            f"{path}: tensor {self.name}.{part} has {found}, expected {expected}"
        )


def _gptq(parts: Parts, shape: Shape, scheme: Scheme) -> Rows:
    num_outputs, num_inputs = shape
    bits, (_, group) = scheme.bits, _block(scheme, shape)
    num_groups, count = -(-num_inputs // group), 32 // bits
    words = parts.take("qweight", ("I32",), (-(-num_inputs // count), num_outputs))
    packed = parts.take("qzeros", ("I32",), (num_groups, -(-num_outputs // count)))
    scales = parts.take("scales", FLOATS, (num_groups, num_outputs))

    def codes(first: int, end: int) -> Codes:
        return unpacked(words[:, first:end].T, bits)[:, :num_inputs]

    def zeros(first: int, end: int) -> Codes:
        found = unpacked_outputs(packed, bits, first, end)
        return (found + scheme.is_zero_less_one & (1 << bits) - 1).T

    groups = _groups(parts, "g_idx", num_inputs, group)
    return Affine(num_inputs, (1, group), codes, scales.T, zeros, groups)


def _awq(parts: Parts, shape: Shape, scheme: Scheme) -> Rows:
    num_outputs, num_inputs = shape
    _, group = _block(scheme, shape)
    num_groups, num_words = -(-num_inputs // group), -(-num_outputs // 8)
    words = parts.take("qweight", ("I32",), (num_inputs, num_words))
    packed = parts.take("qzeros", ("I32",), (num_groups, num_words))
    scales = parts.take("scales", FLOATS, (num_groups, num_outputs))

    def codes(first: int, end: int) -> Codes:
        return unpacked_outputs(words, 4, first, end, AWQ_PLACES).T

    def zeros(first: int, end: int) -> Codes:
        return unpacked_outputs(packed, 4, first, end, AWQ_PLACES).T

    return Affine(num_inputs, (1, group), codes, scales.T, zeros)


def _packed(parts: Parts, shape: Shape, scheme: Scheme) -> Rows:
    num_outputs, num_inputs = shape
    bits, (_, group) = scheme.bits, _block(scheme, shape)
    num_groups, count = -(-num_inputs // group), 32 // bits
    words = parts.take("weight_packed", ("I32",), (num_outputs, -(-num_inputs // count)))
    scales, block = _of_blocks(parts, "weight_scale", FLOATS, shape, (1, group))
    zeros: Callable[[int, int], Codes] | int = 1 << bits - 1
    if ZEROS in parts:
        if block != (1, group):
            raise parts.error("weight_scale", "one value", "as many as weight_zero_point")
        wanted = (-(-num_outputs // count), num_groups)
        packed = parts.take(ZEROS, ("I32",), wanted)

        def zeros(first: int, end: int) -> Codes:
            return unpacked_outputs(packed.T, bits, first, end).T

    def codes(first: int, end: int) -> Codes:
        return unpacked(words[first:end], bits)[:, :num_inputs]

    groups = _groups(parts, "weight_g_idx", num_inputs, group)
    return Affine(num_inputs, block, codes, scales, zeros, groups)


def _codes(parts: Parts, shape: Shape, scheme: Scheme) -> Rows:
    stored = parts.take("weight", ("F8_E4M3", "I8"), shape)
    part = next(one for one in SCALES if one in parts)
    wanted = _block(scheme, shape)
    scales, block = _of_blocks(parts, part, FLOATS, shape, wanted)
    if part == "SCB":  # of what the largest size is, 127
        scales = to_float32(scales) / np.float32(127)
    is_float = stored.dtype == np.uint8

    def codes(first: int, end: int) -> Codes:
        return E4M3[stored[first:end]] if is_float else stored[first:end]

    if ZEROS not in parts:
        return Affine(shape[1], block, codes, scales)
    zeros, its_block = _of_blocks(parts, ZEROS, ("I8",), shape, wanted)
    if its_block != block:
        raise parts.error(ZEROS, f"shape {list(zeros.shape)}", str(list(scales.shape)))
    return Affine(shape[1], block, codes, scales, lambda first, end: zeros[first:end])


def _blocks(parts: Parts, shape: Shape, _: Scheme) -> Rows:
    num_outputs, num_inputs = shape
    state = _state(parts)
    count = num_outputs * num_inputs
    size = min(state.size("blocksize"), count)
    octets = parts.take("weight", ("U8",), (-(-count // 2), 1)).reshape(-1)
    values = to_float32(parts.take("weight.quant_map", FLOATS, (16,)))
    scales = _nested_scales(parts, state, -(-count // size))

    def rows(first: int, end: int) -> Floats:
        start, stop = first * num_inputs, end * num_inputs
        pairs = octets[start // 2 : -(-stop // 2)]
        codes = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)
        weight = values[codes[start % 2 :][: stop - start]]
        around = np.repeat(scales(start // size, -(-stop // size)), size)
        weight *= around[start % size :][: stop - start]
        return weight.reshape(end - first, num_inputs)

    return rows


def _nested_scales(parts: Parts, state: Fields, count: int) -> Callable[[int, int], Floats]:
    """Return what gives scales first..end-1 of `count`, which may have been quantised as well."""
    if "weight.nested_absmax" not in parts:
        scales = parts.take("weight.absmax", FLOATS, (count,))
        return lambda first, end: to_float32(scales[first:end])
    size, offset = state.size("nested_blocksize"), np.float32(state.number("nested_offset"))
    table = to_float32(parts.take("weight.nested_quant_map", FLOATS, (256,)))
    outer = to_float32(parts.take("weight.nested_absmax", FLOATS, (-(-count // size),)))
    places = parts.take("weight.absmax", ("U8",), (count,))

    def nested(first: int, end: int) -> Floats:
        return table[places[first:end]] * outer[np.arange(first, end) // size] + offset

    return nested


def _state(parts: Parts) -> Fields:
    """Return what bitsandbytes has written of a linear, as JSON in a tensor."""
    part = next(part for part in parts.files if part.startswith(STATE))
    try:
        raw = json.loads(parts.take(part, ("U8",)).tobytes())
    except (ValueError, RecursionError) as error:
        raise parts.error(part, "no JSON", "an object") from error
    if not isinstance(raw, dict):
        raise parts.error(part, "no object", "an object")
    return Fields(parts.files[part].path, raw, f"{parts.name}.{part}: ")


def _block(scheme: Scheme, shape: Shape) -> Shape:
    """Return what shares a scale, no more than there is."""
    height, width = scheme.block
    return min(height, shape[0]), min(width or shape[1], shape[1])


def _of_blocks(
    parts: Parts, part: str, dtypes: tuple[str, ...], shape: Shape, block: Shape
) -> tuple[Stored, Shape]:
    """Return scales or zero points [blocks, blocks], and what a block is: the whole linear, an
    output, or `block`."""
    blocks = tuple(-(-length // size) for length, size in zip(shape, block, strict=True))
    found = parts.take(part, dtypes, (), (1,), (1, 1), shape[:1], (shape[0], 1), blocks)
    if found.size == 1:
        return found.reshape(1, 1), shape
    if found.size == found.shape[0] == shape[0]:
        return found.reshape(-1, 1), (1, shape[1])
    return found, block


def _groups(parts: Parts, part: str, num_inputs: int, group: int) -> Stored | None:
    """Return of which group each input is; None where they lie side by side."""
    if part not in parts:
        return None
    groups = parts.take(part, ("I32",), (num_inputs,))
    if (groups == np.arange(num_inputs) // group).all():
        return None
    most = -(-num_inputs // group) - 1
    if groups.min() < 0 or groups.max() > most:
        raise parts.error(part, f"values {groups.min()} to {groups.max()}", f"0 to {most}")
    return groups


class Layout(NamedTuple):
    """How to tell a quantised linear by its tensors, and what makes its weights of them."""

    marks: tuple[str, ...]
    """A linear with one of these is quantised."""
    others: tuple[str, ...]
    """What it may have beside."""
    rows: Callable[[Parts, Shape, Scheme], Rows]

    @property
    def parts(self) -> set[str]:
        return {*self.marks, *self.others}


NESTED = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
LAYOUTS = {
    "gptq": Layout(("qweight",), ("qzeros", "scales", "g_idx"), _gptq),
    "awq": Layout(("qweight",), ("qzeros", "scales"), _awq),
    "packed": Layout(("weight_packed",), ("weight_scale", ZEROS, "weight_g_idx"), _packed),
    "codes": Layout(SCALES, ("weight", ZEROS), _codes),
    "blocks": Layout(
        (f"{STATE}nf4", f"{STATE}fp4"), ("weight", *(f"weight.{part}" for part in NESTED)), _blocks
    ),
}
