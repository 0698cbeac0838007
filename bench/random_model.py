"""Model folders of real shapes with random weights: speed does not depend on the values.

`python -m bench.random_model qwen2-1.5b DIR` writes config.json and model.safetensors, bfloat16, at
the speed of the disk: one block of random values is written over and over, from another place for
each tensor, because a peer would store equal tensors once.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from worker.models.config import read_config
from worker.models.decoder import shapes

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-0.5b": QWEN2
    | {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "qwen2-1.5b": QWEN2
    | {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": False,
    },
    "qwen2-7b": QWEN2
    | {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "tiny": QWEN2
    | {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
    },
}  # fmt: skip
BLOCK_VALUES = 1 << 23
STRIDE = 12_345_679
"""Odd, so that the first tensors begin in as many places as there are tensors."""
WEIGHT_SCALE = 0.02


def main() -> None:
    """Read the command line and write one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(write_random_model(args.folder, args.shape))


def write_random_model(folder: Path, shape: str) -> Path:
    """Write the folder unless it is there; return it."""
    target = folder / "model.safetensors"
    if target.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[shape], indent=2))
    config = read_config(folder)
    tensors = shapes(config)
    offset, header = 0, {}
    for name, sizes in tensors.items():
        end = offset + 2 * math.prod(sizes)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 64 + 56)  # the data begin at a multiple of 64
    partial = folder / "model.partial"
    with partial.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for number, (name, sizes) in enumerate(tensors.items()):
            _write(file, name, number, math.prod(sizes))
    partial.rename(target)
    return folder


def _write(file: BinaryIO, name: str, number: int, count: int) -> None:
    if name.endswith("norm.weight"):
        file.write(np.full(count, 0x3F80, "<u2").tobytes())  # ones
        return
    block, first = _block(), number * STRIDE % BLOCK_VALUES
    while count > 0:
        values = block[first : first + count]
        file.write(values.data)
        count -= len(values)
        first = 0


@cache
def _block() -> np.ndarray[Any, np.dtype[np.uint16]]:
    values = np.random.default_rng(0).standard_normal(BLOCK_VALUES, np.float32) * WEIGHT_SCALE
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


if __name__ == "__main__":
    main()
