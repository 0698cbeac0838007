"""Peers are measured in processes of their own; however one ends, the page says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import __main__ as command
from bench.peers import table
from bench.peers.asking import PREFILL_BUDGET_S, Answer, Task, _prefills
from bench.peers.candidates import CANDIDATES, OURS, PEERS, Candidate
from bench.peers.running import Outcome, run
from bench.windows import WINDOW, fastest_window

FAKE = "tests.bench.fake_peer"


def task(folder: Path, batches: list[int] | None = None) -> Task:
    return Task(
        folder=str(folder), converted=str(folder / "peers"), weights="bf16",
        batches=[1, 4] if batches is None else batches, context=4, steps=3, prompt=20, runs=2,
        threads=1,
    )  # fmt: skip


def fake(folder: Path, weights: str, limit_s: float = 60, python: str = sys.executable) -> Outcome:
    candidate = Candidate("fake", weights, FAKE, "int8")
    return run(candidate, replace(task(folder), weights=weights), python, limit_s)


def test_what_a_peer_answers(tmp_path: Path) -> None:
    outcome = fake(tmp_path, "fine")
    assert outcome.problem == ""
    assert outcome.answer.decode_tokens_per_s == {1: 2.0, 4: 8.0}
    assert outcome.answer.prefill_tokens_per_s == 20.0  # the fastest prefill
    assert outcome.answer.facts == {"threads": "1"} and "numpy" in outcome.answer.versions


def test_slow_prefills_are_fewer() -> None:
    class Slow:
        def __init__(self) -> None:
            self.times = iter([PREFILL_BUDGET_S - 1, 2.0, 1.0])

        def facts(self) -> dict[str, str]:
            return {}

        def decode(self, batch: int) -> list[float]:
            return []

        def prefill(self) -> float:
            return next(self.times)

    assert _prefills(Slow(), runs=3) == [PREFILL_BUDGET_S - 1, 2.0]


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    outcome = fake(tmp_path, "absent")
    assert outcome.problem == "not installed: no-such-package"
    assert not outcome.answer.decode_tokens_per_s


@pytest.mark.parametrize(
    ("weights", "problem"),
    [("broken", "exit 1: MemoryError: no room for 4 rows | at all"), ("shot", "killed by SIGILL")],
)
def test_a_peer_that_fails_says_why_and_keeps_its_figures(
    tmp_path: Path, weights: str, problem: str
) -> None:
    outcome = fake(tmp_path, weights)
    assert outcome.problem == problem
    assert outcome.answer.decode_tokens_per_s == {1: 2.0}
    assert "noise on standard error" in (tmp_path / "peers" / f"fake-{weights}.log").read_text()


def test_a_peer_that_hangs_is_ended(tmp_path: Path) -> None:
    assert fake(tmp_path, "stuck", limit_s=0.5).problem == "not done after 0.5 s"


def test_an_ended_command_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import runpy; from bench.peers import candidates as known;"
        f"known.CANDIDATES = (known.Candidate({PEERS[0]!r}, 'stuck', {FAKE!r}, 'int8'),);"
        "runpy.run_module('bench.peers', run_name='__main__')"
    )
    argv = [sys.executable, "-c", code, "--shape", "tiny", "--folder", str(tmp_path)]
    log = tmp_path / "peers" / f"{PEERS[0]}-stuck.log"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not log.exists() or "\n" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
    [peer] = re.findall(r"process (\d+)", log.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(int(peer), 0)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in fake(tmp_path, "fine", python=str(tmp_path / "python")).problem


def test_figures_of_an_earlier_run_are_not_told(tmp_path: Path) -> None:
    fake(tmp_path, "fine")
    gone = fake(tmp_path, "fine", python=str(tmp_path / "python"))
    assert not gone.answer.decode_tokens_per_s


def test_ours_beside_a_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = next(c for c in CANDIDATES if (c.name, c.weights) == (OURS, "int8"))
    monkeypatch.setattr(command, "CANDIDATES", (mine, Candidate(PEERS[0], "Q8", FAKE, "int8")))
    options = "--shape tiny --batch 1,3 --prefill 20 --context 4 --steps 3 --runs 2 --threads 1"
    output = tmp_path / "page.md"
    argv = ["peers", *options.split(), "--folder", str(tmp_path), "--output", str(output)]
    monkeypatch.setattr("sys.argv", argv)
    command.main()
    page = output.read_text()
    assert page in capsys.readouterr().out
    assert f"| int8 / {PEERS[0]} Q8 |" in page
    assert "level " in page and f"| {PEERS[0]} Q8 | 2.0 | 6.0 | 20.0 |" in page


def outcome(candidate: Candidate, one: float, many: float, prefill: float) -> Outcome:
    answer = Answer(decode_tokens_per_s={1: one, 8: many}, prefill_tokens_per_s=prefill)
    return Outcome(candidate, answer, "", 0.0)


def test_the_page_says_where_a_peer_is_not_beaten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Candidate("peer", "Q8", FAKE, "int8")
    rows = [
        outcome(Candidate(OURS, "int8", FAKE, "int8"), 22.0, 115.0, 114.0),
        outcome(peer, 20.0, 100.0, 100.0),
        outcome(Candidate("alone", "bf16", FAKE, "bf16"), 1.0, 1.0, 1.0),
    ]
    assert table.behind(rows, [1, 8, table.PREFILL]) == [(peer, table.PREFILL)]
    page = table.document("title", ["facts"], rows, task(tmp_path, [1, 8]))
    assert "| int8 / peer Q8 | 1.10 | 1.15 | 1.14 ✗ |" in page
    assert "peer Q8 at prefill: The reason is not known." in page
    assert "/ alone" not in page
    monkeypatch.setitem(table.REASONS, ("peer", "Q8"), "Theirs has more of it.")
    assert "prefill: Theirs has more" in table.document("", [], rows, task(tmp_path, [1, 8]))


def test_every_reason_belongs_to_a_candidate() -> None:
    assert table.REASONS.keys() <= {(c.name, c.weights) for c in CANDIDATES}


def test_what_is_missing_is_a_dash(tmp_path: Path) -> None:
    peer = Candidate("peer", "Q8", FAKE, "int8")
    ours = outcome(Candidate(OURS, "int8", FAKE, "int8"), 22.0, 115.0, 114.0)
    page = table.document("", [], [ours, Outcome(peer, Answer(), "a | b", 0.0)], task(tmp_path))
    assert "| int8 / peer Q8 | – | – | – |" in page and "a \\| b" in page


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--only", "llama.cpp,nobody"], "'nobody' is none of"),
        (["--python", "nobody=/bin/python"], "'nobody' is none of"),
    ],
)
def test_unknown_names(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["peers", "--shape", "tiny", *argv])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert told in f"{stop.value}{capsys.readouterr().err}"


def test_one_interpreter_for_all_and_one_for_one() -> None:
    first, *others = PEERS
    pythons = command._interpreters([f"{first.upper()}=/special", "/general"])
    assert pythons[first] == "/special" and pythons[OURS] == sys.executable
    assert {pythons[name] for name in others} == {"/general"}


def test_the_fastest_window() -> None:
    times = [9.0] * 5 + [1.0] * WINDOW + [3.0] * 20
    assert fastest_window(times) == 1.0
    assert fastest_window([4.0, 2.0]) == 3.0
    with pytest.raises(ValueError, match="no step"):
        fastest_window([])
