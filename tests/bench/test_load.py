"""The load generator where there is nothing to load."""

from __future__ import annotations

import pytest

from bench.load import main


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("millrace bench: no model to be had at http://127.0.0.1:1: <urlopen")
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["--streams", "--requests", "--max-tokens"])
def test_nothing_to_do_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, "0"])
    assert f"argument {option}: invalid" in capsys.readouterr().err
