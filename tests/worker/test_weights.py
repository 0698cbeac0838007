"""Damaged model folders: each error names the file and the tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.model_folder import ModelFolderError
from tests.support.model_folders import (
    encoded,
    without_prefix,
    write_folder,
    write_safetensors,
    write_shards,
)
from tests.worker.forward import alone
from worker.build import describe_folder, load_model
from worker.models.config import read_config
from worker.models.decoder import shapes
from worker.safetensors import SafetensorsFile
from worker.weights import FolderWeights

NORM = "model.norm.weight"


def rewrite(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Change the header of a safetensors file and leave its data."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def no_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickles(folder: Path) -> None:
    no_file(folder)
    (folder / "pytorch_model.bin").touch()


def gguf_file(folder: Path) -> None:
    no_file(folder)
    (folder / "it.gguf").touch()


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_the_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def header_too_long(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((10**9).to_bytes(8, "little") + b"{}")


def pointer_of_lfs(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"
    (folder / "model.safetensors").write_text(text)


def header_is_noise(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"\xff\xfe{}")


def endless_header(folder: Path) -> None:
    deep = b"[" * 100_000
    (folder / "model.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)


def endless_shape(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].update(shape=[float("inf")]))


def wrong_shape(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].update(shape=[4, 8]))


def size_does_not_fit_shape(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].update(shape=[31]))


def wrong_dtype(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].update(dtype="I64"))


def adapter_alone(folder: Path) -> None:
    no_file(folder)
    (folder / "adapter_config.json").touch()


def negative_offset(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].update(data_offsets=[-8, 120]))


def malformed_entry(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h[NORM].pop("shape"))


def missing_tensor(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h.pop(NORM))


def unexpected_tensor(folder: Path) -> None:
    rewrite(folder / "model.safetensors", lambda h: h.update({"model.extra": h[NORM]}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_file, ["model.safetensors", "neither"]),
        (pickles, ["neither", "but pytorch_model.bin: save its model anew as safetensors"]),
        (gguf_file, ["but it.gguf: make a folder of it with millrace convert"]),
        (adapter_alone, ["holds an adapter alone (adapter_config.json)"]),
        (truncated, ["model.safetensors", "tensor", "truncated"]),
        (cut_in_the_header, ["model.safetensors", "truncated"]),
        (empty, ["model.safetensors", "too few"]),
        (header_too_long, ["model.safetensors", "header", "100000000"]),
        (header_is_noise, ["model.safetensors", "JSON"]),
        (pointer_of_lfs, ["model.safetensors", "git lfs pull"]),
        (wrong_shape, ["model.safetensors", NORM, "[4, 8]", "[32]"]),
        (size_does_not_fit_shape, ["model.safetensors", NORM, "128 bytes"]),
        (wrong_dtype, ["model.safetensors", NORM, "I64", "BF16"]),
        (negative_offset, ["model.safetensors", NORM]),
        (malformed_entry, ["model.safetensors", NORM, "malformed"]),
        (endless_shape, ["model.safetensors", NORM, "malformed"]),
        (endless_header, ["model.safetensors", "JSON"]),
        (missing_tensor, ["missing", NORM]),
        (unexpected_tensor, ["unexpected", "model.extra"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], words: list[str]) -> None:
    folder = write_folder(tmp_path / "m")
    load_model(folder)
    damage(folder)
    with pytest.raises(ModelFolderError) as error:
        load_model(folder)
    for word in [str(folder), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("level", ["auto", "portable"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_quantising_hides_no_damage(
    tmp_path: Path, level: str, quantization: str, value: float
) -> None:
    folder = write_folder(tmp_path / "m")
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    file = SafetensorsFile(path)
    tensors = {one: file.read(one).copy() for one in file.tensors}
    tensors[name][5, 7] = value
    write_safetensors(path, tensors)
    with pytest.raises(ModelFolderError, match=f"{name} holds values that are not finite"):
        load_model(folder, quantization=quantization, kernel_level=level)


INDEX = "model.safetensors.index.json"


def test_what_wide_heads_need_is_told(tmp_path: Path) -> None:
    assert "kernel_level" not in describe_folder(write_folder(tmp_path / "m"))
    wide = write_folder(tmp_path / "n", head_dim=258)
    assert describe_folder(wide).endswith("heads of 258 need kernel_level reference")


def weights_of(folder: Path) -> FolderWeights:
    return FolderWeights(folder, shapes(read_config(folder)))


def test_one_file_counts_beside_an_index_of_before(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", num_shards=3)
    write_folder(tmp_path / "m", seed=1)
    again = write_folder(tmp_path / "n", seed=1)
    assert (folder / INDEX).exists()
    assert weights_of(folder).fingerprint() == weights_of(again).fingerprint()


def index_is_a_folder(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / INDEX).mkdir()


def endless_index(folder: Path) -> None:
    (folder / INDEX).write_text("[" * 100_000)


def shard_name_too_long(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {NORM: "x" * 5000}}))


def missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def shard_outside(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][NORM] = "../model.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def tensor_in_another_shard(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][NORM] = next(s for s in shards if s != index["weight_map"][NORM])
    (folder / INDEX).write_text(json.dumps(index))


def no_weight_map(folder: Path) -> None:
    (folder / INDEX).write_text('{"metadata": {}}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing_shard, [INDEX, "model-00002-of-00003.safetensors"]),
        (shard_outside, [INDEX, "../model.safetensors"]),
        (tensor_in_another_shard, [NORM, "missing", INDEX]),
        (no_weight_map, [INDEX, "weight_map"]),
        (index_is_a_folder, [INDEX, "cannot be read"]),
        (endless_index, [INDEX, "weight_map"]),
        (shard_name_too_long, ["xxx", "cannot be read"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damaged_shards(tmp_path: Path, damage: Callable[[Path], None], words: list[str]) -> None:
    folder = write_folder(tmp_path / "m", num_shards=3)
    load_model(folder)
    damage(folder)
    with pytest.raises(ModelFolderError) as error:
        load_model(folder)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_dtype_is_upcast_exactly(tmp_path: Path, dtype: str) -> None:
    values = np.array([[1.5, -0.25], [3.0e-5, 65_000.0]], np.float32)
    write_safetensors(tmp_path / "t.safetensors", {"odd": values[0, :1], "x": values}, dtype)
    file = SafetensorsFile(tmp_path / "t.safetensors")
    read = file.read("x")
    assert read.dtype == np.float32 and read.shape == (2, 2)
    np.testing.assert_allclose(read, values, rtol={"F32": 0, "F16": 2e-2, "BF16": 4e-3}[dtype])
    assert encoded(read, dtype) == encoded(values, dtype)


def test_a_tied_folder_may_repeat_its_head(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    rewrite(
        folder / "model.safetensors",
        lambda h: h.update({"lm_head.weight": h["model.embed_tokens.weight"]}),
    )
    load_model(folder)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_tied_folder_may_have_its_embedding_as_head_alone(
    tmp_path: Path, num_shards: int
) -> None:
    """As `safetensors.torch.save_model` writes it, and transformers 5 reads it."""
    whole = write_folder(tmp_path / "whole")
    folder = write_folder(tmp_path / "m")
    file = SafetensorsFile(folder / "model.safetensors")
    names = {name: name.replace("model.embed_tokens", "lm_head") for name in file.tensors}
    tensors = {names[name]: file.read(name).copy() for name in file.tensors}
    (folder / "model.safetensors").unlink()
    write_shards(folder, tensors, "F32", num_shards)
    config = json.loads((folder / "config.json").read_text())
    silent = {name: value for name, value in config.items() if name != "torch_dtype"}
    (folder / "config.json").write_text(json.dumps(silent))
    ids = list(range(20))
    np.testing.assert_array_equal(alone(load_model(folder), ids), alone(load_model(whole), ids))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelFolderError, match="missing tensors: model.embed_tokens.weight"):
        load_model(folder)


def test_a_head_that_was_widened_is_the_same_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", torch_dtype="bfloat16")
    path, base = folder / "model.safetensors", folder / "base.safetensors"
    file = SafetensorsFile(path)
    head = {"lm_head.weight": file.read("model.embed_tokens.weight")}
    write_safetensors(folder / "head.safetensors", head, "F32")
    homes = dict.fromkeys(file.tensors, base.name) | {"lm_head.weight": "head.safetensors"}
    path.rename(base)
    (folder / INDEX).write_text(json.dumps({"weight_map": homes}))
    load_model(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_config_that_does_not_say_goes_by_what_is_stored(tmp_path: Path, dtype: str) -> None:
    folder = write_folder(tmp_path / "m", torch_dtype=dtype)
    config = json.loads((folder / "config.json").read_text())
    told = load_model(folder).backend.fingerprint
    for silent in ({k: v for k, v in config.items() if k != "torch_dtype"},
                   config | {"torch_dtype": None}):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(silent))
        assert load_model(folder).backend.fingerprint == told


@pytest.mark.parametrize("name", ["rotary_emb", "layers.0.self_attn.rotary_emb"])
def test_tensors_that_say_nothing_new_may_have_any_type(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    rewrite(
        folder / "model.safetensors",
        lambda h: h.update({f"model.{name}.inv_freq": {**h[NORM], "dtype": "F64", "shape": [16]}}),
    )
    load_model(folder)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_tied_folder_with_a_head_of_its_own_is_refused(tmp_path: Path, num_shards: int) -> None:
    folder = write_folder(tmp_path / "m", num_shards=num_shards, tie_word_embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    for check in (load_model, describe_folder):
        with pytest.raises(ModelFolderError, match="lm_head.weight differs .* tie_word_embeddings"):
            check(folder)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("head", [False, True])
def test_a_base_model_saved_by_itself_has_shorter_names(
    tmp_path: Path, num_shards: int, head: bool
) -> None:
    whole = write_folder(tmp_path / "whole", tie_word_embeddings=not head)
    base = write_folder(
        tmp_path / "base", architectures=["Qwen2Model"], tie_word_embeddings=not head
    )
    tensors = without_prefix(base)
    write_safetensors(base / "model.safetensors", tensors)
    if num_shards > 1:
        (base / "model.safetensors").unlink()
        write_shards(base, tensors, "F32", num_shards)
    load_model(base)
    ours, theirs = weights_of(base), weights_of(whole)
    for name in (NORM, "model.layers.0.self_attn.q_proj.weight", *["lm_head.weight"] * head):
        np.testing.assert_array_equal(ours.read(name), theirs.read(name))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_untied_base_model_has_no_head(tmp_path: Path, num_shards: int) -> None:
    folder = write_folder(tmp_path / "m")
    tensors = without_prefix(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ModelFolderError, match="missing tensors: lm_head.weight"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    write_shards(folder, tensors, "F32", num_shards)
    assert not load_model(folder).facts(1 << 20).has_head
    assert "embeddings only" in describe_folder(folder)


def test_the_hash_tells_folders_apart(tmp_path: Path) -> None:
    def fingerprint(name: str, **changes: int) -> str:
        return weights_of(write_folder(tmp_path / name, **changes)).fingerprint()

    assert fingerprint("a") == fingerprint("b")
    assert len({fingerprint("a"), fingerprint("c", seed=1), fingerprint("d", vocab_size=97)}) == 3
