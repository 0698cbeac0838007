"""The measurement of a start runs, and says what its readers look for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import start


def test_a_start_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["start", "--shape", "tiny", "--folder", str(tmp_path), "--json"]
    monkeypatch.setattr("sys.argv", words)
    start.main()
    row = json.loads(capsys.readouterr().out)
    assert 0 < row["imports_s"] < row["first_token_s"] and row["open_s"] > 0
    assert row["resident_mib"] >= row["own_mib"] > 0
