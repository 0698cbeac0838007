"""What is no grammar is refused with the reason; what is one passes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest

from common.errors import InvalidRequest, Unprocessable
from protos.common_pb2 import Grammar
from protos.limits import MAX_GRAMMAR_CHARS
from tokenizer_service import sandbox
from tokenizer_service.grammar import KEPT, REFUSED_KEPT, GrammarDoor, fault
from tokenizer_service.turns import Asker

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GOOD = [
    (Grammar.JSON_SCHEMA, "{}"),
    (Grammar.JSON_SCHEMA, json.dumps(SCHEMA)),
    (Grammar.REGEX, r"[0-9]{3}-(a|b)+"),
    (Grammar.LARK, 'start: "a" (WORD ",")*\nWORD: /[a-z]+/'),
    (Grammar.LARK, 'start: "a ::= b"'),
    (Grammar.LARK, 'root ::= "a" word*\nword ::= [a-z]+ ","'),
    (Grammar.CHOICE, '["yes", "no"]'),
]
BAD = [
    (Grammar.JSON_SCHEMA, "{", "not valid JSON"),
    (Grammar.JSON_SCHEMA, "[]", "must be an object"),
    (Grammar.JSON_SCHEMA, '{"type": "objec"}', "objec"),
    (Grammar.JSON_SCHEMA, '{"$ref": "#/$defs/none"}', "none"),
    (Grammar.REGEX, "(a", "unclosed group"),
    (Grammar.LARK, 'start: "a" missing', "missing"),
    (Grammar.LARK, 'root ::= "a" missing', "missing"),
    (Grammar.LARK, "root ::= (", "Expected"),
    (Grammar.LARK, "root ::= " + "(" * 5000, "recursion"),
    (Grammar.LARK, "nonsense", "structured_outputs: "),
    (Grammar.CHOICE, "yes", "not valid JSON"),
    (Grammar.CHOICE, '["yes", 1]', "list of strings"),
    (Grammar.CHOICE, '[""]', "not empty"),
    (Grammar.CHOICE, "[]", "1 to"),
    (Grammar.CHOICE, json.dumps(["x"] * 1025), "1025"),
    (Grammar.REGEX, "a" * 65_537, "65536"),
]


DEEP = "start: r0\n" + "\n".join(f'r{i}: r{i + 1} "b"' for i in range(3900)) + '\nr3900: "a"'
LINKS = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1400)}


@pytest.fixture
async def door() -> AsyncIterator[GrammarDoor]:
    opened = GrammarDoor(timeout_s=20)
    yield opened
    await opened.close()


async def test_grammars_pass(door: GrammarDoor) -> None:
    for kind, text in GOOD:
        await door.check(Grammar(kind=kind, text=text))


@pytest.mark.parametrize("word", ["", " ", "\t"])
async def test_ebnf_goes_to_the_workers_as_lark(door: GrammarDoor, word: str) -> None:
    ebnf = Grammar(kind=Grammar.LARK, text=f'root{word}::= "x" num\n{word}num ::= [0-9] [0-9]?')
    for _ in range(2):  # the second time it is known
        lark = await door.check(ebnf)
        assert "start:" in lark and "::=" not in lark
        assert await door.check(Grammar(kind=Grammar.LARK, text=lark)) == lark


async def test_classes_of_a_regex_are_of_ascii(door: GrammarDoor) -> None:
    text = r"[^\d-]\D\\d(?i)[\w.]\W\s\.\p{Nd}"
    read = r"[^[0-9]-][^0-9]\\d(?i)[[0-9A-Za-z_].][^0-9A-Za-z_][ \t\n\r\f\v]\.\p{Nd}"
    for _ in range(2):
        assert await door.check(Grammar(kind=Grammar.REGEX, text=text)) == read


async def test_many_empty_lines_are_looked_through_at_once(door: GrammarDoor) -> None:
    """Once the search for a rule began at each of them anew, a minute for these."""
    text = "\n" * 65_000 + 'start: "a"'
    assert await door.check(Grammar(kind=Grammar.LARK, text=text)) == text


async def test_one_that_passed_waits_for_nobodys_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def ask(message: bytes, asker: Asker) -> bytes:
        text = Grammar.FromString(message).text
        asked.append(text)
        return b"no" if text == "(" else b""

    door = GrammarDoor()
    monkeypatch.setattr(door._sandbox, "ask", ask)
    old, *others = (Grammar(kind=Grammar.REGEX, text=f"a{i}") for i in range(KEPT + 1))
    for grammar in (old, old, *others[1:], old, others[0], others[1]):
        await door.check(grammar)
    assert asked == [g.text for g in (old, *others[1:], others[0], others[1])]


async def test_a_refused_one_is_not_checked_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def ask(message: bytes, asker: Asker) -> bytes:
        asked.append(Grammar.FromString(message).text)
        if asked[-1] == "heavy":
            raise sandbox.Overrun("took longer than 2 s")
        return b"no"

    async def refused(text: str) -> type[Exception]:
        with pytest.raises((InvalidRequest, Unprocessable), match="no|longer than") as caught:
            await door.check(Grammar(kind=Grammar.REGEX, text=text))
        return caught.type

    door = GrammarDoor()
    monkeypatch.setattr(door._sandbox, "ask", ask)
    for text, error in (("(", InvalidRequest), ("heavy", Unprocessable)):
        assert [await refused(text) for _ in range(3)] == [error] * 3
    assert asked == ["(", "heavy"]
    for i in range(REFUSED_KEPT):
        await refused(f"({i}")
    assert len(door._refused) == REFUSED_KEPT
    await refused("heavy")
    assert asked.count("heavy") == 2
    monkeypatch.setattr("tokenizer_service.grammar.REFUSED_S", -1.0)
    for _ in range(2):
        await refused("a")
    assert asked[-2:] == ["a", "a"]


async def test_nobody_waits_for_another_tenants_heavy_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty of one tenant held up all others for half a minute."""
    done: list[str] = []
    may_go_on = asyncio.Event()

    async def exchange(message: bytes) -> bytes:
        await may_go_on.wait()
        done.append(Grammar.FromString(message).text)
        return b""

    door = GrammarDoor()
    monkeypatch.setattr(door._sandbox, "_exchange", exchange)
    checks = [
        asyncio.create_task(door.check(Grammar(kind=Grammar.REGEX, text=text), Asker(tenant)))
        for tenant, texts in (("anna", [f"a{i}" for i in range(20)]), ("ben", ["b"]))
        for text in texts
    ]
    while not door._sandbox._turns._waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(*checks)
    assert done[:3] == ["a0", "b", "a1"] and len(done) == 21
    await door.close()


async def test_what_is_none_is_refused(door: GrammarDoor) -> None:
    for kind, text, why in BAD:
        with pytest.raises(InvalidRequest, match=why) as caught:
            await door.check(Grammar(kind=kind, text=text))
        is_schema = kind == Grammar.JSON_SCHEMA
        assert caught.value.param == ("response_format" if is_schema else "structured_outputs")


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Grammar.LARK, DEEP), (Grammar.JSON_SCHEMA, json.dumps({"$defs": LINKS, **LINKS["d0"]}))],
    ids=["rules", "schema"],
)
async def test_what_overflows_the_stack_harms_itself_alone(
    door: GrammarDoor, kind: Grammar.Kind, text: str
) -> None:
    assert len(text) <= MAX_GRAMMAR_CHARS
    with pytest.raises(Unprocessable, match="more memory or processor time"):
        await door.check(Grammar(kind=kind, text=text))
    await door.check(Grammar(kind=Grammar.REGEX, text="a"))


@pytest.mark.parametrize("lark", ["", "start: <tool_call> a <[7]>\na: %json "])
async def test_what_a_worker_would_not_come_to_an_end_with_is_refused(
    door: GrammarDoor, monkeypatch: pytest.MonkeyPatch, lark: str
) -> None:
    """It is a grammar, and only a matcher of it takes hours: it held up all others in a worker."""
    kind = Grammar.LARK if lark else Grammar.JSON_SCHEMA
    good, endless = (
        Grammar(kind=kind, text=lark + json.dumps({"type": "integer", "multipleOf": number}))
        for number in (360, 99_999_989)
    )
    await door.check(good)
    monkeypatch.setattr(sandbox, "LEAST_SHARE", 0.0)  # on a busy machine, too
    hasty = GrammarDoor(timeout_s=0.5)
    with pytest.raises(Unprocessable, match="longer than|more memory or processor time"):
        await hasty.check(endless)
    await hasty.close()


async def test_a_check_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LEAST_SHARE", 0.0)  # it has no time to take any
    door = GrammarDoor(timeout_s=0.0001)
    with pytest.raises(Unprocessable, match="longer than"):
        await door.check(Grammar(kind=Grammar.REGEX, text="a"))
    await door.close()


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "needs the package llguidance" in fault(Grammar(kind=Grammar.REGEX, text="a"))
