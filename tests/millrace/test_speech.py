"""Answers in the terminal: thoughts dimmed, or marked where no colours show."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pty
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from millrace import speech
from millrace.commands import chat
from millrace.console import has_colours
from millrace.errors import CommandError
from millrace.speech import Speech, typed


@pytest.mark.parametrize(
    ("is_coloured", "wanted"),
    [(True, "\x1b[2mHm, so\x1b[0m\n\nYes. No."), (False, "[thinks] Hm, so\n\nYes. No.")],
)
def test_thoughts_are_told_from_the_answer(
    is_coloured: bool,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speech, "has_colours", lambda: is_coloured)
    heard = Speech()
    for step in (("Hm,", ""), ("", ""), (" so", "Yes."), ("", " No.")):
        heard.add(*step)
    heard.close()
    assert capsys.readouterr().out == wanted and heard.said == "Yes. No."


def test_a_terminal_obeys_no_word_of_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe, and the conversation, get what was said."""
    words, shown = "a\x1b]0;title\x07\tb\r\n\x9b2Jc\x7f é\u2028", "a]0;title\tb\n2Jc é\u2028"
    thought = "\x1b[8mhidden"
    for is_shown, wanted in (
        (True, [shown, "\x1b[2m[8mhidden"]),
        (False, [words, f"[thinks] {thought}"]),
    ):
        for name in ("is_terminal", "has_colours"):
            monkeypatch.setattr(speech, name, lambda has=is_shown: has)
        heard = Speech()
        heard.add("", words)
        assert (capsys.readouterr().out, heard.said) == (wanted[0], words)
        heard.add(thought, "")
        assert capsys.readouterr().out == wanted[1]


class Thinker:
    """A server whose model thinks and answers."""

    url = "http://thinker"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def models(self) -> Any:
        return [{"id": "m"}]

    def events(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(body["messages"])
        for delta in (
            {"role": "assistant", "content": ""},
            {"reasoning_content": "Hm", "reasoning": "Hm"},
            {"reasoning": "!"},
            {"content": "Yes"},
            {},
        ):
            yield {"choices": [{"delta": delta}]}


def test_a_chat_shows_thoughts_and_forgets_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Thinker()
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\n/exit\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 0
    assert capsys.readouterr().out == "[thinks] Hm!\n\nYes\n" * 2
    assert there.asked[1][1:] == [
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Two?"},
    ]


class Stranger(Thinker):
    """Answers in events of its own; its name, and its failure, would change a terminal."""

    def __init__(self, *events: Any) -> None:
        super().__init__()
        self._events = events

    def models(self) -> Any:
        return [{"id": "m\x1b[2J"}]

    def events(self, path: str, body: dict[str, Any]) -> Any:
        yield from self._events
        raise CommandError("gone\x1b[2J")


def has_gnu_readline() -> bool:
    if find_spec("readline") is None:
        return False
    return "GNU" in (importlib.import_module("readline").__doc__ or "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        ({"type": "ping"}, "gone[2J"),
        ({"choices": [{"text": "no delta"}, {"delta": None}]}, "gone[2J"),
        ({"choices": [{"delta": {"content": ["part"]}}]}, "no event of a chat: Expected"),
        ({"choices": None}, "no event of a chat: Expected"),
    ],
)
def test_a_chat_outlives_events_of_others(
    event: Any, failure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Stranger(event)
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", Terminal("One?\n/exit\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 0
    told = capsys.readouterr().out
    assert told.startswith("m[2J at ") and failure in told and "\x1b" not in told


class Refuser(Thinker):
    """Fails its first question."""

    def events(self, path: str, body: dict[str, Any]) -> Any:
        events = super().events(path, body)
        yield {"choices": []}  # a stream that began
        if len(self.asked) == 0:
            self.asked.append(body["messages"])
            raise CommandError("no")
        yield from events


def test_a_question_without_an_answer_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Refuser()
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nOne?\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 1, "on a pipe a failure is one"
    told = capsys.readouterr()
    assert told.err == "no\n" and "no" not in told.out
    assert there.asked[1] == [{"role": "user", "content": "One?"}]


class Changer(Thinker):
    """Is started again with another model after the first answer."""

    def models(self) -> Any:
        return [{"id": "old" if len(self.asked) < 2 else "new"}]

    def events(self, path: str, body: dict[str, Any]) -> Any:
        yield from super().events(path, body)
        if body["model"] != self.models()[0]["id"]:
            raise CommandError("no such model")


def test_a_chat_goes_on_with_the_model_that_is_served_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asked for the one of its beginning, which was served no more, until it was left."""
    for options, failures in (([], 1), (["--model", "old"], 2)):
        there = Changer()
        monkeypatch.setattr(chat, "server", lambda args, there=there: there)
        monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\nThree?\n"))
        parser = argparse.ArgumentParser()
        chat.add_arguments(parser)
        assert chat.run(parser.parse_args(options)) == 1
        assert capsys.readouterr().err == "no such model\n" * failures


class Breaker(Thinker):
    """Fails in the midst of every answer."""

    def events(self, path: str, body: dict[str, Any]) -> Any:
        yield from super().events(path, body)
        raise CommandError("no")


def test_an_answer_that_breaks_off_on_a_pipe_ends_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next answer began beside it."""
    monkeypatch.setattr(chat, "server", lambda args: Breaker())
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 1
    told = capsys.readouterr()
    assert told.out == "[thinks] Hm!\n\nYes\n" * 2 and told.err == "no\n" * 2


class Ending(Thinker):
    """Ends its first answer in a way of its own."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self._end = end

    def events(self, path: str, body: dict[str, Any]) -> Any:
        yield from super().events(path, body)
        if len(self.asked) == 1:
            if isinstance(self._end, BaseException):
                raise self._end
            yield {"choices": [{"delta": {}, "finish_reason": self._end}]}


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("stop", "Yes\n"),
        ("length", f"Yes{chat.CUT_OFF}\n"),
        (KeyboardInterrupt(), "Yes [stopped]\n"),
        (CommandError("context length is 8"), "[context length is 8; /clear forgets the conv"),
    ],
)
def test_a_terminal_is_told_how_an_answer_ended(
    end: Any, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was said before it stays in the conversation."""
    there = Ending(end)
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", Terminal("One?\nTwo?\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 0
    assert shown in capsys.readouterr().out
    assert [message["content"] for message in there.asked[1]] == ["One?", "Yes", "Two?"]


class Ponderer(Thinker):
    """Is stopped while it thinks."""

    def events(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(body["messages"])
        yield {"choices": [{"delta": {"reasoning": "Hm"}}]}
        raise KeyboardInterrupt


def test_thoughts_that_are_stopped_are_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal would show all that follows as thoughts."""
    there = Ponderer()
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args([])) == 0
    assert capsys.readouterr().out == "[thinks] Hm\n\n [stopped]\n" * 2
    assert there.asked[1] == [{"role": "user", "content": "Two?"}]


def test_a_chat_forgets_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Thinker()
    monkeypatch.setattr(chat, "server", lambda args: there)
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\n/clear\n\nTwo?\n/quit\nThree?\n"))
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    assert chat.run(parser.parse_args(["--system", "Be short."])) == 0
    said = [[message["content"] for message in messages] for messages in there.asked]
    assert said == [["Be short.", "One?"], ["Be short.", "Two?"]]


def test_bytes_that_are_no_text_are_one_line() -> None:
    for read in (lambda: "a\udcff", lambda: b"\xff".decode()):
        with pytest.raises(CommandError, match="standard input is not UTF-8"):
            typed(read)
    assert typed(lambda: "é") == "é"


def asked(keys: bytes, terminal: str) -> str:
    """Return what a terminal of this kind shows while a question is typed, and the question."""
    ours, theirs = pty.openpty()
    code = "from millrace.commands import chat; chat.edit_lines(); print(ascii(chat._question()))"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        env={**os.environ, "TERM": terminal},
    )  # fmt: skip
    with child:
        os.close(theirs)
        os.write(ours, keys)
        _, errors = child.communicate(timeout=60)
    said = os.read(ours, 2**16).decode()
    os.close(ours)
    assert child.returncode == 0, errors
    return said.rstrip()


@pytest.mark.skipif(find_spec("readline") is None, reason="this Python has no readline")
def test_arrow_keys_edit_the_question() -> None:
    """The model got them as characters."""
    assert asked(b"ac\x1b[Db\n", "vt100").endswith("'abc'")


@pytest.mark.skipif(not has_gnu_readline(), reason="this Python has no GNU readline")
def test_lines_that_are_pasted_are_one_question() -> None:
    """Each was asked by itself: the terminal was not told to say where a paste begins and ends."""
    shown = asked(b"\x1b[200~def f():\n    return 1\x1b[201~\n", "xterm")
    assert "\x1b[?2004h" in shown and shown.endswith(r"'def f():\n    return 1'")
    assert asked(b"hi\n", "dumb").endswith("'hi'") and "\x1b" not in asked(b"hi\n", "dumb")


@pytest.mark.parametrize(
    ("given", "shows"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_a_terminal_without_colours_is_shown_none(
    given: dict[str, str], shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escape sequences stood in the text of a dumb one."""
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert has_colours() == shows
    heard = Speech()
    heard.add("\x07Hm", "")
    assert "\x07" not in sys.stdout.getvalue()  # type: ignore[attr-defined]
