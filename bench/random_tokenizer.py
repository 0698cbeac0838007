"""A tokenizer for a random model: every id of its vocabulary reads as a word of its own.

Made, not stored. The first ids are single bytes, so that any text can be encoded; the last one ends
a text. Words are plain letters, so that every token of a stream has text to show at once.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = "Ġ"
"""A space in the alphabet of byte-level vocabularies."""
END = "<|endoftext|>"


def write_random_tokenizer(folder: Path) -> None:
    """Write tokenizer.json beside the config.json of `folder`, unless it is there."""
    target = folder / "tokenizer.json"
    if target.exists():
        return
    size = int(json.loads((folder / "config.json").read_bytes())["vocab_size"])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [SPACE + word(number) for number in range(size - len(alphabet) - 1)]
    vocabulary = {text: index for index, text in enumerate([*alphabet, *words])}
    library = Tokenizer(BPE(vocabulary, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(END, special=True)])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    library.save(str(target))


def word(number: int) -> str:
    """Return the letters of `number`; at least two, so that it is no token of one byte."""
    text = ""
    while number or len(text) < 2:
        number, place = divmod(number, len(LETTERS))
        text += LETTERS[place]
    return text
