"""What the pieces of a request become for who asked in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest

from common.errors import Unavailable
from millrace.client import Piece
from millrace.deltas import Deltas, collect
from millrace.outputs import RequestOutput
from millrace.params import SamplingParams
from millrace.prompts import asked
from protos.common_pb2 import (
    ABORTED,
    DEADLINE,
    ERROR,
    IGNORED,
    LENGTH,
    STOPPED,
    ErrorDetail,
    Finish,
    ModelInfo,
)

INFO = ModelInfo(id="m", tool_format="hermes")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "reason", "word"),
    [
        (CALL, STOPPED, "tool_calls"),
        (CALL[:-20], STOPPED, "stop"),  # by a stop string: it cannot be run
        (CALL[:-20], LENGTH, "length"),
        (CALL, LENGTH, "length"),  # it may have wanted more of them
        ("no call", STOPPED, "stop"),
    ],
)
def test_how_an_answer_with_tools_ends(text: str, reason: Finish.Reason, word: str) -> None:
    prompt, params = (
        {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]},
        SamplingParams(),
    )
    deltas = Deltas(prompt, params, asked(prompt, params, INFO, "r", 1))
    whole = deltas.read(Piece(0, text, finish=Finish(reason=reason)))
    assert [output.finish_reason for output in whole.outputs] == [word]


def test_what_may_become_a_call_is_told_at_the_end() -> None:
    prompt, params = (
        {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]},
        SamplingParams(),
    )
    deltas = Deltas(prompt, params, asked(prompt, params, INFO, "r", 1))
    pieces = Piece(0, "a <tool_"), Piece(0, "", finish=Finish(reason=STOPPED))
    assert [deltas.read(piece).outputs[0].text for piece in pieces] == ["a", " <tool_"]


@pytest.mark.parametrize("reason", [ERROR, IGNORED])
def test_an_answer_that_failed_is_raised(reason: Finish.Reason) -> None:
    deltas = Deltas("a", SamplingParams(), asked("a", SamplingParams(), INFO, "r", 1))
    detail = ErrorDetail(kind="Unavailable", message="lost too often")
    with pytest.raises(Unavailable, match="lost too often"):
        deltas.read(Piece(0, finish=Finish(reason=reason, error=detail)))


@pytest.mark.parametrize(("reason", "word"), [(ABORTED, "abort"), (DEADLINE, "deadline")])
def test_an_answer_that_was_cut_off_says_by_what(reason: Finish.Reason, word: str) -> None:
    deltas = Deltas("a", SamplingParams(), asked("a", SamplingParams(), INFO, "r", 1))
    (output,) = deltas.read(Piece(0, "b", finish=Finish(reason=reason))).outputs
    assert (output.text, output.finish_reason) == ("b", word)


def test_what_was_not_asked_for_is_none() -> None:
    deltas = Deltas("a", SamplingParams(), asked("a", SamplingParams(), INFO, "r", 1))
    (output,) = deltas.read(Piece(0, "b", finish=Finish(reason=LENGTH))).outputs
    assert (output.logprobs, output.sampler_trace) == (None, None)


async def test_the_whole_has_whole_calls_and_its_choices_in_order() -> None:
    """However they came: the second choice began first, and its call in parts."""
    prompt = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
    params = SamplingParams(n=2)
    deltas = Deltas(prompt, params, asked(prompt, params, INFO, "r", 1))
    pieces = [
        *(Piece(1, letter) for letter in CALL),
        Piece(0, "no call", finish=Finish(reason=LENGTH)),
        Piece(1, finish=Finish(reason=STOPPED)),
    ]

    async def read() -> AsyncGenerator[RequestOutput, None]:
        for piece in pieces:
            yield deltas.read(piece)

    first, second = (await collect(read())).outputs
    assert (first.index, first.text, first.finish_reason) == (0, "no call", "length")
    (call,) = second.tool_calls
    assert sorted(call) == ["function", "id", "type"]
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert second.finish_reason == "tool_calls"
