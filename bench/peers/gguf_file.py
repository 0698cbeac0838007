"""A Qwen2 checkpoint as a GGUF file, through the `gguf` package. Runs in the peer's interpreter.

Names and metadata follow the GGUF conventions that the package carries. The file has no tokenizer:
the benchmark speaks in ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_gguf(folder: Path, path: Path) -> None:
    """Write `model.safetensors` (bfloat16) of the folder; matrices stay bfloat16, vectors widen."""
    config = json.loads((folder / "config.json").read_text())
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen2")
    _describe(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    for name, bits in _tensors(folder / "model.safetensors"):
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ValueError(f"{name}: no GGUF name is known for it")
        if bits.ndim == 1:
            writer.add_tensor(known, (bits.astype("<u4") << 16).view("<f4"))
        else:
            bf16 = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(known, bits.view(np.uint8), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _tensors(path: Path) -> list[tuple[str, Any]]:
    """Return every tensor as uint16, mapped, not read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", 8 + length)
    header.pop("__metadata__", None)
    return [
        (name, data[slice(*entry["data_offsets"])].view("<u2").reshape(entry["shape"]))
        for name, entry in header.items()
    ]
