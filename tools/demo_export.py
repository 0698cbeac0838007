"""Writes and reads the demo model as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tools.demo_network import DemoNetwork, Shape
from tools.demo_tokenizer import CHAT_TEMPLATE, END_OF_TEXT, IM_END, SPECIAL_TOKENS, token_id


def export(network: DemoNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes weights in bfloat16, tokenizer, template and configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"model.{name}": weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in network.named_parameters()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors writes for the owner alone; a container's user must read it too.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    ids = {token: token_id(tokenizer, token) for token in SPECIAL_TOKENS}
    _write(folder / "config.json", _config(network.shape, ids))
    _write(folder / "tokenizer_config.json", _tokenizer_config(network.shape, ids))
    _write(
        folder / "generation_config.json",
        {
            "bos_token_id": ids[END_OF_TEXT],
            "pad_token_id": ids[END_OF_TEXT],
            "eos_token_id": [ids[IM_END], ids[END_OF_TEXT]],
            "do_sample": False,
            "temperature": 0.0,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def load_network(folder: Path) -> tuple[DemoNetwork, Tokenizer]:
    """Reads an exported folder back; the weights are the rounded ones, computed in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        vocab_size=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )
    network = DemoNetwork(shape)
    weights = load_file(folder / "model.safetensors")
    network.load_state_dict({name.removeprefix("model."): w.float() for name, w in weights.items()})
    return network, Tokenizer.from_file(str(folder / "tokenizer.json"))


def _config(shape: Shape, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[IM_END],
    }


def _tokenizer_config(shape: Shape, ids: dict[str, int]) -> dict[str, Any]:
    added = {
        str(number): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token, number in ids.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
