"""What of a tokenizer.json is taken away before llguidance reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from protos import common_pb2
from tests.support.tiny_tokenizer import tiny_library
from worker.grammar import Grammars
from worker.tokenizer_json import verbatim


def test_of_the_normalizers_only_the_vocabularys_spelling_stays() -> None:
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    for given, kept in (
        (None, None),
        ({"type": "NFKC"}, None),
        (blanks, blanks),
        ({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}, None),
        (
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, blanks]},
            {"type": "Sequence", "normalizers": [blanks]},
        ),
    ):
        told = {"version": "1.0", "normalizer": given, "model": {"vocab": {"a": 0}}}
        assert json.loads(verbatim(json.dumps(told))) == {**told, "normalizer": kept}


BLANK = "\u2581"


def sentencepiece(
    normalizer: Any = None, pre_tokenizer: Any = None, decoder: Any = None
) -> Library:
    """Return a tokenizer of single characters and a few words, with bytes for all others."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    merges = [("t", "h"), ("th", "e"), (BLANK, "the"), (BLANK, BLANK)]
    for piece in (*"abcdefghijklmnopqrstuvwxyz", BLANK, *map("".join, merges)):
        vocab.setdefault(piece, len(vocab))
    library = Library(BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizer
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    library.decoder = decoder or decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


def padded() -> Library:
    library = tiny_library()
    library.enable_padding(length=16)
    library.enable_truncation(8)
    return library


LLAMA = [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
MANY_BLANKS = normalizers.Replace(Regex(" {2,}"), " ")
METASPACE = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
KINDS = {
    "padded": padded(),
    "llama": sentencepiece(normalizers.Sequence(LLAMA)),
    "many blanks": sentencepiece(normalizers.Sequence([MANY_BLANKS, *LLAMA])),
    "metaspace": sentencepiece(pre_tokenizer=pre_tokenizers.Metaspace()),
    "metaspace decoder": sentencepiece(normalizers.Sequence(LLAMA), decoder=METASPACE),
}
OLD_METASPACE = ('"prepend_scheme":"always"', '"prepend_scheme":"always","add_prefix_space":true')


@pytest.mark.parametrize("kind", KINDS)
def test_forced_text_comes_as_it_is_asked_for(kind: str, tmp_path: Path) -> None:
    """On tokenizers that pad, put a blank before a text, or write blanks as another character."""
    library = KINDS[kind]
    written = library.to_str()
    for change in ((), OLD_METASPACE):
        path = tmp_path / f"{bool(change)}.json"
        path.write_text(written.replace(*change) if change else written)
        grammars = Grammars(path, library.get_vocab_size())
        stop = library.token_to_id("</s>") or library.token_to_id("<|im_end|>")
        for word in ("the cat", " the", "a  b", "caf\u00e9 \u6f22", "a\u2581b"):
            rule = common_pb2.Grammar(kind="CHOICE", text=json.dumps([word]))
            follower = grammars.follow(rule, np.array([stop]))
            ids: list[int] = []
            while (allowed := follower.allowed(np.array(ids, np.int32)))[-1] != stop:
                ids.append(int(allowed[-1]))
            tokens = ["t", *map(library.id_to_token, ids)]  # a blank at the begin would be lost
            shown = library.decoder.decode(tokens)
            assert shown == "t" + (word.replace(BLANK, " ") if "decoder" in kind else word)
