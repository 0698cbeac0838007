"""Ctrl-C in the offline face, at moments that nobody can hit by hand."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import LLM, SamplingParams
from millrace.processes import free_port
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


def test_ctrl_c_while_an_llm_is_closed_ends_the_wait_and_not_the_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts were left as they stood, a process among them, for as long as Python ran."""
    llm = LLM(write_tiny_model(tmp_path / "tiny"), kv_cache_memory="8MiB")
    closed: list[object] = []
    client, loop_thread = llm._llm._client, llm._thread._thread
    close = client.close

    async def slow_close() -> None:
        await asyncio.to_thread(interrupted.wait)
        await close()
        closed.append(client)

    def interrupt(future: Future, timeout: float | None = None) -> object:
        raise KeyboardInterrupt

    interrupted = threading.Event()
    monkeypatch.setattr(client, "close", slow_close)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures.Future, "result", interrupt)
        llm.close()
    interrupted.set()
    loop_thread.join()
    assert closed == [client]


def test_ctrl_c_while_nobody_answers_at_a_url_leaves_no_half_ended_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio told of each, "Task was destroyed but it is pending!", behind the user's prompt."""

    def interrupt(future: Future, timeout: float | None = None) -> object:
        time.sleep(0.3)  # it dials meanwhile
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures.Future, "result", interrupt)
        LLM(url=f"127.0.0.1:{free_port()}")
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
