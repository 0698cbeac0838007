"""What a client leaves open is completed, and what cannot be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import InvalidRequest, NotFound, ServiceError
from protos.columns import pack, unpack
from protos.common_pb2 import EMBED, LAST, MEAN, Grammar, Limits, LogitBias, SamplingParams
from protos.tokenizer_pb2 import ChatInput, TextOptions, TextRequest
from tokenizer_service.completion import Completion


def completion(**rest: Any) -> Completion:
    fields: dict[str, Any] = {
        "model": "tiny", "vocab_size": 100, "eos_token_ids": frozenset({9}),
        "sampling_defaults": {"temperature": 0.7, "top_k": 20}, "max_new_tokens": None,
        "has_tokenizer": True,
    }  # fmt: skip
    return Completion(**(fields | rest))


def request(**rest: Any) -> TextRequest:
    return TextRequest(**({"model": "tiny", "prompt": "x"} | rest))


def test_unset_sampling_comes_from_the_folder_then_from_neutrality() -> None:
    given = SamplingParams(temperature=0.0, seed=5)
    found = SamplingParams.FromString(completion().sampling(given))
    assert (found.temperature, found.top_k, found.top_p, found.seed) == (0.0, 20, 1.0, 5)
    assert found.repetition_penalty == 1.0 and found.HasField("min_p")


def test_max_tokens_defaults_to_the_room_that_is_left() -> None:
    assert completion().limits(request(), 10, 64).max_tokens == 54
    shorter = completion(max_new_tokens=7).limits(request(), 10, 64)
    assert (shorter.max_tokens, shorter.max_is_ours) == (7, True)
    given = request(limits=Limits(max_tokens=54, n=2))
    assert (completion().limits(given, 10, 64).max_tokens, given.limits.n) == (54, 2)
    assert not completion().limits(given, 10, 64).max_is_ours


def test_a_window_that_moves_bounds_no_answer() -> None:
    given = request(limits=Limits(max_tokens=500, n_keep=4))
    assert completion().limits(given, 10, 64).max_tokens == 500


def test_an_embedding_has_no_answer_and_needs_no_room_for_one() -> None:
    assert completion().limits(request(limits=Limits(kind=EMBED)), 64, 64).max_tokens == 1
    with pytest.raises(InvalidRequest, match="64 tokens, but the input has 65"):
        completion().limits(request(limits=Limits(kind=EMBED)), 65, 64)


def test_what_is_an_embedding_comes_from_the_request_then_from_the_folder() -> None:
    for given, folder, used in ((None, LAST, LAST), (None, MEAN, MEAN), (LAST, MEAN, LAST)):
        asked = request(limits=Limits(kind=EMBED, pooling=given))
        assert completion(pooling=folder).limits(asked, 1, 64).pooling == used


def test_the_engine_is_told_of_a_grammar() -> None:
    grammar = Grammar(kind=Grammar.REGEX, text="a")
    assert completion().limits(request(text=TextOptions(grammar=grammar)), 1, 64).has_grammar
    assert not completion().limits(request(), 1, 64).has_grammar


def test_stop_ids_are_eos_and_the_clients() -> None:
    both = request(text=TextOptions(stop_token_ids=[4]))
    assert list(unpack(completion().limits(both, 1, 64).stop_token_ids)) == [4, 9]
    ignored = request(text=TextOptions(stop_token_ids=[4], ignore_eos=True))
    assert list(unpack(completion().limits(ignored, 1, 64).stop_token_ids)) == [4]


def test_eos_is_not_shown_as_a_stop_reason_unless_it_was_asked_for() -> None:
    plain = request(text=TextOptions(stop_token_ids=[4]))
    assert completion().shown_stop_id(plain, 9) is None
    assert completion().shown_stop_id(plain, 4) == 4
    asked = request(text=TextOptions(stop_token_ids=[9], ignore_eos=True))
    assert completion().shown_stop_id(asked, 9) == 9


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "other"}, NotFound, "model"),
        ({"text": TextOptions(stop_token_ids=[100])}, InvalidRequest, "stop_token_ids"),
        (
            {"sampling": SamplingParams(logit_bias=[LogitBias(token_id=100, bias=1)])},
            InvalidRequest,
            "logit_bias",
        ),
        (
            {"sampling": SamplingParams(allowed_token_ids=pack([1, 100]))},
            InvalidRequest,
            "allowed_token_ids",
        ),
        (
            {"sampling": SamplingParams(allowed_token_ids=b"123")},
            InvalidRequest,
            "allowed_token_ids",
        ),
    ],
)
def test_refused_at_the_door(fields: Any, error: type[ServiceError], param: str) -> None:
    with pytest.raises(error) as caught:
        completion().check(request(**fields))
    assert caught.value.param == param


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        completion(has_tokenizer=False).check(request(text=TextOptions(stop=["x"])))


@pytest.mark.parametrize(("chat", "param"), [(None, "prompt"), (ChatInput(), "messages")])
def test_a_prompt_without_room_names_both_numbers(chat: ChatInput | None, param: str) -> None:
    given = request() if chat is None else TextRequest(model="tiny", chat=chat)
    with pytest.raises(InvalidRequest, match=r"maximum context length is 64 .* 64") as caught:
        completion().limits(given, 64, 64)
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


def test_max_tokens_beyond_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is 64 tokens, and max_tokens is 65") as caught:
        completion().limits(request(limits=Limits(max_tokens=65)), 10, 64)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("wanted", "drawn", "options"),
    [
        (5, 5, {}), (54, 54, {}), (55, 54, {}), (64, 54, {}),
        (5, 5, {"cut_max_tokens": True}), (32_000, 54, {"cut_max_tokens": True}),
    ],
)  # fmt: skip
def test_max_tokens_beyond_the_room_are_cut(
    wanted: int, drawn: int, options: dict[str, bool]
) -> None:
    given = request(limits=Limits(max_tokens=wanted), text=TextOptions(**options))
    assert completion().limits(given, 10, 64).max_tokens == drawn
    with pytest.raises(InvalidRequest, match="maximum context"):
        completion().limits(given, 64, 64)


def test_a_grammar_is_told_which_ids_end_an_answer() -> None:
    given = SamplingParams(grammar=Grammar(kind=Grammar.REGEX, text="a"))
    told = SamplingParams.FromString(completion().sampling(given))
    assert list(unpack(told.grammar.end_token_ids)) == [9]
    assert not SamplingParams.FromString(completion().sampling(SamplingParams())).HasField(
        "grammar"
    )
