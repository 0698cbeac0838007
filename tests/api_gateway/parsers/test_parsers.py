"""Tool calls out of text: what is a call, what stays content, and that no cut changes either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_gateway.answers import CallReader
from api_gateway.parsers.calls import CallDelta, Delta, Offer, ToolFormat
from api_gateway.parsers.hermes import Hermes
from api_gateway.parsers.llama3 import Llama3
from api_gateway.parsers.mistral import Mistral
from api_gateway.tools import ToolPlan

NAMES = ("get_weather", "calc")
HERMES, LLAMA3, MISTRAL = Hermes(), Llama3(), Mistral()


def read(tool_format: ToolFormat, pieces: Sequence[str], offer: Offer) -> tuple[str, Any]:
    """Return the content and the calls as [name, arguments]."""
    parser = tool_format.parser(offer)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    deltas += parser.end()
    content, calls = "", []
    for delta in deltas:
        assert delta != "", "an empty delta"
        if isinstance(delta, CallDelta):
            if delta.name is not None:
                assert delta.index == len(calls) and not delta.arguments
                calls.append([delta.name, ""])
            else:
                assert delta.index == len(calls) - 1 and delta.arguments
                calls[-1][1] += delta.arguments
        else:
            content += delta
    return content, calls


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


W = ["get_weather", '{"city": "Zürich, \\"}</tool_call>"}']
C = ["calc", "{}"]
W_TEXT, C_TEXT = call(*W), call(*C)
UNKNOWN = call("rm", "{}")

HERMES_CASES: list[tuple[str, str, list[list[str]]]] = [
    ("", "", []),
    ("plain < text <tool", "plain < text <tool", []),
    (" \n spaces \n", " \n spaces \n", []),
    (W_TEXT, "", [W]),
    (f"I will look. \n\n{W_TEXT}\n", "I will look.", [W]),
    (f"\n{W_TEXT}\n{C_TEXT}", "", [W, C]),
    (f"a{W_TEXT} b {C_TEXT} c", "a b c", [W, C]),
    ('<tool_call>{"arguments":{"a":[1,{}]},"name":"calc"}</tool_call>', "",
     [["calc", '{"a":[1,{}]}']]),
    # left out, or in a string
    ('<tool_call>{"name": "calc"}</tool_call>', "", [C]),
    ('<tool_call>{"name": "calc", "arguments": null}</tool_call>', "", [C]),
    ('<tool_call>{"name": "calc", "arguments": ""}</tool_call>', "", [C]),
    ('<tool_call>{"name": "calc", "arguments": " {\\"a\\": [1, \\"b\\"]}"}</tool_call>', "",
     [["calc", '{"a": [1, "b"]}']]),
    # malformed: all of it stays
    ('<tool_call>{"name": "calc", "arguments": "{a}"}</tool_call>',
     '<tool_call>{"name": "calc", "arguments": "{a}"}</tool_call>', []),
    ('<tool_call>{"name": "calc", "arguments": [1]}</tool_call>',
     '<tool_call>{"name": "calc", "arguments": [1]}</tool_call>', []),
    (UNKNOWN, UNKNOWN, []),
    ("x <tool_call>\nnot json\n</tool_call> y", "x <tool_call>\nnot json\n</tool_call> y", []),
    ('<tool_call>{"name": "rm"}</tool_call>', '<tool_call>{"name": "rm"}</tool_call>', []),
    ('<tool_call>{"name": "calc", "arguments": "x"}</tool_call>',
     '<tool_call>{"name": "calc", "arguments": "x"}</tool_call>', []),
    ('<tool_call>{"name": "calc", "arguments": {]}}</tool_call>',
     '<tool_call>{"name": "calc", "arguments": {]}}</tool_call>', []),
    (W_TEXT.replace("}}", "}"), W_TEXT.replace("}}", "}"), []),
    (W_TEXT[:-14], W_TEXT[:-14], []),
    # whole but for the end of the tag: the text ended there
    (W_TEXT[:-1], "", [W]),
    (f"a {W_TEXT[:-12]} ", "a", [W]),
    (f"{W_TEXT}\n{C_TEXT[:-13]}", "", [W, C]),
    (f"<tool_call>\n{W_TEXT[:-13]}", "<tool_call>", [W]),
    (UNKNOWN[:-12], UNKNOWN[:-12], []),
    (f"<tool_call>\n{W_TEXT}", "<tool_call>", [W]),
    (f"<tool_call>{{broken {C_TEXT}", "<tool_call>{broken", [C]),
    (f'<tool_call>{{"name": "calc", "arguments": {{}}}} more {C_TEXT}',
     '<tool_call>{"name": "calc", "arguments": {}} more', [C]),
]  # fmt: skip


@pytest.mark.parametrize("text, content, calls", HERMES_CASES)
def test_hermes(text: str, content: str, calls: list[list[str]]) -> None:
    assert read(HERMES, [text], Offer(NAMES)) == (content, calls)
    assert read(HERMES, list(text), Offer(NAMES)) == (content, calls)


LW = '{"name": "get_weather", "parameters": {"city": "Oslo; {"}}'
LC = '{"name": "calc", "parameters": {}}'
LLAMA_CASES: list[tuple[str, str, list[list[str]]]] = [
    ("", "", []),
    ("Hello {", "Hello {", []),
    (" \n", " \n", []),
    (LW, "", [["get_weather", '{"city": "Oslo; {"}']]),
    (f" <|python_tag|>{LC}", "", [C]),
    ("<|python_tag", "<|python_tag", []),
    (f"{LC}; {LC}\n{LC} ", "", [C, C, C]),
    (f"{LC} and then", "and then", [C]),
    (f"Sure: {LC}", f"Sure: {LC}", []),
    ('{"name": "rm", "parameters": {}}', '{"name": "rm", "parameters": {}}', []),
    ('{"answer": 42} ok', '{"answer": 42} ok', []),
    (LW[:-1], LW[:-1], []),
    ('{"name": "calc", "arguments": {"a": 1}}', "", [["calc", '{"a": 1}']]),
]


@pytest.mark.parametrize("text, content, calls", LLAMA_CASES)
def test_llama3(text: str, content: str, calls: list[list[str]]) -> None:
    assert read(LLAMA3, [text], Offer(NAMES)) == (content, calls)
    assert read(LLAMA3, list(text), Offer(NAMES)) == (content, calls)


MW = '{"name": "get_weather", "arguments": {"city": "]"}, "id": "012345678"}'
MC = '{"name": "calc", "arguments": {}}'
MR = '{"name": "rm", "arguments": {}}'
MISTRAL_CASES: list[tuple[str, str, list[list[str]]]] = [
    ("", "", []),
    (" \n", " \n", []),
    (f"[TOOL_CALLS] [{MW}]", "", [["get_weather", '{"city": "]"}']]),
    (f"I look. [TOOL_CALLS][{MC}, {MC}]\n", "I look.", [C, C]),
    (f" [{MC} ,\n{MC} ] ", "", [C, C]),  # some leave the tag out
    (f"[TOOL_CALLS] [{MC}] so [TOOL_CALLS] [{MC}]", " so", [C, C]),
    (f"[TOOL_CALLS] [{MC}, ", "", [C]),
    (f"[TOOL_CALLS] [{MC}, {MC[:-1]}", f" {MC[:-1]}", [C]),
    # no call of an offered function: all of it stays, from there on
    ("[1, 2]", "[1, 2]", []),
    ("[TOOL_CALLS", "[TOOL_CALLS", []),
    ("[TOOL_CALLS] []", "[TOOL_CALLS] []", []),
    (f"[TOOL_CALLS]{MC}", f"[TOOL_CALLS]{MC}", []),
    (f" a [TOOL_CALLS] [{MR}]", f" a [TOOL_CALLS] [{MR}]", []),
    (f"[TOOL_CALLS] [{MC}, {MR}] b", f" {MR}] b", [C]),
    (f"[TOOL_CALLS] [{MC}; {MC}]", f"; {MC}]", [C]),
    (f"see [{MC}]", f"see [{MC}]", []),
    (f"[TOOL_CALLS] [{MC[:-1]}", f"[TOOL_CALLS] [{MC[:-1]}", []),
    (f"[TOOL_CALLS] x [TOOL_CALLS] [{MC}]", "[TOOL_CALLS] x", [C]),
]


@pytest.mark.parametrize("text, content, calls", MISTRAL_CASES)
def test_mistral(text: str, content: str, calls: list[list[str]]) -> None:
    assert read(MISTRAL, [text], Offer(NAMES)) == (content, calls)
    assert read(MISTRAL, list(text), Offer(NAMES)) == (content, calls)


FRAGMENTS = [
    W_TEXT, C_TEXT, UNKNOWN, LW, LC, "<tool_call>", "</tool_call>", "<|python_tag|>", "{", "}",
    "[TOOL_CALLS]", "[", "]", ",", MC, MR, f"[TOOL_CALLS] [{MC}, {MC}]",
    '"', "\\", " ", "\n", ";", "<", "text", "é", '{"name": "calc", "arguments": {"a": ',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
OFFERS = st.builds(
    Offer, st.just(NAMES), st.sampled_from([None, 1]), st.sampled_from([False, True])
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([HERMES, LLAMA3, MISTRAL]), TEXTS, OFFERS, st.data())
def test_no_cut_changes_the_result(
    tool_format: ToolFormat, text: str, offer: Offer, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(tool_format, [text], offer)
    assert read(tool_format, pieces, offer) == whole
    assert read(tool_format, list(text), offer) == whole
    if not whole[1]:
        assert whole[0] == text


def test_a_single_call_ends_the_answer() -> None:
    text = f"a {W_TEXT} b {C_TEXT}"
    assert read(HERMES, list(text), Offer(NAMES, max_calls=1)) == ("a", [W])
    assert read(LLAMA3, list(f"{LC};{LW} x"), Offer(NAMES, max_calls=1)) == ("", [C])
    assert read(MISTRAL, list(f"[{MC}, {MW}] x"), Offer(NAMES, max_calls=1)) == ("", [C])


def test_arguments_flow_where_a_grammar_forces_the_format() -> None:
    parser = HERMES.parser(Offer(NAMES, is_eager=True))
    assert parser.feed('<tool_call>\n{"name": "calc", "argu') == []
    assert parser.feed('ments": {"a": "') == [
        CallDelta(0, "calc"),
        CallDelta(0, None, '{"a": "'),
    ]
    assert parser.feed('x"') == [CallDelta(0, None, 'x"')]
    assert parser.feed("}}\n</tool") == [CallDelta(0, None, "}")]
    assert parser.feed("_call>") == [] and parser.end() == []
    cut = HERMES.parser(Offer(NAMES, is_eager=True))
    assert len(cut.feed(W_TEXT[:60])) == 2 and cut.end() == []  # the limit: what came stands


def test_forced_arguments_of_mistral_flow_too() -> None:
    parser = MISTRAL.parser(Offer(NAMES, is_eager=True))
    assert parser.feed('[{"name": "calc", "argu') == []
    begun = [CallDelta(0, "calc"), CallDelta(0, None, '{"a": "')]
    assert parser.feed('ments": {"a": "') == begun and parser.is_cut
    assert parser.feed('x"}}') == [CallDelta(0, None, 'x"}')] and not parser.is_cut
    assert parser.feed(f", {MC}]") == [CallDelta(1, "calc"), CallDelta(1, None, "{}")]
    assert parser.end() == []


def test_text_waits_from_the_first_possible_prefix_of_the_tag() -> None:
    parser = HERMES.parser(Offer(NAMES))
    assert parser.feed("ab \n") == ["ab"]
    assert parser.feed("<tool_") == []
    assert parser.feed("x") == [" \n<tool_x"]
    assert parser.feed(" <") == [] and parser.end() == [" <"]


def test_only_so_many_calls_that_never_end_are_given_up() -> None:
    """Each reads the whole rest again: what a model repeats without end is text."""
    text = "<tool_call>{" * 20_000
    assert read(HERMES, [text + W_TEXT], Offer(NAMES)) == (text + W_TEXT, [])
    assert read(HERMES, ["<tool_call>{" * 10 + W_TEXT], Offer(NAMES)) == ("<tool_call>{" * 10, [W])


@pytest.mark.parametrize(
    "tool_format, call", [(HERMES, W_TEXT), (LLAMA3, LW), (MISTRAL, f"[{MC}]")]
)
def test_a_parser_reads_a_run_of_blanks_once(
    tool_format: ToolFormat, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each token of a model that writes newlines without end costs as much as all before."""
    reader = CallReader(ToolPlan(tool_format, Offer(NAMES), "", is_forced=False), "r", 0)
    assert reader._parser is not None
    fed, feed = [], reader._parser.feed
    monkeypatch.setattr(reader._parser, "feed", lambda text: fed.append(text) or feed(text))
    pieces = ["\n"] * 9 + [call] + [" "] * 9
    parts = [part for piece in pieces for part in reader.read(piece, is_end=False)]
    parts += reader.read("", is_end=True)
    assert list(filter(None, fed)) == ["\n" * 9 + call, " " * 9]
    assert [isinstance(part, dict) for part in parts] == [True]
    reader = CallReader(ToolPlan(tool_format, Offer(NAMES), "", is_forced=False), "r", 0)
    said = [part for piece in "  a \n\n " for part in reader.read(piece, is_end=False)]
    assert "".join(map(str, said + reader.read(" ", is_end=True))) == "  a \n\n  "
