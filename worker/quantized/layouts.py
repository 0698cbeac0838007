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
        file = self.files[part]
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
    bits, group = scheme.bits, scheme.block[1] or num_inputs
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
    group = scheme.block[1] or num_inputs
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
    bits, group = scheme.bits, scheme.block[1] or num_inputs
    num_groups, count = -(-num_inputs // group), 32 // bits
    words = parts.take("weight_packed", ("I32",), (num_outputs, -(-num_inputs // count)))
    scales, block = _scales(parts, "weight_scale", shape, (1, group))
    zeros: Callable[[int, int], Codes] | int = 1 << bits - 1
    if "weight_zero_point" in parts:
        wanted = (-(-num_outputs // count), num_groups)
        packed = parts.take("weight_zero_point", ("I32",), wanted)

        def zeros(first: int, end: int) -> Codes:
            return unpacked_outputs(packed.T, bits, first, end).T

    def codes(first: int, end: int) -> Codes:
        return unpacked(words[first:end], bits)[:, :num_inputs]

    groups = _groups(parts, "weight_g_idx", num_inputs, group)
    return Affine(num_inputs, block, codes, scales, zeros, groups)


def _codes(parts: Parts, shape: Shape, scheme: Scheme) -> Rows:
    stored = parts.take("weight", ("F8_E4M3", "I8"), shape)
    part = next(one for one in SCALES if one in parts)
    wanted = (scheme.block[0], scheme.block[1] or shape[1])
    scales, block = _scales(parts, part, shape, wanted)
    if part == "SCB":  # of what the largest size is, 127
        scales = to_float32(scales) / np.float32(127)
    is_float = stored.dtype == np.uint8

    def codes(first: int, end: int) -> Codes:
        return E4M3[stored[first:end]] if is_float else stored[first:end]

    if "weight_zero_point" not in parts:
        return Affine(shape[1], block, codes, scales)
    zeros = parts.take("weight_zero_point", ("I8",), *_scale_shapes(shape, wanted))
    zeros = zeros.reshape(scales.shape)
    return Affine(shape[1], block, codes, scales, lambda first, end: zeros[first:end])


def _blocks(parts: Parts, shape: Shape, _: Scheme) -> Rows:
    num_outputs, num_inputs = shape
    state = _state(parts)
    count, size = num_outputs * num_inputs, state.size("blocksize")
    octets = parts.take("weight", ("U8",), (-(-count // 2), 1)).reshape(-1)
    values = to_float32(parts.take("weight.quant_map", FLOATS, (16,)))
    num_blocks = -(-count // size)
    if "weight.nested_absmax" not in parts:
        scales = to_float32(parts.take("weight.absmax", FLOATS, (num_blocks,)))
    else:
        nested = state.size("nested_blocksize")
        table = to_float32(parts.take("weight.nested_quant_map", FLOATS, (256,)))
        outer = to_float32(parts.take("weight.nested_absmax", FLOATS, (-(-num_blocks // nested),)))
        places = parts.take("weight.absmax", ("U8",), (num_blocks,))
        scales = table[places] * np.repeat(outer, nested)[:num_blocks]
        scales += np.float32(state.number("nested_offset"))

    def rows(first: int, end: int) -> Floats:
        start, stop = first * num_inputs, end * num_inputs
        pairs = octets[start // 2 : -(-stop // 2)]
        codes = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)
        weight = values[codes[start % 2 :][: stop - start]]
        around = np.repeat(scales[start // size : -(-stop // size)], size)
        weight *= around[start % size :][: stop - start]
        return weight.reshape(end - first, num_inputs)

    return rows


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


def _scales(parts: Parts, part: str, shape: Shape, block: Shape) -> tuple[Stored, Shape]:
    """Return scales [blocks, blocks] and of what a block is."""
    scales = parts.take(part, FLOATS, *_scale_shapes(shape, block))
    if scales.size == 1:
        return scales.reshape(1, 1), shape
    if scales.shape[0] == shape[0] and scales.size == shape[0]:
        return scales.reshape(-1, 1), (1, shape[1])
    return scales, block


def _scale_shapes(shape: Shape, block: Shape) -> list[tuple[int, ...]]:
    """For all; for each output; for each block."""
    blocks = tuple(-(-length // part) for length, part in zip(shape, block, strict=True))
    return [(), (1,), (1, 1), shape[:1], (shape[0], 1), blocks]


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
    wanted: tuple[str, ...]
    """It has all of these beside."""
    more: tuple[str, ...]
    """What it may have as well."""
    rows: Callable[[Parts, Shape, Scheme], Rows]

    @property
    def parts(self) -> set[str]:
        return {*self.marks, *self.wanted, *self.more}


PACKED = ("weight_zero_point", "weight_g_idx")
FORMS = (f"{STATE}nf4", f"{STATE}fp4")
TABLE = ("weight", "weight.absmax", "weight.quant_map")
NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
LAYOUTS = {
    "gptq": Layout(("qweight",), ("qzeros", "scales"), ("g_idx",), _gptq),
    "awq": Layout(("qweight",), ("qzeros", "scales"), (), _awq),
    "packed": Layout(("weight_packed",), ("weight_scale",), PACKED, _packed),
    "codes": Layout(SCALES, ("weight",), ("weight_zero_point",), _codes),
    "blocks": Layout(FORMS, TABLE, NESTED, _blocks),
}
