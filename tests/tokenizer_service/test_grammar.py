"""What is no grammar is refused with the reason; what is one passes."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from common.errors import InvalidRequest, Unprocessable
from protos.common_pb2 import Grammar
from tokenizer_service import grammar as module
from tokenizer_service.grammar import GrammarDoor

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GOOD = [
    (Grammar.JSON_SCHEMA, "{}"),
    (Grammar.JSON_SCHEMA, json.dumps(SCHEMA)),
    (Grammar.REGEX, r"[0-9]{3}-(a|b)+"),
    (Grammar.LARK, 'start: "a" (WORD ",")*\nWORD: /[a-z]+/'),
    (Grammar.CHOICE, '["yes", "no"]'),
]
BAD = [
    (Grammar.JSON_SCHEMA, "{", "not valid JSON"),
    (Grammar.JSON_SCHEMA, "[]", "must be an object"),
    (Grammar.JSON_SCHEMA, '{"type": "objec"}', "objec"),
    (Grammar.JSON_SCHEMA, '{"$ref": "#/$defs/none"}', "none"),
    (Grammar.REGEX, "(a", "unclosed group"),
    (Grammar.LARK, 'start: "a" missing', "missing"),
    (Grammar.LARK, "nonsense", "structured_outputs: "),
    (Grammar.CHOICE, "yes", "not valid JSON"),
    (Grammar.CHOICE, '["yes", 1]', "list of strings"),
    (Grammar.CHOICE, '[""]', "not empty"),
    (Grammar.CHOICE, "[]", "1 to"),
    (Grammar.CHOICE, json.dumps(["x"] * 1025), "1025"),
    (Grammar.REGEX, "a" * 65_537, "65536"),
]


@pytest.mark.parametrize(("kind", "text"), GOOD)
async def test_grammars_pass(kind: Grammar.Kind, text: str) -> None:
    door = GrammarDoor()
    await door.check(Grammar(kind=kind, text=text))
    door.close()


@pytest.mark.parametrize(("kind", "text", "why"), BAD)
async def test_what_is_none_is_refused(kind: Grammar.Kind, text: str, why: str) -> None:
    door = GrammarDoor()
    with pytest.raises(InvalidRequest, match=why) as caught:
        await door.check(Grammar(kind=kind, text=text))
    is_schema = kind == Grammar.JSON_SCHEMA
    assert caught.value.param == ("response_format" if is_schema else "structured_outputs")
    door.close()


async def test_a_check_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(module, "fault", lambda grammar: gate.wait() and "")
    door = GrammarDoor(timeout_s=0.01)
    with pytest.raises(Unprocessable, match=r"longer than 0\.01 s"):
        await door.check(Grammar(kind=Grammar.REGEX, text="a"))
    gate.set()
    door.close()


async def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    door = GrammarDoor()
    with pytest.raises(InvalidRequest, match="needs the package llguidance"):
        await door.check(Grammar(kind=Grammar.REGEX, text="a"))
    door.close()
