"""Writes a complete model folder of a few kilobytes: random Qwen2 weights and a byte tokenizer.

Same bytes on every machine. What it says is nonsense, and different for every prompt and seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 260,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, tokenizer: bool = True, max_model_len: int = 512) -> Path:
    """Write the folder and return it; without a tokenizer it knows token ids only."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "max_position_embeddings": max_model_len}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors", {"format": "pt"})
    if tokenizer:
        write_tokenizer(folder)
    return folder


def weights() -> dict[str, Any]:
    """Return random weights under Hugging Face's names."""
    random = np.random.default_rng(20_25)
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (260, hidden)}
    for index in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{layer}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
    drawn = {
        name: (random.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in shapes.items()
    }
    ones = np.ones(hidden, np.float32)
    norms = {"model.norm.weight": ones}
    for index in range(CONFIG["num_hidden_layers"]):
        norms[f"model.layers.{index}.input_layernorm.weight"] = ones
        norms[f"model.layers.{index}.post_attention_layernorm.weight"] = ones
    return drawn | norms


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
