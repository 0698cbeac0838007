"""Writes model folders whose linears are quantised, as the tools lay them out: word by word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.model_folders import TINY, random_tensors, write_raw
from worker.models.config import read_config
from worker.models.decoder import shapes

Array = np.ndarray[Any, Any]
Parts = dict[str, tuple[str, Array]]
"""Of a linear: what stands behind its name → type in the file, values."""
Quantise = Callable[[tuple[int, ...], np.random.Generator], tuple[Parts, Array]]
"""Makes the parts of some weight [out, in], and tells what that weight is."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes: Array, bits: int, order: Sequence[int] = ()) -> Array:
    """Pack [n, m] along m, the first of `order` lowest; what is left of a word is 0."""
    count = 32 // bits
    packed = np.zeros((len(codes), -(-codes.shape[1] // count)), np.uint32)
    for (row, column), code in np.ndenumerate(codes):
        word, within = divmod(column, count)
        shift = order.index(within) if order else within
        packed[row, word] |= np.uint32(int(code) << bits * shift)
    return packed.view(np.int32)


def spread(values: Array, height: int, width: int, shape: Sequence[int]) -> Array:
    """Say of each weight what is said of its block."""
    tall = np.repeat(values, height, axis=0)[: shape[0]]
    return np.repeat(tall, width, axis=1)[:, : shape[1]]


def some_scales(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(0.01, 0.1, shape).astype(np.float16).astype(np.float32)


def gptq(bits: int, group: int, less: int = 1, is_shuffled: bool = False) -> Quantise:
    """less: so much less zero points are stored."""

    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Parts, Array]:
        groups = (np.arange(shape[1]) // group).astype(np.int32)
        groups = rng.permutation(groups) if is_shuffled else groups
        codes = rng.integers(0, 1 << bits, shape)
        zeros = rng.integers(less, (1 << bits) + less, (shape[0], groups.max() + 1)) % (1 << bits)
        scales = some_scales(rng, *zeros.shape)
        parts: Parts = {
            "qweight": ("I32", words(codes, bits).T),
            "qzeros": ("I32", words((zeros.T - less) % (1 << bits), bits)),
            "scales": ("F16", scales.T),
            "g_idx": ("I32", groups),
            "bias": ("F16", np.zeros(shape[0])),
        }
        return parts, (codes - zeros[:, groups]) * scales[:, groups]

    return quantise


def awq(group: int) -> Quantise:
    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Parts, Array]:
        codes = rng.integers(0, 16, shape)
        zeros = rng.integers(0, 16, (shape[0], -(-shape[1] // group)))
        scales = some_scales(rng, *zeros.shape)
        parts: Parts = {
            "qweight": ("I32", words(codes.T, 4, AWQ_ORDER)),
            "qzeros": ("I32", words(zeros.T, 4, AWQ_ORDER)),
            "scales": ("F16", scales.T),
        }
        spreads = (spread(values, 1, group, shape) for values in (zeros, scales))
        return parts, (codes - next(spreads)) * next(spreads)

    return quantise


def packed(bits: int, group: int, has_zeros: bool = False) -> Quantise:
    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Parts, Array]:
        codes = rng.integers(0, 1 << bits, shape)
        zeros = np.full((shape[0], -(-shape[1] // group)), 1 << bits - 1)
        if has_zeros:
            zeros = rng.integers(0, 1 << bits, zeros.shape)
        scales = some_scales(rng, *zeros.shape)
        parts: Parts = {
            "weight_packed": ("I32", words(codes, bits)),
            "weight_scale": ("F16", scales),
            "weight_shape": ("I32", np.array(shape)),
        }
        if has_zeros:
            parts["weight_zero_point"] = ("I32", words(zeros.T, bits).T)
        spreads = (spread(values, 1, group, shape) for values in (zeros, scales))
        return parts, (codes - next(spreads)) * next(spreads)

    return quantise


def float8(sign: int, exponent: int, fraction: int) -> float:
    """Say what float8 e4m3 has in these bits: 1, 4 and 3 of them."""
    size = fraction * 2**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return -size if sign else size


def codes(height: int, width: int, name: str, dtype: str = "F8_E4M3", **more: Any) -> Quantise:
    """height, width: of a block that shares a scale, 0 for all there are."""

    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Parts, Array]:
        block = (height or shape[0], width or shape[1])
        scales = some_scales(rng, *(-(-n // part) for n, part in zip(shape, block, strict=True)))
        stored = rng.integers(0, 127, shape) + 128 * rng.integers(0, 2, shape)  # 127 is no number
        values = stored.astype(np.uint8).view(np.int8)
        if dtype == "F8_E4M3":
            table = [float8(one >> 7, one >> 3 & 15, one & 7) for one in range(256)]
            values = np.array(table)[stored]
        parts: Parts = {"weight": (dtype, stored.astype(np.uint8))}
        parts[name] = ("F32", scales.reshape(more.get("shape", scales.shape)))
        if more.get("zeros"):
            zeros = rng.integers(-8, 8, scales.shape)
            parts["weight_zero_point"] = ("I8", zeros)
            values = values - spread(zeros, *block, shape)
        return parts, values * spread(scales, *block, shape) / more.get("over", 1)

    return quantise


def blocks(size: int, nested: int = 0, name: str = "nf4") -> Quantise:
    """nested: so many scales share one of their own."""

    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Parts, Array]:
        places = rng.integers(0, 16, shape).reshape(-1)
        table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
        scales = some_scales(rng, -(-places.size // size))
        state = {"quant_type": name, "blocksize": size, "shape": list(shape), "dtype": "bfloat16"}
        parts: Parts = {
            "weight": ("U8", (places[::2] << 4 | places[1::2])[:, None]),
            "weight.quant_map": ("F32", table),
            "weight.absmax": ("F32", scales),
        }
        if nested:
            state |= {"nested_blocksize": nested, "nested_offset": 0.25}
            outer = some_scales(rng, -(-scales.size // nested))
            inner = np.linspace(-1, 1, 256).astype(np.float32)
            chosen = rng.integers(0, 256, scales.size)
            scales = inner[chosen] * np.repeat(outer, nested)[: scales.size] + np.float32(0.25)
            parts["weight.absmax"] = ("U8", chosen)
            parts["weight.nested_absmax"] = ("F32", outer)
            parts["weight.nested_quant_map"] = ("F32", inner)
        raw = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[f"weight.quant_state.bitsandbytes__{name}"] = ("U8", raw)
        return parts, (table[places] * np.repeat(scales, size)[: places.size]).reshape(shape)

    return quantise


def write_quantized(
    folder: Path, quantise: Quantise, told: Any, **changes: Any
) -> dict[str, Array]:
    """Write TINY with `changes` and quantised linears; return what their weights are, float32."""
    folder.mkdir(parents=True)
    config = TINY | {"quantization_config": told} | changes
    (folder / "config.json").write_text(json.dumps(config))
    rng, made, tensors = np.random.default_rng(7), {}, {}
    for name, values in random_tensors(shapes(read_config(folder)), seed=5).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = ("F32", values)
            continue
        stem = name.removesuffix(".weight")
        parts, weight = quantise(values.shape, rng)
        made[name] = weight.astype(np.float32)
        tensors |= {f"{stem}.{part}": stored for part, stored in parts.items()}
    write_raw(folder / "model.safetensors", tensors)
    return made
