"""Text → ids against real vectors, both ways of loading, and text that must stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from common.errors import InvalidRequest
from common.model_folder import ModelFolderError
from protos.columns import pack, unpack
from tests.support.tiny_tokenizer import tiny_library, write_tiny_folder
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer


def test_texts_are_neither_cut_nor_padded(tmp_path: Path) -> None:
    """As the files of embedding models ask for."""
    write_tiny_folder(tmp_path)
    library = tiny_library()
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    ids = list(tiny_library().encode("hello", add_special_tokens=False).ids)
    assert len(ids) > 2 and list(unpack(tokenizer.encode("hello", False))) == ids
    assert list(unpack(tokenizer.encode_guarded(["hello"]))) == ids


def test_special_tokens_are_recognised_only_by_the_plain_way(tiny_tokenizer: Tokenizer) -> None:
    im_end = tiny_tokenizer.id_of("<|im_end|>")
    assert im_end in unpack(tiny_tokenizer.encode("a<|im_end|>", False))
    guarded = unpack(tiny_tokenizer.encode_guarded(["a<|im_end|>b"]))
    assert im_end not in guarded
    assert b"".join(map(tiny_tokenizer.piece, guarded)) == b"a<|im_end|>b"


def test_control_tokens_that_are_not_flagged_are_guarded_and_shown() -> None:
    library = tiny_library()
    library.add_tokens([AddedToken("<｜User｜>", normalized=False)])
    tokenizer = Tokenizer(library)
    user, thinks = tokenizer.id_of("<｜User｜>"), tokenizer.id_of("<think>")
    text = "<｜User｜><think>"
    assert unpack(tokenizer.encode(text, False)).tolist() == [user, thinks]
    guarded = unpack(tokenizer.encode_guarded(["", "<｜User｜>", text])).tolist()
    assert guarded[0] == user and user not in guarded[1:] and guarded[-1] == thinks
    assert tokenizer.decode(guarded, keep_special=False) == "<｜User｜>" + text


def test_tags_that_a_folder_flags_as_special_are_shown(tmp_path: Path) -> None:
    """Else nobody could read by them what is a thought and what a call."""
    library = tiny_library()
    library.add_special_tokens(
        [AddedToken(tag, normalized=False) for tag in ("</tool_call>", "[TOOL_CALLS]")]
    )
    write_tiny_folder(tmp_path)
    told = json.loads(library.to_str())
    for token in told["added_tokens"]:
        token["special"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    text = "<think>a</think>b</tool_call>[TOOL_CALLS]"
    ids = unpack(tokenizer.encode(f"{text}<|im_end|>", False))
    assert tokenizer.id_of("<think>") in ids and tokenizer.id_of("</tool_call>") in ids
    assert tokenizer.id_of("[TOOL_CALLS]") in ids
    assert tokenizer.decode(ids, keep_special=False) == text
    assert unpack(tokenizer.encode_guarded([text])) == ids[:-1]


def test_guarded_encoding_equals_the_plain_one_without_user_specials(
    tiny_tokenizer: Tokenizer,
) -> None:
    text = "<|im_start|>user\nHello world<think><|im_end|>\n"
    parts = ["", "<|im_start|>", "user\nHello world<think>", "<|im_end|>", "\n"]
    assert tiny_tokenizer.encode_guarded(parts) == tiny_tokenizer.encode(text, False)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_guarding_adds_no_blank_that_the_plain_way_does_not(scheme: str) -> None:
    """Of some vocabularies only the begin of the whole prompt gets one."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}
    library = Library(BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>"))
    library.pre_tokenizer = Metaspace(prepend_scheme=scheme, split=False)
    library.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer = Tokenizer(library)
    for parts in (["", "<s>", "a", "<s>", " a"], ["a", "<s>", "a"], ["aa"]):
        assert tokenizer.encode_guarded(parts) == tokenizer.encode("".join(parts), False)


def test_guarded_special_tokens_take_the_blanks_beside_them() -> None:
    library = tiny_library()
    after = AddedToken("<|end|>", rstrip=True, normalized=False)
    before = AddedToken("<|sep|>", lstrip=True, normalized=False)
    library.add_special_tokens([after, before])
    tokenizer = Tokenizer(library)
    parts = ["Hello ", "<|end|>", "\n ab \n", "<|sep|>", " abc ", "<|end|>", "", "<|sep|>", ""]
    assert tokenizer.encode_guarded(parts) == tokenizer.encode("".join(parts), False)


def test_pieces_are_exact_bytes(tiny_tokenizer: Tokenizer) -> None:
    assert tiny_tokenizer.piece(0xE4) == b"\xe4"
    assert tiny_tokenizer.piece(tiny_tokenizer.size + 5) == b""
    assert tiny_tokenizer.piece(tiny_tokenizer.id_of("<|im_end|>") or 0) == b"<|im_end|>"


def test_a_folder_without_tokenizer_gives_none(tmp_path: Path) -> None:
    assert load_tokenizer(read_model_folder(tmp_path)) is None


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFolderError, match=str(tmp_path)):
        load_tokenizer(read_model_folder(tmp_path))


def test_an_added_token_with_the_wrong_id_is_refused(tmp_path: Path) -> None:
    model = json.loads(tiny_library().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    added = {"9999": {"content": "<|im_end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ModelFolderError, match="9999"):
        load_tokenizer(read_model_folder(tmp_path))


def test_what_only_the_folder_tells_of_a_token_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """tokenizer.json lacks some tokens and flags; transformers takes them from the other file."""
    library = tiny_library()
    library.add_tokens([AddedToken("<|seen|>", normalized=False)])
    write_tiny_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    end, seen = library.get_vocab_size(), library.token_to_id("<|seen|>")
    told = {
        seen: {"content": "<|seen|>", "special": True},
        end: {"content": "<|new|>", "special": True},
        end + 1: {"content": "<plain>"},
        end + 7: {"content": "<|gap|>", "special": True},
        0: {"content": "<plain>"},
    }
    config = json.dumps({"added_tokens_decoder": {str(k): token for k, token in told.items()}})
    (tmp_path / "tokenizer_config.json").write_text(config)
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    ids = list(unpack(tokenizer.encode("<|new|><plain><|seen|>", add_special_tokens=False)))
    assert ids == [end, end + 1, seen]
    assert tokenizer.decode(ids, keep_special=False) == "<plain>"
    assert {seen, end} <= tokenizer.special_ids and end + 1 not in tokenizer.special_ids
    left_out = [record.token for record in caplog.records]  # type: ignore[attr-defined]
    assert left_out == ["<plain>", "<|gap|>"]


@pytest.mark.parametrize("is_told", [False, True])
def test_how_a_token_is_matched_is_what_the_folder_says(tmp_path: Path, is_told: bool) -> None:
    """As in transformers. Llama 2's early tokenizer.json normalises its end, and so misses it."""
    library = tiny_library()
    token = AddedToken("<|odd|>", lstrip=True, normalized=True, special=True)
    library.add_special_tokens([token])
    write_tiny_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    told = {"content": "<|odd|>", "lstrip": False, "normalized": False} if is_told else {}
    odd = library.token_to_id("<|odd|>")
    decoder = {str(odd): told} if told else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None and odd in tokenizer.special_ids
    blank, bare = (tokenizer.encode(text, False) for text in ("a <|odd|>", "a<|odd|>"))
    assert (blank != bare) is is_told
    assert tokenizer.matches_loosely is not is_told


def test_control_tokens_in_a_text_are_spelled_by_a_unigram_model_too() -> None:
    """It finds them as pieces, special or not."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"ab</s>"]
    model = Unigram([(piece, -1.0 - i / 999) for i, piece in enumerate(pieces)], 0, True)
    library = Library(model)
    library.add_special_tokens(["<unk>", "<s>", "</s>", "<|a|>"])
    library.add_tokens(["<tool_call>"])
    tokenizer = Tokenizer(library)
    call = list(unpack(tokenizer.encode_guarded(["<tool_call>", "<|a|>", "<tool_call>"])))
    assert call == [library.token_to_id(one) for one in ("<tool_call>", "<|a|>", "<tool_call>")]
    ids = list(unpack(tokenizer.encode_guarded(["a</s>b", "</s>", "a<s>\u6f22"])))
    pieces_of = [library.id_to_token(i) for i in ids]
    assert ids.count(2) == 1 and not {0, 1} & set(ids)
    begin, end = pieces_of[: ids.index(2)], pieces_of[ids.index(2) + 1 :]
    assert "".join(begin) == "a</s>b" and "".join(end) == "a<s><0xE6><0xBC><0xA2>"


@pytest.mark.parametrize(
    "model", [Unigram([("a", -1.0)]), BPE({"a": 0}, [], unk_token="<unk>")], ids=["unigram", "bpe"]
)
def test_a_text_without_tokens_is_refused(model: BPE | Unigram) -> None:
    tokenizer = Tokenizer(Library(model))
    assert list(unpack(tokenizer.encode("a", False))) == [0]
    for encode in (lambda: tokenizer.encode("b", True), lambda: tokenizer.encode_guarded(["b"])):
        with pytest.raises(InvalidRequest, match="tokenizer cannot encode this text: .*[Uu]nk"):
            encode()


def test_what_is_named_as_special_is_special(tmp_path: Path) -> None:
    """A piece of the vocabulary or none of it; what a prompt is padded with stays text."""
    library = tiny_library()
    end = library.get_vocab_size()
    write_tiny_folder(tmp_path)
    piece, pad = [text for text, _ in library.get_vocab().items() if text.isalpha()][:2]
    config = {"bos_token": piece, "extra_special_tokens": ["<|new|>"], "pad_token": pad}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    named = {tokenizer.id_of(piece), end}
    assert tokenizer.special_ids == {*named, *load_special(library)}
    assert list(unpack(tokenizer.encode("<|new|>", add_special_tokens=False))) == [end]
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": end}))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None and tokenizer.id_of("<|new|>") is None


def load_special(library: Library) -> set[int]:
    return {k for k, token in library.get_added_tokens_decoder().items() if token.special}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}, ["begin"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}, ["begin", "end"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, []),
        ({"tokenizer_class": "LlamaTokenizer"}, ["end"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}, ["end"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": None}, []),
    ],
)
def test_llamas_classes_add_at_the_ends_what_the_folder_says(
    tmp_path: Path, told: dict[str, Any], wanted: list[str]
) -> None:
    """As transformers 4: what tokenizer.json would add (here the end) is left to other classes."""
    library = tiny_library()
    tokens = {"begin": "<|im_start|>", "end": "<|im_end|>"}
    last = (tokens["end"], library.token_to_id(tokens["end"]))
    library.post_processor = TemplateProcessing(single=["$A", last[0]], special_tokens=[last])
    library.save(str(tmp_path / "tokenizer.json"))
    named = {"bos_token": tokens["begin"], "eos_token": tokens["end"], **told}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    ids = list(unpack(tokenizer.encode("ab", add_special_tokens=True)))
    text = unpack(tokenizer.encode("ab", add_special_tokens=False))
    ends = {name: [tokenizer.id_of(token)] for name, token in tokens.items()}
    begin, end = (ends[name] if name in wanted else [] for name in ("begin", "end"))
    assert ids == [*begin, *text, *end]


def test_a_token_that_the_model_has_no_room_for_is_left_out(tmp_path: Path) -> None:
    """It would turn every text that has it into one beyond the vocabulary."""
    write_tiny_folder(tmp_path)
    end = tiny_library().get_vocab_size()
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": end}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": end}))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None and tokenizer.size == end
    assert max(unpack(tokenizer.encode("a<pad>", add_special_tokens=False))) < end


def test_a_vocabulary_with_a_hole_loads_without_what_would_fill_it(tmp_path: Path) -> None:
    written = json.loads(tiny_library().to_str())
    vocab = written["model"]["vocab"]
    used = {piece for pair in written["model"]["merges"] for piece in (*pair, "".join(pair))}
    last = max(vocab.values())
    del vocab[next(one for one in vocab if one not in used and vocab[one] != last)]
    written["added_tokens"] = []
    write_tiny_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    end = 1 + max(Library.from_str(json.dumps(written)).get_vocab().values())
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": end}))
    named = {"unk_token": "<unseen>", "extra_special_tokens": ["<pad>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None and tokenizer.id_of("<pad>") is tokenizer.id_of("<unseen>") is None


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
def test_older_folders_keep_added_tokens_in_a_file(tmp_path: Path, name: str) -> None:
    model = json.loads(tiny_library().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    first = len(model["vocab"])
    added = {"<|turn|>": first, "<seen>": first + 1}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    named = {"additional_special_tokens": ["<|turn|>"]}
    (tmp_path / name).write_text(json.dumps(named))
    tokenizer = load_tokenizer(read_model_folder(tmp_path))
    assert tokenizer is not None
    assert tokenizer.encode("a<|turn|><seen>", add_special_tokens=False)[-8:] == pack(
        [first, first + 1]
    )
    assert first in tokenizer.special_ids and first + 1 not in tokenizer.special_ids
    (tmp_path / "added_tokens.json").write_text('{"<seen>": "x"}')
    with pytest.raises(ModelFolderError, match="<seen>"):
        read_model_folder(tmp_path)


def test_columns_round_trip() -> None:
    assert list(unpack(pack([0, 1, 2**32 - 1]))) == [0, 1, 2**32 - 1]
    assert pack([1]) == b"\x01\0\0\0"
    with pytest.raises(ValueError):
        unpack(b"\0\0\0")
