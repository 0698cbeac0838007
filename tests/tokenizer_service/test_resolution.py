"""Words become the ids that samplers work on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.decoders import Metaspace as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from common.errors import InvalidRequest
from protos.common_pb2 import Dry, Grammar, SamplingParams
from protos.tokenizer_pb2 import TextOptions, TextRequest
from tests.support.fake_engine import column, ids_of
from tests.support.tiny_tokenizer import tiny_library
from tokenizer_service.breakers import Breakers
from tokenizer_service.grammar import GrammarDoor
from tokenizer_service.reasoning import Place
from tokenizer_service.resolution import Resolution, bad_word_ids
from tokenizer_service.tokenizer import Tokenizer


async def resolved(
    tokenizer: Tokenizer | None, place: Place | None = None, **text: Any
) -> SamplingParams:
    request = TextRequest(text=TextOptions(**text), sampling=SamplingParams(seed=3, top_k=5))
    door = GrammarDoor()
    with ThreadPoolExecutor(1) as executor:
        found = await Resolution(tokenizer, executor, door).sampling(request, place)
    await door.close()
    assert (found.seed, found.top_k) == (3, 5)
    return found


def texts(tokenizer: Tokenizer, columns: list[bytes]) -> list[list[bytes]]:
    return [[tokenizer.piece(token_id) for token_id in ids_of(column)] for column in columns]


async def test_bad_words_with_and_without_a_space(tiny_tokenizer: Tokenizer) -> None:
    found = await resolved(tiny_tokenizer, bad_words=["Hello", " stop", "the"])
    words = texts(tiny_tokenizer, list(found.bad_words))
    assert words == [[b"Hello"], [b"s", b"t", b"o", b"p"], [b"t", b"h", b"e"]]


def test_a_bad_word_without_tokens_is_refused() -> None:
    tokenizer = Tokenizer(Library(BPE({"a": 0}, [])))  # leaves out what it does not know
    assert bad_word_ids(tokenizer, "a") == [column([0])]
    with pytest.raises(InvalidRequest, match="bad_words has 'b', which has no token"):
        bad_word_ids(tokenizer, "b")


async def test_a_bad_word_that_the_model_cannot_draw_is_left_out(tiny_tokenizer: Tokenizer) -> None:
    """A tokenizer may have more tokens than the model."""
    request = TextRequest(text=TextOptions(bad_words=["a", "<|im_end|>", "b"]))
    size = tiny_tokenizer.id_of("<|im_end|>") or 0
    with ThreadPoolExecutor(1) as executor:
        resolution = Resolution(tiny_tokenizer, executor, GrammarDoor(), size)
        found = await resolution.sampling(request, None)
    assert all(max(ids_of(word)) < size for word in found.bad_words)
    assert {b"a", b"b"} <= {b"".join(word) for word in texts(tiny_tokenizer, [*found.bad_words])}


async def test_breakers_in_every_way_they_may_stand_in_tokens(tiny_tokenizer: Tokenizer) -> None:
    breakers = Breakers(tiny_tokenizer)
    found = texts(tiny_tokenizer, list(breakers.columns("\n")))
    assert sorted(found) == [[b"\n"], [b"\n\n"]]
    found = texts(tiny_tokenizer, list(breakers.columns("bc:")))
    assert sorted(found) == [[b"ab", b"c", b":"], [b"abc", b":"], [b"b", b"c", b":"]]
    sent = await resolved(tiny_tokenizer, dry_breakers=["\n", "bc:", "\n"])
    assert len(sent.dry.breakers) == 5


@pytest.mark.parametrize("breaker", ["\n", "bc:", "ab", "Hello", "<|im_end|>", "é好", "aaaa"])
def test_the_index_finds_what_a_search_finds(tiny_tokenizer: Tokenizer, breaker: str) -> None:
    wanted, found = breaker.encode(), set[bytes]()
    for token_id, piece in enumerate(tiny_tokenizer.pieces()):
        if wanted in piece:
            found.add(column([token_id]))
            continue
        for at in range(1, len(breaker)):
            if piece.endswith(breaker[:at].encode()):
                tail = tiny_tokenizer.encode(breaker[at:], add_special_tokens=False)
                found.add(column([token_id]) + tail)
    assert Breakers(tiny_tokenizer).columns(breaker) == found


def test_the_last_token_of_a_vocabulary_may_hold_a_breaker(tiny_tokenizer: Tokenizer) -> None:
    last = len(tiny_tokenizer.pieces()) - 1
    breaker = tiny_tokenizer.piece(last).decode()
    assert breaker and column([last]) in Breakers(tiny_tokenizer).columns(breaker)


async def test_too_many_breakers_are_refused_by_name(
    tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenizer_service.resolution.MAX_BREAKER_BYTES", 8)
    with pytest.raises(InvalidRequest, match="'bc:'") as caught:
        await resolved(tiny_tokenizer, dry_breakers=["\n", "bc:"])
    assert caught.value.param == "dry_sequence_breakers"


async def test_dry_keeps_its_numbers(tiny_tokenizer: Tokenizer) -> None:
    request = TextRequest(text=TextOptions(dry_breakers=["\n"]))
    request.sampling.dry.CopyFrom(Dry(multiplier=0.5, base=2, allowed_length=3))
    with ThreadPoolExecutor(1) as executor:
        found = await Resolution(tiny_tokenizer, executor, GrammarDoor()).sampling(request, None)
    assert (found.dry.multiplier, found.dry.base, found.dry.allowed_length) == (0.5, 2, 3)
    assert found.dry.breakers and not request.sampling.dry.breakers


async def test_nothing_to_resolve_copies_nothing(tiny_tokenizer: Tokenizer) -> None:
    found = await resolved(tiny_tokenizer)
    assert found == SamplingParams(seed=3, top_k=5)


@pytest.mark.parametrize("field", ["bad_words", "dry_breakers"])
async def test_words_need_a_tokenizer(field: str) -> None:
    with pytest.raises(InvalidRequest, match="tokenizer"):
        await resolved(None, **{field: ["a"]})


async def test_a_budget_names_the_tags(tiny_tokenizer: Tokenizer) -> None:
    begin, end = (tiny_tokenizer.id_of(tag) for tag in ("<think>", "</think>"))
    with ThreadPoolExecutor(1) as executor:
        resolution = Resolution(tiny_tokenizer, executor, GrammarDoor())
        for place in (None, *Place):
            request = TextRequest(text=TextOptions(thinking_token_budget=0))
            found = (await resolution.sampling(request, place)).thinking
            thinking = place in (Place.START, Place.PROMPTED, Place.OPENED, Place.THOUGHTS)
            assert ids_of(found.end) == ([end] if thinking else [])
            assert ids_of(found.begin) == ([begin] if place is Place.START else [])


async def test_a_budget_knows_a_spelled_tag_whose_first_token_holds_text_before_it() -> None:
    told = json.loads(tiny_library().to_str())
    told["added_tokens"] = [one for one in told["added_tokens"] if "think" not in one["content"]]
    ids, vocab = iter(range(510, 512)), told["model"]["vocab"]
    for pair in (["<", "/"], [".", "</"]):
        told["model"]["merges"].append(pair)
        vocab["".join(pair)] = next(ids)
    tokenizer = Tokenizer(Library.from_str(json.dumps(told)))
    request = TextRequest(text=TextOptions(thinking_token_budget=0))
    with ThreadPoolExecutor(1) as executor:
        resolution = Resolution(tokenizer, executor, GrammarDoor())
        found = (await resolution.sampling(request, Place.PROMPTED)).thinking
    assert texts(tokenizer, [found.end])[0][:2] == [b"</", b"t"]
    assert texts(tokenizer, [found.end_heads]) == [[b"</", b".</"]]


async def test_a_budget_spells_the_tags_as_they_stand_within_a_text() -> None:
    """SentencePiece begins a text with a blank; behind a template's words no model writes one."""
    letters = sorted(set("▁\n<think></think>"))
    pieces = [*letters, "▁<", "</", "▁</"]
    merges = [("▁", "<"), ("<", "/"), ("▁", "</")]
    library = Library(BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    library.pre_tokenizer = Metaspace(prepend_scheme="first", split=False)
    library.decoder = Decoder(prepend_scheme="first")
    tokenizer = Tokenizer(library)
    found = await resolved(tokenizer, Place.START, thinking_token_budget=0)
    begin, end, heads = found.thinking.begin, found.thinking.end, found.thinking.end_heads
    assert texts(tokenizer, [begin, end]) == [
        [b"<", b"t", b"h", b"i", b"n", b"k", b">"],
        [b"</", b"t", b"h", b"i", b"n", b"k", b">"],
    ]
    assert texts(tokenizer, [heads]) == [[b"</", b" </"]]


async def test_a_grammar_acts_at_once_where_no_token_would_begin_thoughts() -> None:
    """Llama-3.1-Nemotron's tags are no tokens: it answers without a thought, bound."""
    told = json.loads(tiny_library().to_str())
    told["added_tokens"] = [one for one in told["added_tokens"] if "think" not in one["content"]]
    tokenizer = Tokenizer(Library.from_str(json.dumps(told)))
    text, door = TextOptions(grammar=Grammar(kind=Grammar.REGEX, text="[a-z]+")), GrammarDoor()
    with ThreadPoolExecutor(1) as executor:
        resolution = Resolution(tokenizer, executor, door)
        for place, waits in ((Place.START, False), (Place.PROMPTED, True)):
            found = (await resolution.sampling(TextRequest(text=text), place)).grammar
            assert (bool(found.start_after), found.HasField("opener")) == (waits, False)
    await door.close()


async def test_a_grammar_acts_after_the_thoughts(tiny_tokenizer: Tokenizer) -> None:
    text, door = TextOptions(grammar=Grammar(kind=Grammar.REGEX, text="[a-z]+")), GrammarDoor()
    with ThreadPoolExecutor(1) as executor:
        resolution = Resolution(tiny_tokenizer, executor, door)
        for place in (None, *Place):
            found = (await resolution.sampling(TextRequest(text=text), place)).grammar
            thinking = place in (Place.START, Place.PROMPTED, Place.OPENED, Place.THOUGHTS)
            end = [tiny_tokenizer.id_of("</think>")] if thinking else []
            assert (ids_of(found.start_after), found.text) == (end, "[a-z]+")
            opener = found.opener if found.HasField("opener") else None
            begin = tiny_tokenizer.id_of("<think>")
            assert opener == (begin if place is Place.START else None)
        bad = TextOptions(grammar=Grammar(kind=Grammar.REGEX, text="(a"))
        with pytest.raises(InvalidRequest, match="unclosed group"):
            await resolution.sampling(TextRequest(text=bad), None)
    await door.close()
