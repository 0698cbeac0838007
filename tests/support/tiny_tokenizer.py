"""A tiny byte-level BPE model folder: real formats, no downloads, no reference data needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN_TOKENS = ("<think>", "</think>", "<tool_call>")
WORDS = ("Hello", " world", " the", "ab", "abc", " stop", "aaa", "é", "你", "好", "😀", "\n\n")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MODEL_VOCAB_SIZE = 512
"""Larger than the tokenizer, as embeddings are padded."""


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    extra = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(extra)) for byte in range(256)]


def tiny_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocab and merges: all bytes, and each word built up from its left."""
    letters = byte_characters()
    vocabulary = {letter: byte for byte, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        left, *rest = [letters[byte] for byte in word.encode()]
        for right in rest:
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
            left += right
    return vocabulary, merges


def tiny_library() -> Tokenizer:
    """Return the tokenizer; ids 0 to 255 are the bytes themselves."""
    vocabulary, merges = tiny_vocabulary()
    library = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    library.normalizer = NFC()
    library.pre_tokenizer = Sequence(
        [
            Split(Regex(SPLIT), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = ByteLevelDecoder()
    library.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    library.add_tokens([AddedToken(t, normalized=False) for t in PLAIN_TOKENS])
    return library


def write_tiny_folder(folder: Path, with_tokenizer: bool = True, **generation: Any) -> Path:
    """Write a model folder without weights; `generation` goes to generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    library = tiny_library()
    eos = library.token_to_id("<|im_end|>")
    config = {"vocab_size": MODEL_VOCAB_SIZE, "eos_token_id": eos, "max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(config))
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if with_tokenizer:
        library.save(str(folder / "tokenizer.json"))
        words = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
