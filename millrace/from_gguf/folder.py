"""A model folder of a GGUF file: every file of it, checked before the first weight is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from common.model_folder import ModelFolderError
from millrace.from_gguf import config, tensors, tokenizer
from millrace.from_gguf.file import GgufFile
from millrace.from_gguf.tensors import Tensor
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.tokenizer import load_tokenizer
from worker.models.config import read_config
from worker.models.decoder import shapes

TABLE = "token_embd.weight"
DTYPE_OF = {"F32": "float32", "F16": "float16"}
"""Of the embedding's type; what is quantised becomes bfloat16."""


def make_folder(path: Path, folder: Path, dtype: str = "auto") -> int:
    """Write `folder`, which holds nothing yet; return the bytes of its weights.

    Raises ModelFolderError for a file that cannot be served, and when the disk is too small.
    """
    source = GgufFile(path)
    architecture = config.architecture_of(source.fields)
    if TABLE not in source.tensors:
        raise ModelFolderError(f"{path}: tensor {TABLE} is missing")
    if dtype == "auto":
        dtype = DTYPE_OF.get(source.tensors[TABLE].tensor_type.name, "bfloat16")
    _write(folder / "config.json", {**_config(source, architecture), "torch_dtype": dtype})
    renamed = tensors.renamed(source.tensors, _rotated(source, architecture))
    _check_shapes(folder, renamed)
    _write_text_files(source, folder)
    num_bytes = sum(tensors.num_bytes(one, dtype) for one in renamed)
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        raise ModelFolderError(f"{folder}: {num_bytes} bytes are needed, the disk has {free} free")
    tensors.write_safetensors(folder / "model.safetensors", renamed, dtype)
    return num_bytes


def _config(source: GgufFile, architecture: str) -> dict[str, Any]:
    factors = source.tensors.get(tensors.ROPE_FACTORS)
    return config.config(
        architecture,
        source.of_architecture(architecture),
        source.tensors.keys(),
        vocab_size=int(source.tensors[TABLE].shape[-1]),
        rope_factors=None if factors is None else np.asarray(factors.data, np.float32),
    )


def _rotated(source: GgufFile, architecture: str) -> dict[str, int]:
    """Return the heads of the matrices that llama.cpp sorts by pairs: Llama's q and k."""
    if architecture != "llama":
        return {}
    fields = source.of_architecture(architecture)
    num_heads = fields.size("attention.head_count")
    return {"q_proj": num_heads, "k_proj": fields.size("attention.head_count_kv", num_heads)}


def _check_shapes(folder: Path, found: Collection[Tensor]) -> None:
    expected, actual = shapes(read_config(folder)), {one.name: one.shape for one in found}
    if missing := sorted(expected.keys() - actual.keys()):
        raise ModelFolderError(f"{len(missing)} tensors are missing, first {missing[0]}")
    for name, shape in actual.items():
        if shape != expected.get(name):
            allowed = "absent" if name not in expected else list(expected[name])
            raise ModelFolderError(f"tensor {name} has shape {list(shape)}, allowed: {allowed}")


def _write_text_files(source: GgufFile, folder: Path) -> None:
    """Write how the model reads and ends, and load it as a server would."""
    fields = source.fields
    ends = tokenizer.eos_token_ids(fields)
    _write(folder / "generation_config.json", config.generation_config(fields, ends))
    _write(folder / "tokenizer.json", tokenizer.tokenizer(fields))
    templates = source.chat_templates()
    _write(folder / "tokenizer_config.json", tokenizer.tokenizer_config(fields, templates))
    load_tokenizer(read_model_folder(folder))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
