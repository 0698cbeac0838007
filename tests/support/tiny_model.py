"""Writes a complete model folder of a few kilobytes: random Qwen2 weights and a byte tokenizer.

Same bytes on every machine. What it says is nonsense, and different for every prompt and seed.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.support.model_folders import TINY, write_folder

CONFIG = TINY | {"max_position_embeddings": 512, "vocab_size": 260, "eos_token_id": 257}
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, tokenizer: bool = True, max_model_len: int = 512) -> Path:
    """Write the folder and return it; without a tokenizer it knows token ids only."""
    write_folder(folder, **CONFIG | {"max_position_embeddings": max_model_len})
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one token per byte, and ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(BPE({char: index for index, char in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
