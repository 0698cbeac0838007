"""Writes GGUF files of model folders, as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.support.model_folders import Tensors

F32 = gguf.GGMLQuantizationType.F32


def write_gguf(
    folder: Path,
    path: Path,
    kind: gguf.GGMLQuantizationType = F32,
    dropped: tuple[str, ...] = (),
    more_tensors: Tensors | None = None,
    **metadata: Any,
) -> Path:
    """Write the folder's model (float32) and tokenizer; matrices become `kind`; return `path`.

    `metadata` is added or replaces what the folder says; None leaves a key out, `__` stands for a
    dot. `dropped` are tensors that are left out.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    given = {name.replace("__", "."): value for name, value in metadata.items()}
    told = {**architecture_metadata(config), **tokenizer_metadata(folder), **given}
    for name, value in told.items():
        add(writer, name, value)
    for name, array in gguf_tensors(folder, config).items():
        if name not in dropped:
            data = gguf.quantize(array, kind) if array.ndim > 1 else array
            writer.add_tensor(name, data, raw_dtype=kind if array.ndim > 1 else F32)
    for name, array in (more_tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """Add a key with the type that its value has; None adds nothing."""
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif value is not None:
        writer.add_array(name, value)


def architecture_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the converter writes of a config."""
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "vocab_size": config["vocab_size"],
        "attention.key_length": config.get("head_dim"),
    }
    return {f"{config['model_type']}.{name}": value for name, value in values.items()}


def tokenizer_metadata(folder: Path) -> dict[str, Any]:
    """Return a byte-level tokenizer of Qwen2's kind, as long as the model's vocabulary."""
    library = json.loads((folder / "tokenizer.json").read_text())
    told = json.loads((folder / "tokenizer_config.json").read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [int(gguf.TokenType.UNUSED)] * size
    for text, token_id in library["model"]["vocab"].items():
        tokens[token_id], types[token_id] = text, int(gguf.TokenType.NORMAL)
    for token in library["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], int(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [
            pair if isinstance(pair, str) else " ".join(pair) for pair in library["model"]["merges"]
        ],
        "tokenizer.ggml.eos_token_id": tokens.index(text_of(told["eos_token"])),
        "tokenizer.chat_template": told["chat_template"],
    }


def text_of(token: str | dict[str, str]) -> str:
    """Return the text of a token that is a string or an AddedToken."""
    return token if isinstance(token, str) else token["content"]


def gguf_tensors(folder: Path, config: dict[str, Any]) -> Tensors:
    """Return the tensors by the names that the package gives them, Llama's q and k by pairs."""
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == config["model_type"])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    found = {}
    for name, array in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        if config["model_type"] == "llama" and (field := heads.get(name.split(".")[-2])):
            array = by_pairs(array, config[field])
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return found


def by_pairs(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Return the rows of each head as (0, half, 1, half + 1, ...)."""
    size = len(array) // heads
    order = [h * size + i + part for h in range(heads) for i in range(size // 2)
             for part in (0, size // 2)]  # fmt: skip
    return np.ascontiguousarray(array[order])
