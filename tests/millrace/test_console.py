"""The log file: prefixes, the last lines, rotation."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace import console
from millrace.console import Console, coloured, tail
from millrace.errors import CommandError


def test_lines_carry_the_replicas_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "stack.log"
    out = Console(log, ["worker-1", "tokenizer-service-1"], echo=True)
    out.write("worker-1", "loaded")
    out.say("stopping")
    out.close()
    lines = ["worker-1            | loaded", "millrace            | stopping"]
    assert log.read_text().splitlines() == lines
    assert capfd.readouterr().out.splitlines() == lines


def test_a_new_run_keeps_the_last_ones_log(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    for text in ("first", "second"):
        out = Console(log, [], echo=False)
        out.say(text)
        out.close()
    assert log.read_text() == "millrace | second\n"
    assert (tmp_path / "stack.log.1").read_text() == "millrace | first\n"


def test_a_log_that_somebody_has_removed_begins_anew_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As people do on a full disk; no line was kept from then on, and the room stayed taken."""
    monkeypatch.setattr(console, "MAX_LOG_BYTES", 100)
    log = tmp_path / "stack.log"
    out = Console(log, [], echo=False)
    out.say("x" * 200)
    log.unlink()
    out.say("here again")
    out.close()
    assert log.read_text() == "millrace | here again\n"


def test_the_log_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MAX_LOG_BYTES", 100)
    log = tmp_path / "stack.log"
    out = Console(log, [], echo=False)
    for index in range(40):
        out.say(f"line {index}")
    out.close()
    assert log.stat().st_size < 200
    assert tail(log, 1) == ["millrace | line 39"]


def test_a_log_that_cannot_be_begun_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "stack.log"
    log.parent.write_text("a file stands in the way")
    with pytest.raises(CommandError, match=r"stack\.log cannot be written: "):
        Console(log, [], echo=False)


def test_a_full_disk_costs_lines_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Console(tmp_path / "stack.log", [], echo=True)
    out._file.close()
    out._file = open("/dev/full", "ab", buffering=0)
    out.say("still told")
    out.close()
    assert capfd.readouterr().out == "millrace | still told\n"


def test_a_line_that_half_fitted_is_finished_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next line stood behind its half, which made both unreadable."""
    log = tmp_path / "stack.log"
    out = Console(log, [], echo=False)
    write = out._file.write
    for room, text in ((14, "cut in two"), (0, "lost"), (99, "whole again")):

        def within(data: bytes, room: int = room) -> int:
            if not room:
                raise OSError(errno.ENOSPC, "no space is left")
            return write(data[:room])

        monkeypatch.setattr(out, "_file", SimpleNamespace(tell=lambda: 0, write=within))
        out.say(text)
    monkeypatch.undo()
    out.close()
    assert log.read_text() == "millrace | cut in two\nmillrace | whole again\n"


def test_a_terminal_that_takes_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LAST_LOOK_S", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(reading) as terminal, os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        log = tmp_path / "stack.log"
        out = Console(log, ["worker-1"], echo=True)
        for index in range(5000):
            out.write("worker-1", f"{index} {'x' * 100}")  # 550 kB; a pipe holds 64
        assert len(log.read_text().splitlines()) == 5000
        line = ""
        while not line.startswith("millrace | it goes on"):
            previous, line = line, terminal.readline()
            out.say("it goes on")
        assert "lines were not shown here" in previous
        while "the end" not in terminal.readline():
            out.say("the end")
        out.close()


def test_a_reader_that_has_gone_ends_the_echo_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        out = Console(tmp_path / "stack.log", [], echo=True)
        for _ in range(3):
            out.say("still kept")
        out.close()
    assert (tmp_path / "stack.log").read_text().splitlines() == ["millrace | still kept"] * 3


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    assert tail(log, 3) == []
    log.write_text("".join(f"{index} {'x' * 300}\n" for index in range(100)))
    assert [line.split()[0] for line in tail(log, 3)] == ["97", "98", "99"]


def test_tail_gives_whole_lines_however_long_they_are(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    lines = [f"{index} {'x' * 5000}\u2028 still it" for index in range(4)]
    log.write_text("".join(f"{line}\n" for line in lines))
    for count in range(6):
        assert tail(log, count) == lines[max(0, 4 - count) :]


def test_replicas_of_one_service_have_one_colour() -> None:
    first, second = coloured("worker-1 | a"), coloured("worker-2 | a")
    assert first[:5] == second[:5]
    assert first.endswith("|\x1b[0m a")


def test_a_line_that_is_not_at_its_end_is_one_of_the_last(tmp_path: Path) -> None:
    log = tmp_path / "stack.log"
    log.write_text("a | 1\na | 2\na | thr")
    assert tail(log, 2) == ["a | 2", "a | thr"]
    assert tail(log, 0) == []
