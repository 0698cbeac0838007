"""config.json: both spellings, defaults, and refusals that name file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_folders import TINY
from worker.errors import ModelFolderError
from worker.models.config import ModelConfig, read_config

REQUIRED = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "rms_norm_eps", "rope_theta",
]  # fmt: skip


def read(folder: Path, remove: str = "", **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in (TINY | changes).items() if key != remove}
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.head_dim, config.q_size, config.kv_size) == (8, 32, 16)
    assert config.rope_theta == 10000.0 and config.dtype == "float32"
    assert read(tmp_path, remove="num_key_value_heads").num_kv_heads == 4
    assert read(tmp_path, head_dim=32).q_size == 128
    assert read(tmp_path, head_dim=None).head_dim == 8


def test_both_spellings(tmp_path: Path) -> None:
    new = read(
        tmp_path,
        remove="rope_theta",
        dtype="bfloat16",
        rope_parameters={"rope_theta": 10000, "rope_type": "default"},
        layer_types=["full_attention"] * 2,
    )
    old = read(tmp_path, torch_dtype="bfloat16", rope_theta=10000, rope_scaling=None)
    assert new == old


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(ModelFolderError, match=f"config.json: field {field} is missing"):
        read(tmp_path, remove=field)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}},
        {"rope_scaling": "linear"},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "gptq"}},
        {"torch_dtype": "float8_e4m3fn"},
        {"num_key_value_heads": 3},
        {"vocab_size": "many"},
        {"hidden_size": 0},
        {"hidden_size": 33},
        {"head_dim": 7},
        {"rms_norm_eps": -1},
        {"architectures": ["A", "B"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_not_supported_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    field = next(iter(change)).replace("torch_dtype", "dtype")
    with pytest.raises(ModelFolderError, match=f"config.json: {field}"):
        read(tmp_path, **change)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="config.json: cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match="config.json: is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFolderError, match="config.json: expected an object"):
        read_config(tmp_path)


def test_published_configs(reference_data: Path) -> None:
    folders = [p for p in (reference_data / "models").iterdir() if (p / "config.json").exists()]
    configs = {}
    for folder in folders:
        if "Llama-3.2" not in folder.name:
            configs[folder.name] = read_config(folder)
    assert configs["Qwen2.5-0.5B-Instruct"].num_kv_heads == 2
    assert configs["DeepSeek-R1-Distill-Qwen-1.5B"].rope_theta == 10000.0
    assert configs["Qwen3-0.6B"].head_dim == 128
