"""Too few threads are told in one line, before a library that needs them ends the process."""

from __future__ import annotations

import threading

import pytest

from common import threads


@pytest.fixture
def three_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, iter(range(3))

    def limited(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_enough_threads_leave_none_behind() -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    threads.check()
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("three_more")
def test_too_few_threads_say_what_to_raise() -> None:
    before = set(threading.enumerate())
    with pytest.raises(SystemExit, match="^worker: only 3 of 16 threads .* --pids-limit"):
        threads.check_or_exit("worker")
    assert set(threading.enumerate()) <= before
