"""Scheme: what `quantization_config` says of the weights of linears.

Knows the fields of the tools that write it. Knows no tensor. What a folder says of activations and
of the cache is not followed: both stay as exact as they are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.model_folder import Fields

NAME = "quantization_config"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of linears lie in the files."""

    method: str
    """As the config names it; for people."""
    layout: str
    """A name in `layouts.LAYOUTS`."""
    bits: int = 8
    block: tuple[int, int] = (1, 0)
    """How many outputs and inputs share a scale; 0 inputs: all of them."""
    is_zero_less_one: bool = False
    """Zero points are stored less one."""


def read_scheme(config: Fields) -> Scheme | None:
    """Take the scheme out of a config, None without one; raise ModelFolderError for others."""
    fields = config.inside(NAME)
    if fields is None:
        return None
    method = fields.text("quant_method")
    if method not in READERS:
        raise fields.error("quant_method", method, ", ".join(READERS))
    return READERS[method](fields)


def _gptq(fields: Fields) -> Scheme:
    bits = _bits(fields, "bits", 2, 4, 8)
    for name in FORMATS:
        _one_of(fields, name, None, "", "gptq", "gptq_v2")
    _one_of(fields, "pack_dtype", None, "int32")
    _one_of(fields, "is_marlin_format", None, False)
    told = next((found for name in FORMATS if (found := fields.get(name))), "gptq")
    return Scheme("gptq", "gptq", bits, _group(fields), told == "gptq")


def _auto_round(fields: Fields) -> Scheme:
    _one_of(fields, "data_type", None, "int")
    name = "packing_format"
    _one_of(fields, name, "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq")
    if fields.text(name).endswith("awq"):
        return Scheme("auto-round", "awq", _bits(fields, "bits", 4), _group(fields))
    is_less = fields.text(name).endswith(":auto_gptq")
    return Scheme("auto-round", "gptq", _bits(fields, "bits", 2, 4, 8), _group(fields), is_less)


def _awq(fields: Fields) -> Scheme:
    for name in ("version", "format"):
        _one_of(fields, name, None, "gemm", "GEMM")
    bits = _bits(fields, "w_bit" if fields.has("w_bit") else "bits", 4)
    return Scheme("awq", "awq", bits, _group(fields))


def _fp8(fields: Fields) -> Scheme:
    _one_of(fields, "fmt", None, "e4m3")
    is_plain = fields.get("weight_block_size") is None
    block = (1, 0) if is_plain else _pair(fields, "weight_block_size")
    return Scheme(fields.text("quant_method"), "codes", block=block)


def _modelopt(fields: Fields) -> Scheme:
    _one_of(fields, "quant_algo", "FP8")
    return Scheme("modelopt", "codes")


def _compressed(fields: Fields) -> Scheme:
    _one_of(fields, "transform_config", None, {})
    sparsity = fields.inside("sparsity_config")
    if sparsity is not None:
        _one_of(sparsity, "format", None, "dense")
    groups = fields.inside("config_groups")
    if groups is None or not groups.names():
        raise fields.missing("config_groups")
    names = sorted(groups.names())
    insides = [inside for name in names if (inside := groups.inside(name)) is not None]
    schemes = {_compressed_group(fields, group) for group in insides}
    if len(schemes) != 1:
        raise fields.error("config_groups", names, "groups of one kind of weights")
    return schemes.pop()


def _compressed_group(fields: Fields, group: Fields) -> Scheme:
    owner = group if group.get("format") else fields
    _one_of(owner, "format", "pack-quantized", *PLAIN)
    weights = group.inside("weights")
    if weights is None:
        raise group.missing("weights")
    _one_of(weights, "strategy", "tensor", "channel", "group", "block")
    is_block = weights.get("strategy") == "block"
    block = _pair(weights, "block_structure") if is_block else _group(weights)
    if owner.get("format") in PLAIN:
        return Scheme("compressed-tensors", "codes", _bits(weights, "num_bits", 8), block)
    return Scheme("compressed-tensors", "packed", _bits(weights, "num_bits", 2, 4, 8), block)


def _bitsandbytes(fields: Fields) -> Scheme:
    if fields.flag("load_in_4bit"):
        return Scheme("bitsandbytes", "blocks", 4)
    _one_of(fields, "load_in_8bit", True)
    return Scheme("bitsandbytes", "codes")


FORMATS = ("format", "checkpoint_format")
"""Of GPTQModel; the first that says something counts."""
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
READERS: dict[str, Callable[[Fields], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
}


def _one_of(fields: Fields, field: str, *allowed: object) -> None:
    if (value := fields.get(field)) not in allowed:
        said = ("absent" if one is None else repr(one) for one in allowed)
        raise fields.error(field, value, ", ".join(said))


def _bits(fields: Fields, field: str, *allowed: int) -> int:
    _one_of(fields, field, *allowed)
    return fields.size(field)


def _group(fields: Fields) -> tuple[int, int]:
    """-1 and null say that all inputs share a scale."""
    return (1, 0) if fields.get("group_size") in (-1, None) else (1, fields.size("group_size"))


def _pair(fields: Fields, field: str) -> tuple[int, int]:
    value = fields.get(field)
    if not isinstance(value, list) or [type(one) for one in value] != [int, int] or min(value) < 1:
        raise fields.error(field, value, "two positive integers")
    return (value[0], value[1])
