"""config.json: both spellings, defaults, and refusals that name file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.model_folder import ModelFolderError
from tests.support.model_folders import TINY
from worker.models.config import ModelConfig, read_config

TYPES = ["full_attention", "sliding_attention"]
REQUIRED = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "rms_norm_eps",
]  # fmt: skip


def read(folder: Path, remove: str = "", **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in (TINY | changes).items() if key != remove}
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.head_dim, config.q_size, config.kv_size) == (8, 32, 16)
    assert config.rope.inverse_frequencies == pytest.approx((1.0, 0.1, 0.01, 0.001), rel=1e-6)
    assert config.rope == read(tmp_path, remove="rope_theta").rope
    assert config.windows == (0, 0) and config.dtype == "float32"
    assert read(tmp_path, remove="torch_dtype").dtype == ""
    assert read(tmp_path, remove="num_key_value_heads").num_kv_heads == 4
    assert read(tmp_path, head_dim=32).q_size == 128
    assert read(tmp_path, head_dim=None).head_dim == 8
    assert read(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert read(tmp_path, hidden_act="swish") == read(tmp_path, hidden_act=None) == config


def test_another_architecture_is_named_before_its_fields(tmp_path: Path) -> None:
    """Folders of other families name their sizes otherwise, or in a place of their own."""
    told = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": TINY}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(ModelFolderError, match="architectures is 'Qwen2_5_VL.*allowed: Llama"):
        read_config(tmp_path)


def test_an_adapter_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelFolderError, match="holds an adapter alone"):
        read_config(tmp_path)
    assert read(tmp_path).vocab_size == 96, "one beside a model is of no account"


@pytest.mark.parametrize(
    ("theta", "head_dim", "of_torch"),
    [
        (500000.0, 80, {1: 0.720320463180542, 5: 0.193922758102417, 11: 0.027088390663266182}),
        (1000000.0, 128, {1: 0.8058422207832336, 11: 0.09305720031261444}),
        (10000.0, 64, {1: 0.7498942017555237, 31: 0.0001333521504420787}),
    ],
)
def test_frequencies_round_as_those_of_the_source(
    tmp_path: Path, theta: float, head_dim: int, of_torch: dict[int, float]
) -> None:
    """transformers computes them in float32: a position of 12000 times the last bits is seen."""
    found = read(tmp_path, rope_theta=theta, head_dim=head_dim).rope.inverse_frequencies
    assert {place: found[place] for place in of_torch} == of_torch


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
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"layer_types": TYPES, "sliding_window": 8},
        {"layer_types": TYPES, "sliding_window": 8, "use_sliding_window": False},
        {"use_mrope": True},
        {"is_causal": False},
        {"partial_rotary_factor": 0.5},
        {"num_experts": 8},
        {"rope_theta": 1.0},
        {"rope_scaling": "linear"},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "exl2"}},
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
    field = next(iter(change))
    with pytest.raises(ModelFolderError, match=f"config.json: {field}"):
        read(tmp_path, **change)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_two_places_of_the_rope_may_not_say_different_things(tmp_path: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 10000}
    with pytest.raises(ModelFolderError, match=r"config.json: rope_scaling is .* absent beside"):
        read(tmp_path, rope_parameters=plain, rope_scaling=YARN)
    once = read(tmp_path, rope_parameters=YARN)
    assert read(tmp_path, rope_parameters=YARN, rope_scaling=YARN) == once
    assert read(tmp_path, rope_parameters=YARN, rope_scaling={}) == once
    assert read(tmp_path, rope_parameters={}, rope_scaling=YARN) == once


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"torch_dtype": "float64"}, "torch_dtype is 'float64'"),
        ({"torch_dtype": None, "dtype": "float64"}, ": dtype is 'float64'"),
        ({"hidden_size": 10**400}, "allowed: a positive integer below"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers is 100000000, allowed: at most"),
        ({"hidden_size": 2**30}, "head_dim is 268435456, allowed: an even number, at most 16384"),
        ({"rope_theta": 10**400}, "allowed: a positive number below"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFolderError, match=words):
        read(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"use_sliding_window": True, "max_window_layers": 1}, "sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 8}, "max_window_layers"),
        ({"layer_types": TYPES, "use_sliding_window": True}, "sliding_window"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
    ],
)
def test_what_is_asked_for_by_half_is_named(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelFolderError, match=f"config.json: field {field} is missing"):
        read(tmp_path, **change)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"type": "dynamic", "factor": 2.0}, "type"),
        ({"rope_type": "longrope", "factor": 2.0, "long_factor": [1.0]}, "rope_type"),
        ({"rope_type": ["yarn"]}, "rope_type"),
        ({"type": "linear", "factor": 0}, "factor"),
        ({"type": "linear", "factor": float("inf")}, "factor"),
        ({"type": "default", "mrope_section": [1, 1, 2]}, "mrope_section"),
        ({"type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
        (
            {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
             "original_max_position_embeddings": 64}, "high_freq_factor",
        ),
    ],
)  # fmt: skip
def test_a_rope_that_is_not_computed_is_named(
    tmp_path: Path, scaling: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelFolderError, match=rf"config.json: rope_scaling\.{field} is"):
        read(tmp_path, rope_scaling=scaling)


def test_windows(tmp_path: Path) -> None:
    old = {"use_sliding_window": True, "sliding_window": 8}
    assert read(tmp_path, **old, max_window_layers=1).windows == (0, 8)
    assert read(tmp_path, **old, max_window_layers=0).windows == (8, 8)
    assert read(tmp_path, **old, max_window_layers=9).windows == (0, 0)
    assert read(tmp_path, sliding_window=8, max_window_layers=0).windows == (0, 0)
    nothing = {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
    assert read(tmp_path, **nothing).windows == (0, 0)
    kinds = ["sliding_attention", "full_attention"]
    assert read(tmp_path, layer_types=kinds, **old).windows == (8, 0)
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert read(tmp_path, **mistral, sliding_window=4).windows == (4, 4)
    assert read(tmp_path, **mistral, sliding_window=None).windows == (0, 0)
    assert read(tmp_path, **mistral).windows == (4096, 4096)


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_layers_that_are_all_alike_may_say_so_and_nothing_else(tmp_path: Path, family: str) -> None:
    changes = {"architectures": [f"{family}ForCausalLM"], "sliding_window": 8}
    plain = read(tmp_path, **changes)
    same, other = ("sliding", "full") if family == "Mistral" else ("full", "sliding")
    assert read(tmp_path, **changes, layer_types=[f"{same}_attention"] * 2) == plain
    for kinds in ([f"{other}_attention"] * 2, TYPES):
        with pytest.raises(ModelFolderError, match=f"layer_types is .* absent, or 2 of {same}_"):
            read(tmp_path, **changes, layer_types=kinds)


def test_a_family_without_windows_is_not_asked_for_one(tmp_path: Path) -> None:
    llama = {"architectures": ["LlamaForCausalLM"], "sliding_window": 8, "max_window_layers": 0}
    assert read(tmp_path, **llama).windows == (0, 0)
    with pytest.raises(ModelFolderError, match="config.json: use_sliding_window is True"):
        read(tmp_path, **llama, use_sliding_window=True)


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_the_length_before_the_scaling_may_stand_beside_it(tmp_path: Path, kind: str) -> None:
    field, ramp = "original_max_position_embeddings", {"low_freq_factor": 1, "high_freq_factor": 4}
    scaling = {"rope_type": kind, "factor": 4.0} | (ramp if kind == "llama3" else {})
    inside = read(tmp_path, rope_scaling=scaling | {field: 64})
    assert read(tmp_path, rope_scaling=scaling, **{field: 64}) == inside
    assert read(tmp_path, rope_scaling=scaling | {field: 64}, **{field: 64}) == inside
    with pytest.raises(ModelFolderError, match=f"config.json: {field} is 32, allowed: absent, or"):
        read(tmp_path, rope_scaling=scaling | {field: 64}, **{field: 32})


def test_a_truncate_of_null_is_no(tmp_path: Path) -> None:
    null, no = (read(tmp_path, rope_scaling=YARN | {"truncate": one}) for one in (None, False))
    assert null == no != read(tmp_path, rope_scaling=YARN)


def test_a_ramp_of_yarn_may_end_behind_the_last_pair(tmp_path: Path) -> None:
    theta = {"rope_theta": 100.0}
    yarn = YARN | theta | {"original_max_position_embeddings": 4096}
    plain = read(tmp_path, **theta).rope.inverse_frequencies
    scaled = read(tmp_path, rope_scaling=yarn).rope.inverse_frequencies
    assert plain[-1] / 4 < scaled[-1] < plain[-1], "the source ends it at the width of a head"


def test_a_weight_of_the_attention_factor(tmp_path: Path) -> None:
    """As published: DeepSeek-R1-0528-Qwen3-8B takes the factor of yarn back."""
    deepseek = YARN | {"attn_factor": 0.8782488562869419}
    plain, taken_back = (read(tmp_path, rope_scaling=one).rope for one in (YARN, deepseek))
    assert plain.attention_factor == pytest.approx(1.1386, abs=1e-4)
    assert taken_back.attention_factor == pytest.approx(1.0, abs=1e-12)
    assert taken_back.inverse_frequencies == plain.inverse_frequencies
    with pytest.raises(ModelFolderError, match="attn_factor is .* absent beside attention_factor"):
        read(tmp_path, rope_scaling=deepseek | {"attention_factor": 1.0})


def test_a_yarn_that_was_trained_on(tmp_path: Path) -> None:
    """As published: Yarn-Llama-2-7b-64k, Yarn-Mistral-7b-128k."""
    plain = read(tmp_path, rope_scaling=YARN)
    assert read(tmp_path, rope_scaling=YARN | {"finetuned": True}) == plain


def test_linear_reaches_further_than_the_model_was_trained(tmp_path: Path) -> None:
    linear = {"type": "linear", "factor": 4.0}
    trained = read(tmp_path).max_position_embeddings
    assert read(tmp_path, rope_scaling=linear).max_position_embeddings == 4 * trained
    told = linear | {"original_max_position_embeddings": trained // 2}
    assert read(tmp_path, rope_scaling=told).max_position_embeddings == 2 * trained


def test_yarn_reaches_further_than_the_model_was_trained(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert read(tmp_path, rope_scaling=yarn).max_position_embeddings == 1024
    assert read(tmp_path, rope_scaling=yarn | {"factor": 0.5}).max_position_embeddings == 256


def test_attention_by_two_chunks_is_served_as_far_as_it_is_plain(tmp_path: Path) -> None:
    """As published: Qwen2.5-7B-Instruct-1M reaches 1,010,000 that way, and 262,144 without."""
    trained = read(tmp_path).max_position_embeddings
    chunks = {"chunk_size": trained // 4, "local_size": 8}
    told = chunks | {"original_max_position_embeddings": trained // 4}
    shorter = read(tmp_path, dual_chunk_attention_config=told)
    assert shorter.max_position_embeddings == trained // 4
    assert read(tmp_path, dual_chunk_attention_config=None).max_position_embeddings == trained
    with pytest.raises(ModelFolderError, match="chunk_attention_config.original_max.* missing"):
        read(tmp_path, dual_chunk_attention_config=chunks)


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
    configs = {folder.name: read_config(folder) for folder in folders}
    assert configs["Qwen2.5-0.5B-Instruct"].num_kv_heads == 2
    deepseek = configs["DeepSeek-R1-Distill-Qwen-1.5B"].rope.inverse_frequencies
    assert deepseek[32] == pytest.approx(0.01, rel=1e-6)
    assert configs["Qwen3-0.6B"].head_dim == 128
    llama = configs["Llama-3.2-1B"].rope.inverse_frequencies
    assert llama[0] == 1.0 and llama[-1] == pytest.approx(500000 ** (-62 / 64) / 32, rel=1e-6)
