"""The load generator where there is nothing to load."""

from __future__ import annotations

import pytest

from bench.load import main


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("millrace bench: no model to be had at http://127.0.0.1:1: <urlopen")
    assert said.count("\n") == 1
