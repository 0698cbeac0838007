"""The lines that `millrace logs` shows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from millrace.commands import logs
from millrace.state import StateFolder

BUSY = [f"api-gateway-1 | request {number}" for number in range(1000)]
CALM = ["worker-1 | loading", "worker-1 | ready"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["worker"], CALM),
        (["worker-1", "-n", "1"], CALM[1:]),
        (["api-gateway", "-n", "2"], BUSY[-2:]),
        (["-n", "2"], BUSY[-2:]),
        (["none"], []),
        (["-f", "worker"], CALM),
        (["-f", "-n", "2"], BUSY[-2:]),
    ],
)
def test_the_last_lines_are_those_of_the_services_asked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    wanted: list[str],
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stack.log").write_text("\n".join([*CALM, *BUSY]) + "\n")
    parser = argparse.ArgumentParser()
    logs.add_arguments(parser)
    assert logs.run(parser.parse_args([*options, "--state", str(tmp_path)])) == 0
    assert capsys.readouterr().out.splitlines() == wanted


@pytest.mark.parametrize("options", [["-n", "1"], ["-f", "-n", "1"]])
def test_a_long_line_is_shown_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (tmp_path / "logs").mkdir()
    line = f"worker-1 | {'a traceback ' * 500}end"
    (tmp_path / "logs" / "stack.log").write_text(f"short\n{line}\n")
    parser = argparse.ArgumentParser()
    logs.add_arguments(parser)
    assert logs.run(parser.parse_args([*options, "--state", str(tmp_path)])) == 0
    assert capsys.readouterr().out == f"{line}\n"


def test_who_follows_goes_on_in_the_next_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old one got at last is shown too, and a line once it is whole."""
    state = StateFolder(tmp_path)
    state.log.parent.mkdir()
    state.log.write_text("none\na\n")

    def write(text: str) -> None:
        with state.log.open("a") as file:
            file.write(text)

    def rotate() -> None:
        write("d\n")
        state.log.replace(state.log.with_suffix(".log.1"))
        write("e\n")

    happens = iter((lambda: write("b\nc"), rotate, lambda: write("f\n")))

    def running() -> object:
        if (step := next(happens, None)) is not None:
            step()
        return step

    monkeypatch.setattr(logs, "POLL_S", 0)
    monkeypatch.setattr(state, "running", running)
    assert list(logs.follow(state, 1)) == ["a", "b", "cd", "e", "f"]


def test_a_number_of_lines_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    logs.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["-n", "-3"])
    assert "argument -n/--lines: '-3' is not a number of 0 or more" in capsys.readouterr().err
