"""The logprobs of a response are of the tokens of its messages, however these came."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_gateway.parsers.calls import Offer
from api_gateway.responses.reply import Telling
from api_gateway.sessions import Choice, Mailbox
from api_gateway.tools import FORMATS, ToolPlan
from api_gateway.translate import Kind, Order
from protos.common_pb2 import STOPPED, Finish
from protos.tokenizer_pb2 import TextLogprobs, TextOptions, TextRequest
from tests.support.fake_tokenizer import column, logprob_entry

END = "<|end|>"
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
LIST = '[TOOL_CALLS] [{"name": "f", "arguments": {}}]'
PLAIN = '{"name": "f", "parameters": {}}'


def plan(tool_format: str, is_forced: bool = False) -> ToolPlan:
    offer = Offer(frozenset({"f"}), is_eager=is_forced)
    return ToolPlan(FORMATS[tool_format], offer, "", is_forced=is_forced)


def told(tokens: list[str], cuts: list[int], tools: ToolPlan | None, lead: str) -> Any:
    """Return the items of a response and its events; chunks of tokens come at `cuts`.

    The blank lines of `lead`, with which the tokens begin, are no part of the text.
    """
    split = TextRequest(text=TextOptions(split_reasoning=True))
    order = Order(
        requests=[split], model="m", kind=Kind.CHAT, timeout_s=None, num_logprobs=0, tools=tools
    )
    choice = Choice(Mailbox())
    telling = Telling(SimpleNamespace(request_id="r"), order, 0, choice)  # type: ignore[arg-type]
    said, events = b"", b""
    for begin, end in pairwise([0, *cuts, len(tokens)]):
        raw = [b"" if token == END else token.encode() for token in tokens[:end]]
        whole = b"".join(raw).decode(errors="ignore").removeprefix(lead).encode()
        if not b"".join(raw).strip(b"\n"):
            whole = b""  # the split waits for what is behind the blank lines
        text, said = whole[len(said) :].decode(), whole
        assert choice.add(len(said) - len(text.encode()), text, begin, column(*range(begin, end)))
        for index in range(begin, end):
            row = TextLogprobs(index=index, entries=[logprob_entry(tokens[index], -index)])
            row.is_hidden = tokens[index] == END
            choice.logprobs.append(row)
        if end == len(tokens):
            choice.end(Finish(reason=STOPPED, num_output_tokens=end))
        events += telling.take()
    events += telling.output.end("completed")
    found = re.findall(rb"data: (.*)\n\n", events)
    return telling.output.blocks, [orjson.loads(event) for event in found]


def wanted(parts: list[tuple[str, bool]], tokens: list[str]) -> list[list[str]]:
    """Return the tokens of each message; of a part that is no message its own go to nobody.

    Before the first and behind the last message are the blank lines and the end.
    """
    places = accumulate([0] + [len(text) for text, _ in parts])
    spans = [(a, b, shown) for (a, b), (_, shown) in zip(pairwise(places), parts, strict=True)]
    starts = accumulate([0] + [0 if token == END else len(token) for token in tokens[:-1]])
    at = list(zip(starts, tokens, strict=True))
    rows = [[token for p, token in at if a <= p < b] for a, b, shown in spans if shown]
    if spans[-1][2]:
        rows[-1] += [token for p, token in at if p >= spans[-1][1]]
    return rows


SCENES: list[tuple[str, str, list[tuple[str, bool]]]] = [
    ("hermes", "", [("I look. <b", True), (f"\n\n{CALL}", False)]),
    ("hermes", "\n\n", [("\n\nI look.", True), (f"\n{CALL}\n{CALL}\n", False)]),
    ("hermes", "\n\n", [(f"\n\n{CALL}", False)]),
    ("hermes", "\n", [("\nOne", True), (f" {CALL}", False), (" two", True), (CALL, False),
                      ("\nthree ", True)]),
    ("hermes", "", [("a <tool_call>{} b", True)]),
    ("mistral", "\n", [("\nI look.", True), (f" {LIST}", False), (" So.", True)]),
    ("llama3", "", [(f"{PLAIN} ", False), ("and then", True)]),
    ("llama3", "\n\n", [("\n\nHello", True)]),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "lead", "parts"), SCENES)
@settings(max_examples=30)
@given(data=st.data())
def test_rows_are_of_the_tokens_that_begin_in_the_text(
    tool_format: str, lead: str, parts: list[tuple[str, bool]], data: st.DataObject
) -> None:
    text = "".join(part for part, _ in parts)
    inner = st.lists(st.integers(1, len(text) - 1), unique=True).map(sorted)
    tokens = [text[a:b] for a, b in pairwise([0, *data.draw(inner), len(text)])] + [END]
    cuts = data.draw(st.lists(st.integers(1, len(tokens)), unique=True).map(sorted))
    rows = wanted(parts, tokens)
    for chunks in ([], cuts):
        items, events = told(tokens, chunks, plan(tool_format), lead)
        shown = [item["content"][0]["logprobs"] for item in items if item["type"] == "message"]
        assert [[row["token"] for row in of_one] for of_one in shown] == rows
        deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
        assert sum(deltas, []) == sum(shown, [])


@pytest.mark.parametrize("text", [CALL, CALL[:20]])
def test_calls_that_are_forced_have_none(text: str) -> None:
    items, _ = told([*text, END], [], plan("hermes", is_forced=True), "")
    rows = [item["content"][0]["logprobs"] for item in items if item["type"] == "message"]
    assert rows == ([] if text == CALL else [[]])


def test_an_answer_without_tools_has_all_of_its_tokens() -> None:
    items, _ = told(["\n", "\n", "Hi", "!", END], [2], None, "\n\n")
    rows = items[0]["content"][0]["logprobs"]
    assert [row["token"] for row in rows] == ["\n", "\n", "Hi", "!", END]
