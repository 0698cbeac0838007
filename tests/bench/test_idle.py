"""The measurement of the idle stack finds every process of a run, and ends it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench import idle
from tests.support.stack import FAKE_FILE, eventually


def test_every_process_of_a_run_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    processes = idle.processes

    def noted(state: idle.RunState) -> dict[str, int]:
        runs.append((state, processes(state)))
        return runs[0][1]

    monkeypatch.setattr(idle, "SETTLE_S", 0.0)
    monkeypatch.setattr(idle, "processes", noted)
    words = ["--seconds", "0.2", "--json", "--file", str(FAKE_FILE)]
    monkeypatch.setattr("sys.argv", ["idle", *words])
    idle.main()
    told = json.loads(capsys.readouterr().out)
    state, pids = runs[0]
    assert {r.name for r in state.replicas} <= set(told["processes"]) == set(pids)
    assert state.runner.pid in pids.values() and len(pids) > len(state.replicas) + 1
    assert told["percent_of_a_core"] >= 0
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))


def test_a_process_that_works_shows() -> None:
    before = idle.spent({"me": os.getpid()})["me"]
    sum(range(2_000_000))
    after = idle.spent({"me": os.getpid()})["me"]
    assert after[0] > before[0] and after[1] >= before[1]
