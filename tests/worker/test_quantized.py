"""Folders whose linears are quantised already: the weights are what their tools mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.model_folder import ModelFolderError
from tests.support.model_folders import write_safetensors
from tests.support.operators import levels
from tests.support.quantized_folders import (
    Quantise,
    awq,
    blocks,
    codes,
    gptq,
    packed,
    write_quantized,
)
from tests.worker.forward import alone
from worker import build
from worker.build import describe_folder, load_model
from worker.models.config import read_config
from worker.models.decoder import shapes
from worker.quantized import weight as module
from worker.quantized.weight import QuantizedWeight
from worker.safetensors import SafetensorsFile
from worker.weights import FolderWeights

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
ROUND = GPTQ | {"quant_method": "auto-round"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    told = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True} | weights
    groups = {"group_0": {"targets": ["Linear"], "weights": told, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


TWO, FOUR = ({"num_bits": bits, "strategy": "group"} for bits in (2, 4))
MIXED = compressed("int-quantized")
MIXED["config_groups"]["group_0"]["format"] = MIXED.pop("format")
CASES: dict[str, tuple[Quantise, dict[str, Any]]] = {
    "gptq": (gptq(4, 32), GPTQ),
    "gptq of one group": (gptq(4, 48), GPTQ | {"group_size": -1}),
    "gptq of 8 bits": (gptq(8, 16), GPTQ | {"bits": 8, "group_size": 16}),
    "gptq of 2 bits": (gptq(2, 32), GPTQ | {"bits": 2}),
    "gptq_v2": (gptq(4, 32, less=0), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq_v2 by its newer field": (
        gptq(4, 32, less=0),
        GPTQ | {"format": "gptq_v2", "checkpoint_format": "gptq"},
    ),
    "auto-round as gptq": (
        gptq(4, 32),
        ROUND | {"packing_format": "auto_round:auto_gptq", "data_type": "int"},
    ),
    "auto-round as gptq_v2": (
        gptq(4, 32, less=0),
        ROUND | {"packing_format": "auto_round:gptqmodel"},
    ),
    "auto-round as awq": (awq(32), ROUND | {"packing_format": "auto_round:auto_awq"}),
    "gptq in another order": (gptq(4, 16, is_shuffled=True), GPTQ | {"group_size": 16}),
    "awq": (awq(16), AWQ),
    "awq by its older field": (awq(16), {"quant_method": "awq", "w_bit": 4, "group_size": 16}),
    "awq of an odd group": (awq(20), AWQ | {"group_size": 20}),
    "fp8": (codes(0, 0, "weight_scale", shape=()), FP8),
    "fp8 in blocks": (
        codes(20, 32, "weight_scale_inv"),
        FP8 | {"weight_block_size": [20, 32], "fmt": "e4m3"},
    ),
    "fp8 in blocks of one output": (
        codes(1, 16, "weight_scale_inv"),
        FP8 | {"weight_block_size": [1, 16]},
    ),
    "fbgemm_fp8": (codes(1, 0, "weight_scale"), {"quant_method": "fbgemm_fp8"}),
    "modelopt": (
        codes(0, 0, "weight_scale", shape=(1,)),
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
    "packed of 4 bits": (packed(4, 16), compressed("pack-quantized", **FOUR, group_size=16)),
    "packed with zero points": (
        packed(4, 32, has_zeros=True),
        compressed("pack-quantized", **FOUR, group_size=32, symmetric=False),
    ),
    "packed of 2 bits": (packed(2, 16), compressed("pack-quantized", **TWO, group_size=16)),
    "packed of 8 bits": (packed(8, 1000), compressed("pack-quantized")),
    "int8": (codes(1, 0, "weight_scale", "I8"), compressed("int-quantized")),
    "int8 by the format of its group": (
        codes(1, 0, "weight_scale", "I8"),
        MIXED | {"format": "mixed-precision", "sparsity_config": {}},
    ),
    "int8 with zero points": (
        codes(1, 0, "weight_scale", "I8", zeros=True),
        compressed("int-quantized", symmetric=False),
    ),
    "int8 in groups": (
        codes(1, 16, "weight_scale", "I8"),
        compressed("int-quantized", strategy="group", group_size=16),
    ),
    "float8 in blocks": (
        codes(16, 16, "weight_scale"),
        compressed("float-quantized", type="float", strategy="block", block_structure=[16, 16]),
    ),
    "bitsandbytes": (blocks(64, nested=4), BNB),
    "bitsandbytes fp4, scales as they are": (blocks(48, name="fp4"), BNB),
    "bitsandbytes int8": (
        codes(1, 0, "SCB", "I8", over=127, shape=(-1,)),
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
}


def open_weights(folder: Path) -> FolderWeights:
    config = read_config(folder)
    return FolderWeights(folder, shapes(config), scheme=config.scheme)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_tool_means(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRIP_VALUES", 200)  # a strip is of some outputs, as of real ones
    made = write_quantized(tmp_path / "m", *CASES[case])
    weights = open_weights(tmp_path / "m")
    for name, expected in made.items():
        weight = weights.read(name)
        assert isinstance(weight, QuantizedWeight)
        np.testing.assert_allclose(np.asarray(weight), expected, rtol=1e-6)
        assert weight.shape == expected.shape
        assert len(weight) == len(expected)
        for first, end in ((0, 1), (3, 12), (5, 16), (len(expected) - 3, len(expected)), (4, 4)):
            assert (weight[first:end] == np.asarray(weight)[first:end]).all()
    assert len(made) == 14


@pytest.mark.parametrize("case", ["gptq", "awq", "fp8 in blocks", "bitsandbytes"])
@pytest.mark.parametrize("options", [{}, {"quantization": "int4"}, {"kernel_level": "reference"}])
@pytest.mark.parametrize("head_dim", [8, 6])  # of 6: parts of a linear end inside a panel
def test_it_computes_as_the_floats_do(
    tmp_path: Path, case: str, options: dict[str, str], head_dim: int
) -> None:
    made = write_quantized(tmp_path / "m", *CASES[case], head_dim=head_dim)
    stored = SafetensorsFile(tmp_path / "m" / "model.safetensors")
    kept = shapes(read_config(tmp_path / "m")).keys() - made.keys()
    plain = {name: stored.read(name) for name in kept}
    write_quantized(tmp_path / "n", *CASES[case], quantization_config=None, head_dim=head_dim)
    weights = open_weights(tmp_path / "m")
    made = {name: np.asarray(weights.read(name)) for name in made}
    write_safetensors(tmp_path / "n" / "model.safetensors", plain | made)
    ids = [5, 17, 80, 3, 3, 41]
    one, other = (alone(load_model(tmp_path / name, **options), ids) for name in ("m", "n"))
    assert (one == other).all()
    assert np.abs(one).max() > 0.1


def test_floats_are_not_made_where_packed_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MIN_BYTES", 1)
    monkeypatch.setattr(build, "default_cache_dir", lambda: tmp_path / "cache")
    write_quantized(tmp_path / "m", *CASES["gptq"])
    first = alone(load_model(tmp_path / "m", kernel_level=levels()[0].name.lower()), [1, 2, 3])

    def never(_: QuantizedWeight, __: slice) -> None:
        raise AssertionError

    monkeypatch.setattr(QuantizedWeight, "__getitem__", never)
    again = alone(load_model(tmp_path / "m", kernel_level=levels()[0].name.lower()), [1, 2, 3])
    assert (first == again).all()


def test_how_weights_are_stored_is_described(tmp_path: Path) -> None:
    write_quantized(tmp_path / "m", *CASES["gptq"])
    assert "linears quantised by gptq" in describe_folder(tmp_path / "m")


Damage = dict[str, tuple[str, np.ndarray[Any, Any]] | None]


def changed(quantise: Quantise, damage: Damage) -> Quantise:
    """Write other parts than `quantise` does, or leave some out."""

    def damaged(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        parts, weight = quantise(shape, rng)
        parts |= {part: stored for part, stored in damage.items() if stored is not None}
        return {
            part: stored for part, stored in parts.items() if part not in damage or damage[part]
        }, weight

    return damaged


ONES = np.ones
DAMAGES: list[tuple[str, Damage, str]] = [
    ("gptq", {"scales": None}, r"missing tensors: .*\.scales$"),
    ("gptq", {"qweight": None}, r"missing tensors: .*proj\.weight"),
    ("gptq", {"qzeros": ("F32", ONES((1, 4)))}, r"qzeros has dtype F32, expected I32"),
    ("gptq", {"qweight": ("I32", ONES((4, 7)))}, r"qweight has shape \[4, 7\], expected \[.*\]"),
    ("gptq", {"g_idx": ("I32", ONES(2))}, r"g_idx has shape \[2\], expected"),
    ("gptq", {"bias": ("F32", ONES(3))}, r"unexpected tensors: .*bias"),
    ("gptq", {"more": ("F32", ONES(3))}, r"unexpected tensors: .*more"),
    ("awq", {"qzeros": ("I32", ONES((1, 1)))}, r"qzeros has shape \[1, 1\], expected"),
    ("fp8", {"weight": ("I32", ONES((2, 2)))}, r"weight has dtype I32, expected F8_E4M3 or I8"),
    ("fp8", {"weight_scale": ("F32", ONES((5, 5)))}, r"weight_scale has shape \[5, 5\], expected"),
    ("fp8", {"weight_scale": None}, r"weight has dtype F8_E4M3, allowed: F32, BF16, F16"),
    ("fp8", {"weight_scale": ("I8", ONES(1))}, r"weight_scale has dtype I8, expected F32 or BF16"),
    ("packed of 4 bits", {"weight_scale": None}, r"missing tensors: .*weight_scale"),
    ("bitsandbytes", {"weight.absmax": None}, r"missing tensors: .*weight.absmax"),
    ("bitsandbytes", {"weight.nested_quant_map": None}, r"missing tensors: .*nested_quant_map"),
    ("int8", {"weight_zero_point": ("I8", ONES(1))}, r"weight_zero_point has shape \[1, 1\], exp"),
    (
        "packed with zero points",
        {"weight_scale": ("F32", ONES(1))},
        "weight_scale has one value, expected as many as weight_zero_point",
    ),
]


@pytest.mark.parametrize(("case", "damage", "words"), DAMAGES)
def test_damage_is_named(tmp_path: Path, case: str, damage: Damage, words: str) -> None:
    quantise, told = CASES[case]
    write_quantized(tmp_path / "m", changed(quantise, damage), told)
    with pytest.raises(ModelFolderError, match=words) as error:
        load_model(tmp_path / "m")
    assert str(tmp_path / "m") in str(error.value)


def test_a_group_that_is_none_is_named(tmp_path: Path) -> None:
    def quantise(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        parts, weight = gptq(4, 32)(shape, rng)
        return parts | {"g_idx": ("I32", np.full(shape[1], 2))}, weight

    write_quantized(tmp_path / "m", quantise, GPTQ)
    with pytest.raises(ModelFolderError, match=r"g_idx has values 2 to 2, expected 0 to [01]"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("state", "words"),
    [(b"no", "no JSON"), (b"[]", "no object"), (b"{}", "blocksize is missing")],
)
def test_a_state_that_says_nothing_is_named(tmp_path: Path, state: bytes, words: str) -> None:
    damage = {"weight.quant_state.bitsandbytes__nf4": ("U8", np.frombuffer(state, np.uint8))}
    quantise, told = CASES["bitsandbytes"]
    write_quantized(tmp_path / "m", changed(quantise, damage), told)
    with pytest.raises(ModelFolderError, match=words):
        load_model(tmp_path / "m")


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    quantise, told = CASES["fp8 in blocks"]

    def damaged(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        parts, weight = quantise(shape, rng)
        parts["weight"][1][3, 4] = 0x7F
        return parts, weight

    write_quantized(tmp_path / "m", damaged, told)
    name = r"model\.layers\.0\.mlp\.down_proj\.weight"
    with pytest.raises(ModelFolderError, match=f"{name} holds values that are not finite"):
        load_model(tmp_path / "m", quantization="int4")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"quant_method": "exl2"}, "quant_method is 'exl2', allowed: gptq, awq"),
        ({}, "quant_method is '', allowed: gptq"),
        (GPTQ | {"bits": 3}, "bits is 3, allowed: 2, 4, 8"),
        (GPTQ | {"bits": None}, "bits is None, allowed: 2, 4, 8"),
        (GPTQ | {"group_size": 0}, "group_size is 0, allowed: a positive"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', allowed: absent"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format is True, allowed: absent, False"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype is 'int16', allowed: absent, 'int32'"),
        (ROUND | {"data_type": "mx_fp"}, "data_type is 'mx_fp', allowed: absent, 'int'"),
        (GPTQ | {"format": "marlin"}, "format is 'marlin', allowed: absent"),
        (ROUND, "packing_format is None, allowed: 'auto_round:auto_gptq'"),
        (AWQ | {"version": "gemv"}, "version is 'gemv', allowed: absent, 'gemm'"),
        (AWQ | {"bits": 8}, "bits is 8, allowed: 4"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size is .128., allowed: two positive"),
        (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size is .0, 128."),
        (FP8 | {"weight_block_size": 128}, "weight_block_size is 128"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'"),
        (compressed("nvfp4-pack-quantized"), "format is 'nvfp4-pack-quantized'"),
        (compressed("int-quantized", num_bits=4), "group_0.weights.num_bits is 4, allowed: 8"),
        (compressed("int-quantized", strategy="token"), "strategy is 'token'"),
        (compressed("int-quantized") | {"config_groups": {}}, "config_groups is missing"),
        (compressed("int-quantized") | {"config_groups": None}, "config_groups is missing"),
        (compressed("int-quantized") | {"config_groups": {"a": {}}}, "a.weights is missing"),
        (compressed("int-quantized") | {"transform_config": {"a": 1}}, "transform_config is"),
        (compressed("dense"), "format is 'dense', allowed: 'pack-quantized'"),
        (
            compressed("int-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config.format is 'sparse-24-bitmask'",
        ),
        ({"quant_method": "bitsandbytes"}, "load_in_8bit is None, allowed: True"),
        ("int8", "quantization_config is 'int8', allowed: an object"),
    ],
)
def test_what_is_not_computed_is_named(tmp_path: Path, told: Any, words: str) -> None:
    with pytest.raises(ModelFolderError, match=words) as error:
        write_quantized(tmp_path / "m", CASES["gptq"][0], told)
    for word in (str(tmp_path / "m" / "config.json"), "quantization_config"):
        assert word in str(error.value)


def test_two_kinds_of_weights_are_named(tmp_path: Path) -> None:
    told = compressed("int-quantized")
    other = compressed("int-quantized", strategy="group", group_size=16)["config_groups"]
    told["config_groups"]["group_1"] = other["group_0"]
    with pytest.raises(ModelFolderError, match="config_groups is .*, allowed: groups of one kind"):
        write_quantized(tmp_path / "m", CASES["int8"][0], told)
