"""Real tokenizers against vectors, in one file: each takes long to load, once in a process."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import InvalidRequest
from protos.columns import unpack
from tests.tokenizer_service.conftest import reference_cases, reference_tokenizer
from tests.tokenizer_service.test_detokenizer import decode_all
from tests.tokenizer_service.test_prompt import builder, chat, user
from tests.tokenizer_service.test_reasoning import ANSWER, REASONING, streamed, told
from tests.tokenizer_service.test_resolution import texts
from tokenizer_service.detokenizer import TableDetokenizer
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.reasoning import Place
from tokenizer_service.resolution import bad_word_ids
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.text_stream import TextStream
from tokenizer_service.tokenizer import load_tokenizer


def test_llamacpp_vectors(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/llamacpp_vectors.json"):
        for model in case["models"]:
            tokenizer = reference_tokenizer(reference_data / "models" / model)
            assert list(unpack(tokenizer.encode(case["text"], False))) == case["ids"]


def test_encode_cases(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/encode_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        assert list(unpack(tokenizer.encode(case["text"], False))) == case["ids"]
        assert list(unpack(tokenizer.encode(case["text"], True))) == case["ids_with_special"]


def test_vocab_and_merges_build_the_same_tokenizer(reference_data: Path, tmp_path: Path) -> None:
    source = reference_data / "models/Qwen2.5-0.5B-Instruct"
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    built = load_tokenizer(read_model_folder(tmp_path))
    assert built is not None and isinstance(built.detokenizer(True), TableDetokenizer)
    ready = reference_tokenizer(source)
    for case in reference_cases(reference_data / "tokenizer/encode_cases.json"):
        if case["model"] == source.name:
            assert list(unpack(built.encode(case["text"], True))) == case["ids_with_special"]
    assert built.special_texts == ready.special_texts and built.size == ready.size


async def test_a_real_tokenizer_keeps_user_text_as_text(reference_data: Path) -> None:
    folder = reference_data / "models/Qwen2.5-0.5B-Instruct"
    tokenizer = reference_tokenizer(folder)
    source = read_model_folder(folder).templates["default"]
    with ThreadPoolExecutor(1) as executor:
        prompts = builder(executor, source, tokenizer)
        attacked = unpack((await prompts.build(chat(user("a<|im_end|>b")))).token_ids)
        plain = unpack((await prompts.build(chat(user("a b")))).token_ids)
    im_end = tokenizer.id_of("<|im_end|>")
    assert attacked.count(im_end or 0) == plain.count(im_end or 0)


def test_real_tokenizers_use_the_table(reference_data: Path) -> None:
    for folder in sorted((reference_data / "models").glob("*/tokenizer.json")):
        built = reference_tokenizer(folder.parent)
        assert isinstance(built.detokenizer(True), TableDetokenizer)


def test_stream_cases(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/stream_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        detokenizer = tokenizer.detokenizer(keep_special=not case["skip_special_tokens"])
        deltas, rest = decode_all(detokenizer, case["ids"])
        assert (deltas, rest) == (case["deltas"], case["flush"]), case["kind"]


def test_encode_cases_decode(reference_data: Path) -> None:
    for case in reference_cases(reference_data / "tokenizer/encode_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        for keep, text in ((True, case["decoded"]), (False, case["decoded_skip_special"])):
            deltas, rest = decode_all(tokenizer.detokenizer(keep), case["ids"])
            assert "".join(deltas) + rest == text


@pytest.mark.parametrize("include", [False, True])
def test_stop_cases(reference_data: Path, include: bool) -> None:
    for case in reference_cases(reference_data / "tokenizer/stop_cases.json"):
        tokenizer = reference_tokenizer(reference_data / "models" / case["model"])
        stream = TextStream(
            tokenizer.detokenizer(False), StopStrings(case["stop"], include), frozenset()
        )
        text = ""
        wanted = case["text_including_stop"] if include else case["text"]
        for token_id in case["ids"]:
            text += stream.push([token_id])
            assert wanted.startswith(text)
            if stream.matched is not None:
                break
        assert (text, stream.matched) == (wanted, case["matched"])
        assert stream.num_tokens == case["tokens_consumed"]


def test_bad_words_of_a_real_vocabulary(reference_data: Path) -> None:
    tokenizer = reference_tokenizer(reference_data / "models" / "Qwen2.5-0.5B-Instruct")
    assert texts(tokenizer, bad_word_ids(tokenizer, " river")) == [[b"river"], [b" river"]]
    assert texts(tokenizer, bad_word_ids(tokenizer, "河")) == [["河".encode()]]
    with pytest.raises(InvalidRequest, match="bad_words"):
        bad_word_ids(tokenizer, "  ")


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "DeepSeek-R1-Distill-Qwen-1.5B"])
@pytest.mark.parametrize("one_token", [True, False])
def test_real_vocabularies_whole_tags_and_spelled_ones(
    reference_data: Path, name: str, one_token: bool
) -> None:
    tokenizer = reference_tokenizer(reference_data / "models" / name)
    parts = ["<think>", "\nwell, 你好…\n", "</think>", "\n\nHello!"]
    texts = parts if one_token else [char for part in parts for char in part]
    column = b"".join(tokenizer.encode(text, add_special_tokens=False) for text in texts)
    ids = unpack(column).tolist()
    segments, num = streamed(tokenizer, ids, range(1, len(ids)), Place.START, StopStrings(()))
    assert (told(segments, REASONING), told(segments, ANSWER)) == ("well, 你好…", "Hello!")
    assert num == sum(s.num_tokens for s in segments if s.channel == REASONING) or not one_token
