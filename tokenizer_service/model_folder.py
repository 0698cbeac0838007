"""Reads the text facts of a model folder in the Hugging Face layout: names, ids, defaults.

Knows file formats; knows neither tokenizer nor template engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
TOKEN_FIELDS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ModelFolderError(Exception):
    """The folder cannot be served; the message names the file."""


@dataclass(frozen=True)
class ModelFolder:
    """What the configuration files say; absent files leave the neutral values."""

    path: Path
    name: str
    created_s: int = 0
    vocab_size: int = 0
    """Rows of the model's embedding; may exceed the tokenizer's entries. 0 = unknown."""
    max_position_embeddings: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    sampling_defaults: Mapping[str, float] | None = None
    max_new_tokens: int | None = None
    token_texts: Mapping[str, str] | None = None
    """Texts of bos_token, eos_token … as templates see them."""
    templates: Mapping[str, str] | None = None
    """Chat templates by name; `default` unless the folder names others."""
    added_tokens: Mapping[int, Mapping[str, Any]] | None = None
    tokenizer_class: str = ""


def read_model_folder(path: Path, served_name: str = "") -> ModelFolder:
    """Read every file that is there; raise ModelFolderError for one that is not valid JSON."""
    if not path.is_dir():
        raise ModelFolderError(f"no model folder at {path}")
    config = read_json(path / "config.json")
    generation = read_json(path / "generation_config.json")
    tokenizer = read_json(path / "tokenizer_config.json")
    text_config = config.get("text_config") or config
    eos = generation.get("eos_token_id", text_config.get("eos_token_id"))
    return ModelFolder(
        path=path,
        name=served_name or path.resolve().name,
        created_s=int(path.stat().st_mtime),
        vocab_size=int(text_config.get("vocab_size") or 0),
        max_position_embeddings=int(text_config.get("max_position_embeddings") or 0),
        eos_token_ids=as_ids(eos),
        sampling_defaults=sampling_defaults(generation),
        max_new_tokens=generation.get("max_new_tokens"),
        token_texts={k: text for k in TOKEN_FIELDS if (text := token_text(tokenizer.get(k)))},
        templates=chat_templates(path, tokenizer.get("chat_template")),
        added_tokens={int(k): v for k, v in tokenizer.get("added_tokens_decoder", {}).items()},
        tokenizer_class=tokenizer.get("tokenizer_class", ""),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in `path`, empty when there is no such file."""
    if not path.exists():
        return {}
    try:
        content = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ModelFolderError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path} must hold a JSON object")
    return content


def as_ids(value: int | list[int] | None) -> frozenset[int]:
    """Return an id, a list of ids or null as a set."""
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])


def token_text(value: Any) -> str | None:
    """Return the text of a token that is written as a string or as an AddedToken object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling fields the folder sets; `do_sample: false` means temperature 0."""
    found = {k: generation[k] for k in SAMPLING_FIELDS if generation.get(k) is not None}
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def chat_templates(path: Path, configured: Any) -> dict[str, str]:
    """Return templates by name: chat_template.jinja first, else tokenizer_config.json's."""
    file = path / "chat_template.jinja"
    if file.exists():
        named = {f.stem: f.read_text("utf-8") for f in path.glob("additional_chat_templates/*")}
        return {**named, "default": file.read_text("utf-8")}
    if isinstance(configured, str):
        return {"default": configured}
    return {entry["name"]: entry["template"] for entry in configured or ()}
