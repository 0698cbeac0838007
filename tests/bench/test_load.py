"""The load generator where there is nothing to load."""

from __future__ import annotations

import argparse
import json

import pytest

from bench import load
from bench.load import failure, main
from bench.sse_client import Outcome


@pytest.mark.parametrize(
    ("count", "part", "rank"),
    [(60, 0.95, 57), (2, 0.5, 1), (3, 0.5, 2), (10, 0.99, 10), (1, 0.5, 1), (4, 1.0, 4), (4, 0, 1)],
)
def test_percentiles_are_by_nearest_rank(count: int, part: float, rank: int) -> None:
    values = [float(n) for n in range(count, 0, -1)]
    assert load.percentile(values, part) == rank


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("millrace bench: no load for http://127.0.0.1:1: no answer from")
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:x", ""])
def test_an_address_that_takes_no_load_is_one_line(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A load to https:// went out in plain."""
    assert main(["--url", url, "--model", "m", "--requests", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"millrace bench: no load for {url}: ") and said.count("\n") == 1


@pytest.mark.parametrize("reply", ["{}", "[]", '{"data": [{"id": 5}]}', '{"data": null}'])
def test_a_list_of_models_that_is_none_is_one_line(
    reply: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load.Server, "get", lambda self, path: json.loads(reply))
    assert main(["--url", "http://a"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_server_that_fails_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "run", one_run)
    assert main(["--url", "http://a", "--vs", "http://b"]) == 2
    assert "no load for http://b: gone" in capsys.readouterr().err


def test_a_server_may_be_measured_beside_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "run", one_run)
    assert main(["--url", "http://a", "--vs", "http://a"]) == 0
    assert "ratio 1.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome(0.0), "the connection ended before there was a reply"),
        (Outcome(0.0, 200, tail=b'data: "an error"'), "ended in the middle of a reply"),
        (Outcome(0.0, 200, tail=b'data: {"error": {"code": "draining"}}'), "draining"),
        (Outcome(0.0, 429, tail=b"queue_full"), "status 429 queue_full"),
    ],
)
def test_how_a_stream_failed(outcome: Outcome, told: str) -> None:
    assert told in failure(outcome)


async def one_run(args: argparse.Namespace, url: str) -> dict[str, float]:
    if url == "http://b":
        raise OSError("gone")
    return {"requests": 1, "failed": 0}


@pytest.mark.parametrize("option", ["--streams", "--requests", "--max-tokens"])
def test_nothing_to_do_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, "0"])
    assert f"argument {option}: '0' is not a positive number" in capsys.readouterr().err
