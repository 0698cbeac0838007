"""model.safetensors of a GGUF file's tensors: names, the order of rotary rows, plain numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from common.model_folder import ModelFolderError

DTYPES = {
    "float32": ("F32", gguf.GGMLQuantizationType.F32),
    "float16": ("F16", gguf.GGMLQuantizationType.F16),
    "bfloat16": ("BF16", gguf.GGMLQuantizationType.BF16),
}
"""Name in config.json → in a safetensors header, and as the type of a GGUF tensor."""
OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
PIECE_VALUES = 1 << 24
"""How many numbers are in memory at once; a vocabulary's matrix has hundreds of millions."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to write: `source` as the file has it, rows first in `shape`."""

    name: str
    source: Any
    shape: tuple[int, ...]
    heads: int = 0
    """Of a matrix whose rows are sorted by pairs, as rotary positions are computed there."""


def renamed(tensors: Mapping[str, Any], rotated: Mapping[str, int]) -> list[Tensor]:
    """Return the tensors to write; raise ModelFolderError for one that no model here has.

    `rotated` gives the heads of those whose rows are sorted by pairs, by their name in a folder.
    """
    found = []
    for name, source in tensors.items():
        if name != ROPE_FACTORS:
            full = full_name(name)
            shape = tuple(int(size) for size in reversed(source.shape))
            found.append(Tensor(full, source, shape, rotated.get(full.split(".")[-2], 0)))
    return found


def full_name(name: str) -> str:
    """Return a tensor's name in a model folder; raise ModelFolderError for an unknown one."""
    path, _, kind = name.rpartition(".")
    block, _, inner = path.removeprefix("blk.").partition(".")
    if kind in ("weight", "bias"):
        if path in OUTER:
            return f"{OUTER[path]}.{kind}"
        if path.startswith("blk.") and block.isdecimal() and inner in LAYER:
            return f"model.layers.{int(block)}.{LAYER[inner]}.{kind}"
    raise ModelFolderError(f"tensor {name} is of no model here")


def write_safetensors(path: Path, tensors: list[Tensor], dtype: str) -> None:
    """Write the tensors, a piece at a time; raise ModelFolderError where `dtype` is too narrow."""
    name, kind = DTYPES[dtype]
    header, end = {}, 0
    for tensor in tensors:
        begin, end = end, end + num_bytes(tensor, dtype)
        header[tensor.name] = {
            "dtype": name, "shape": tensor.shape, "data_offsets": (begin, end),
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for numbers in pieces(tensor):
                with np.errstate(over="ignore"):  # told below
                    data = gguf.quantize(numbers, kind)
                if dtype == "float16" and not np.isfinite(data).all():
                    why = "has numbers beyond float16: ask for --dtype bfloat16 or float32"
                    raise ModelFolderError(f"tensor {tensor.name} {why}")
                file.write(data.tobytes())


def num_bytes(tensor: Tensor, dtype: str) -> int:
    """Return the bytes of a tensor in `dtype`."""
    return int(np.prod(tensor.shape)) * (4 if dtype == "float32" else 2)


def pieces(tensor: Tensor) -> Iterator[NDArray[np.float32]]:
    """Yield a tensor's rows as float32, in the order of a model folder."""
    data, kind = tensor.source.data, tensor.source.tensor_type
    together = len(data) // tensor.heads if tensor.heads else 1  # rows of a head stay together
    width = int(np.prod(tensor.shape[1:]))
    rows = max(1, PIECE_VALUES // (together * width)) * together
    for begin in range(0, len(data), rows):
        piece = data[begin : begin + rows]
        yield numbers_of(unsorted(piece, together) if tensor.heads else piece, kind)


def unsorted(rows: NDArray[Any], head_rows: int) -> NDArray[Any]:
    """Return the rows of each head as first halves, then second halves, from pair after pair."""
    pairs = rows.reshape(-1, head_rows // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def numbers_of(data: NDArray[Any], kind: gguf.GGMLQuantizationType) -> NDArray[np.float32]:
    """Return what the blocks mean, as float32; raise ModelFolderError for an unknown kind."""
    try:
        return np.asarray(gguf.dequantize(data, kind), np.float32)
    except NotImplementedError as error:
        raise ModelFolderError(f"tensors of type {kind.name} cannot be read") from error
