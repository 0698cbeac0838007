"""Ctrl-C in the offline face, at moments that nobody can hit by hand."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterator

import pytest

from millrace import LLM, SamplingParams
from tests.support.tiny_model import write_tiny_model

Future = concurrent.futures.Future[object]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with LLM(folder, kv_cache_memory="8MiB") as opened:
        yield opened


def test_ctrl_c_ends_a_stream_that_was_just_asked_for(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop hears of the question, of its end and of the stream's end at once."""
    stream = llm.stream("x", SamplingParams(max_tokens=400, ignore_eos=True))
    held, is_held = threading.Event(), threading.Event()
    result = concurrent.futures.Future.result
    waits = iter((KeyboardInterrupt, None))

    def interrupted(future: Future, timeout: float | None = None) -> object:
        if error := next(waits, None):
            raise error
        held.set()
        return result(future, timeout)

    def hold() -> None:
        is_held.set()
        held.wait()

    llm._thread._loop.call_soon_threadsafe(hold)
    is_held.wait()
    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert len(llm.generate("x")) == 1
