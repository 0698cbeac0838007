"""Reads the text facts of a model folder in the Hugging Face layout: names, ids, defaults.

Knows file formats; knows neither tokenizer nor template engines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.model_folder import Fields, ModelFolderError, read_object
from protos.common_pb2 import Pooling
from protos.limits import LIMITS, MAX_EOS_TOKEN_IDS, MAX_U32, violation
from tokenizer_service.pooling import pooling

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
TOKEN_FIELDS = (
    "bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token",
)  # fmt: skip
LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
"""Of these classes, where a folder names none."""
LAST_DATE_S = 253_402_300_799
"""The last second of the year 9999. A folder's time may be any number: of a broken archive, say."""


@dataclass(frozen=True)
class ModelFolder:
    """What the configuration files say; absent files leave the neutral values."""

    path: Path
    name: str
    aliases: tuple[str, ...]
    """Other names that clients may use."""
    created_s: int
    vocab_size: int
    """Rows of the model's embedding; may exceed the tokenizer's entries. 0 = unknown."""
    eos_token_ids: frozenset[int]
    sampling_defaults: Mapping[str, float]
    max_new_tokens: int | None
    token_texts: Mapping[str, str]
    """Texts of bos_token, eos_token … as templates see them."""
    templates: Mapping[str, str]
    """Chat templates by name; `default` unless the folder names others."""
    added_tokens: Mapping[int, Mapping[str, Any]]
    special_texts: tuple[str, ...]
    """Texts that are special tokens because they are named so, whatever tokenizer.json says."""
    tokenizer_class: str
    adds_ends: tuple[bool, bool] | None
    """Whether texts get the bos_token and the eos_token; None leaves it to tokenizer.json."""
    pooling: Pooling


def served_names(path: Path, told: str) -> list[str]:
    """Return the names a model goes by, first its id: its folder's, unless a comma list is told.

    A path that is told stands for the folder at its end: a compose file knows no other name. It is
    one name, as the folder's own is, commas and all.
    """
    if told.startswith(("/", "./", "../", "~")):
        return [Path(told).name]
    own = folder_name(path)
    names = [told] if told == own else [name.strip() for name in told.split(",")]
    return list(dict.fromkeys(filter(None, names))) or [own]


def folder_name(path: Path) -> str:
    """Return the name of a folder, links followed; a link in a circle is left to be refused.

    One in the Hugging Face hub's cache, models--owner--name/snapshots/hash, goes by owner/name.
    """
    real = Path(os.path.realpath(path))
    kind, *owner_and_name = real.parent.parent.name.split("--")
    if real.parent.name == "snapshots" and kind == "models" and owner_and_name:
        return "/".join(owner_and_name)
    return real.name


def read_model_folder(path: Path, served_name: str = "") -> ModelFolder:
    """Read every file that is there; raise ModelFolderError that names the file and the field."""
    if not path.is_dir():
        raise ModelFolderError(f"no model folder at {path}")
    config = read_object(path / "config.json", may_lack=True)
    generation = read_object(path / "generation_config.json", may_lack=True)
    tokenizer = read_object(path / "tokenizer_config.json", may_lack=True)
    text_config = config.inside("text_config") or config
    vocab_size = text_config.size("vocab_size", 0)
    name, *aliases = served_names(path, served_name)
    eos_home = text_config if generation.get("eos_token_id") is None else generation
    return ModelFolder(
        path=path,
        name=name,
        aliases=tuple(aliases),
        created_s=min(max(0, int(path.stat().st_mtime)), LAST_DATE_S),
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids(eos_home, vocab_size),
        sampling_defaults=sampling_defaults(generation),
        max_new_tokens=generation.size("max_new_tokens", 0) or None,
        token_texts=token_texts(path, tokenizer),
        templates=chat_templates(path, tokenizer),
        added_tokens=added_tokens(path, tokenizer),
        special_texts=special_texts(path, tokenizer),
        tokenizer_class=tokenizer.text("tokenizer_class"),
        adds_ends=adds_ends(tokenizer),
        pooling=pooling(path),
    )


def eos_token_ids(place: Fields, vocab_size: int) -> frozenset[int]:
    """Return the ids that end an answer: the folder names one, several or none."""
    value = place.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    highest = vocab_size or MAX_U32 + 1
    if len(ids) > MAX_EOS_TOKEN_IDS:
        raise place.error("eos_token_id", f"{len(ids)} ids", f"at most {MAX_EOS_TOKEN_IDS}")
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < highest:
            allowed = f"token ids from 0 to {highest - 1}, or null"
            raise place.error("eos_token_id", value, allowed)
    return frozenset(ids)


def token_texts(path: Path, tokenizer: Fields) -> dict[str, str]:
    """Return the texts of the named tokens, which older folders keep in a file of their own."""
    found = {name: token_text(tokenizer.get(name)) for name in TOKEN_FIELDS}
    if not tokenizer.has("added_tokens_decoder"):  # transformers goes by the same sign
        older = read_object(path / "special_tokens_map.json", may_lack=True)
        found.update(
            {name: token_text(older.get(name)) for name in TOKEN_FIELDS if older.has(name)}
        )
    for field in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(extra := tokenizer.get(field), dict):
            found |= {name: token_text(one) for name, one in extra.items() if not found.get(name)}
    if tokenizer.text("tokenizer_class") in LLAMA_CLASSES:
        named = {name for name in TOKEN_FIELDS if tokenizer.has(name)}
        found |= {k: text for k, text in LLAMA_TOKENS.items() if not found[k] and k not in named}
    return {name: text for name, text in found.items() if text}


def special_texts(path: Path, tokenizer: Fields) -> tuple[str, ...]:
    """Return the texts that are named as special; what a prompt is padded with is none of ours."""
    texts = token_texts(path, tokenizer)
    found = dict.fromkeys(text for name, text in texts.items() if name != "pad_token")
    for place in (tokenizer, read_object(path / "special_tokens_map.json", may_lack=True)):
        for field in ("additional_special_tokens", "extra_special_tokens"):
            if isinstance(listed := place.get(field), list):
                found |= dict.fromkeys(text for one in listed if (text := token_text(one)))
    return tuple(found)


def adds_ends(tokenizer: Fields) -> tuple[bool, bool] | None:
    """Return what the folder says of both ends of a text, if it says it and its class obeys.

    transformers 4 makes a new post-processor for these classes: published folders, as of
    DeepSeek-R1-Distill-Qwen, have none in tokenizer.json that would add the bos_token.
    """
    is_told = tokenizer.has("add_bos_token") or tokenizer.has("add_eos_token")
    if tokenizer.text("tokenizer_class") not in LLAMA_CLASSES or not is_told:
        return None
    return tokenizer.flag("add_bos_token", True), tokenizer.flag("add_eos_token", False)


def token_text(value: Any) -> str | None:
    """Return the text of a token that is written as a string or as an AddedToken object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def sampling_defaults(generation: Fields) -> dict[str, float]:
    """Return the sampling fields the folder sets; `do_sample: false` means temperature 0."""
    found: dict[str, float] = {}
    for name in SAMPLING_FIELDS:
        value = generation.get(name)
        if value is None:
            continue
        if name == "top_k" and value == -1:
            value = 0  # both say: all
        if isinstance(value, bool) or not isinstance(value, int | float) or violation(name, value):
            low, high = LIMITS[name]
            raise generation.error(name, value, f"a number from {low} to {high}")
        found[name] = int(value) if name == "top_k" else value
    if not generation.flag("do_sample", True):
        found["temperature"] = 0.0
    return found


def added_tokens(path: Path, tokenizer: Fields) -> dict[int, Mapping[str, Any]]:
    """Return the tokens beside the vocabulary by id, which older folders keep in a file."""
    place = tokenizer.inside("added_tokens_decoder")
    if place is None:
        return older_added_tokens(path, tokenizer)
    found = {name: place.get(name) for name in place.names()}
    for name, token in found.items():
        if not name.isdecimal() or not token_text(token) or not isinstance(token, dict):
            raise tokenizer.error(f"added_tokens_decoder.{name}", token, "an id with its content")
    return {int(name): token for name, token in found.items()}


def older_added_tokens(path: Path, tokenizer: Fields) -> dict[int, Mapping[str, Any]]:
    """Return the tokens of added_tokens.json; two other files name the special ones."""
    place = read_object(path / "added_tokens.json", may_lack=True)
    special: set[str | None] = set()
    for named in (tokenizer, read_object(path / "special_tokens_map.json", may_lack=True)):
        special |= {token_text(named.get(name)) for name in TOKEN_FIELDS}
        more = named.get("additional_special_tokens")
        special |= {token_text(one) for one in more} if isinstance(more, list | dict) else set()
    found: dict[int, Mapping[str, Any]] = {}
    for text in place.names():
        number = place.get(text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise place.error(text, number, "a token's id")
        found[number] = {"content": text, "special": text in special}
    return found


def chat_templates(path: Path, tokenizer: Fields) -> dict[str, str]:
    """Return templates by name: chat_template.jinja first, else tokenizer_config.json's."""
    file = path / "chat_template.jinja"
    if file.exists():
        named = {f.stem: read_text(f) for f in path.glob("additional_chat_templates/*.jinja")}
        return {**named, "default": read_text(file)}
    configured = tokenizer.get("chat_template")
    if isinstance(configured, str):
        return {"default": configured}
    try:
        found = {entry["name"]: entry["template"] for entry in configured or ()}
        if all(isinstance(text, str) for text in (*found, *found.values())):
            return found
    except (TypeError, KeyError):
        pass
    allowed = "a string, or a list of objects with name and template"
    raise tokenizer.error("chat_template", configured, allowed)


def read_text(path: Path) -> str:
    """Return the text of a file; raise ModelFolderError that names it."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{path}: cannot be read as UTF-8 text: {error}") from error
