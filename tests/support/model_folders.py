"""Writes model folders of random weights: real layout, made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from worker.models.config import read_config
from worker.models.decoder import shapes
from worker.safetensors import SafetensorsFile

TINY: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 96,
}

WHOLE = {"I32": np.int32, "I8": np.int8, "U8": np.uint8, "F8_E4M3": np.uint8}
Tensors = dict[str, np.ndarray[Any, Any]]


def write_safetensors(path: Path, tensors: Tensors, dtype: str = "F32") -> None:
    """Write float32 arrays as one file of F32, F16 or BF16 (rounded to nearest even)."""
    write_raw(path, {name: (dtype, array) for name, array in tensors.items()})


def write_raw(path: Path, tensors: dict[str, tuple[str, np.ndarray[Any, Any]]]) -> None:
    """Write arrays as one file, each as a type of its own."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, array) in sorted(tensors.items()):
        raw = encoded(array, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def encoded(array: np.ndarray[Any, Any], dtype: str) -> bytes:
    """Return the little-endian bytes of an array as F32, F16 or BF16, or of whole numbers."""
    if dtype in WHOLE:
        return np.ascontiguousarray(array, WHOLE[dtype]).tobytes()
    values = np.ascontiguousarray(array, np.float32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    bits = values.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16).tobytes()


def without_prefix(folder: Path) -> Tensors:
    """Return the tensors of one file, named as in a base model saved by itself."""
    file = SafetensorsFile(folder / "model.safetensors")
    return {name.removeprefix("model."): file.read(name).copy() for name in file.tensors}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Return weights lively enough for distinct greedy choices; norms near 1."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in sorted(shapes.items()):
        noise = rng.standard_normal(shape).astype(np.float32)
        if "norm" in name:
            tensors[name] = (1 + 0.1 * noise).astype(np.float32)
        else:
            tensors[name] = noise * np.float32(0.3 if "embed" in name else 2 * shape[-1] ** -0.5)
    return tensors


def write_folder(folder: Path, seed: int = 0, num_shards: int = 1, **changes: Any) -> Path:
    """Write config.json and weights of TINY with `changes`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = TINY | changes
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    parsed = read_config(folder)
    wanted = shapes(parsed)
    tensors = random_tensors(wanted, seed)
    dtype = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[config["torch_dtype"]]
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
    else:
        write_shards(folder, tensors, dtype, num_shards)
    return folder


def write_shards(folder: Path, tensors: Tensors, dtype: str, num_shards: int) -> None:
    """Deal the tensors out to `num_shards` files and write their index."""
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        mine = names[shard::num_shards]
        write_safetensors(folder / file, {name: tensors[name] for name in mine}, dtype)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
