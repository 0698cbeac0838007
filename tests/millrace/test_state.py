"""The folder of a run: who holds its lock, and what is read of what another has written."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.cli import main
from millrace.errors import CommandError
from millrace.processes import ProcessId, identify
from millrace.state import RunState, StateFolder


def run_of(pid: int) -> RunState:
    runner = identify(pid)
    return RunState("run", runner or ProcessId(pid, 1), "http://there", "demo", True, [])


def ended() -> ProcessId:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = identify(process.pid)
    assert found is not None
    return found


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "a" / "state")
    held = folder.lock()
    assert held is not None
    num_open = len(os.listdir("/proc/self/fd"))
    assert folder.lock() is None
    assert len(os.listdir("/proc/self/fd")) <= num_open, "who was refused keeps nothing"
    os.close(held)
    again = folder.lock()
    assert again is not None
    os.close(again)


def test_what_was_written_is_read_until_it_is_forgotten(tmp_path: Path) -> None:
    folder, state = StateFolder(tmp_path), run_of(os.getpid())
    assert folder.read() is None and not folder.is_old()
    folder.write(state)
    assert folder.read() == state == folder.running()
    folder.mark_old()
    assert folder.is_old() and folder.read() == state
    folder.write(state)
    assert not folder.is_old()
    folder.forget()
    assert folder.read() is None
    folder.forget()
    folder.mark_old()


@pytest.mark.parametrize("content", [b"", b"{", b'{"run": 5}', b"[]"])
def test_the_state_of_another_version_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert StateFolder(tmp_path).read() is None


def test_a_file_in_the_place_of_the_folder_has_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = StateFolder(tmp_path / "file")
    assert folder.read() is None
    folder.mark_old()
    with pytest.raises(CommandError, match="cannot be written: .*; give another: --state FOLDER"):
        folder.lock()


def test_a_reader_never_sees_half_a_state(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.write(run_of(os.getpid()))
    with (tmp_path / "state.json").open("rb") as before:
        folder.write(run_of(os.getppid()))
        assert before.read(), "the old one, whole"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_run_whose_runner_has_ended_is_not_running_and_in_sight(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.check_in_sight()
    gone = ended()
    folder.write(RunState("run", gone, "http://there", "demo", True, []))
    assert folder.running() is None
    folder.check_in_sight()  # nobody has made a lock
    held = folder.lock()
    assert held is not None
    with pytest.raises(CommandError, match=rf"http://there \(pid {gone.pid}\) is run where"):
        folder.check_in_sight()
    folder.write(run_of(os.getpid()))
    folder.check_in_sight()  # it holds the lock, and can be seen
    os.close(held)
    folder.write(RunState("run", gone, "http://there", "demo", True, []))
    folder.check_in_sight()  # a lock is there, and nobody holds it


def test_a_run_of_which_nothing_can_be_read_is_not_called_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds the lock, so `up` says that it runs."""
    held = StateFolder(tmp_path).lock()
    assert held is not None
    (tmp_path / "state.json").write_text('{"of": "another version"}')
    for name in ("down", "status"):
        assert main([name, "--state", str(tmp_path)]) == 1
        told = capsys.readouterr()
        assert "is held by a run of which nothing can be read" in told.err and not told.out
    os.close(held)
    assert main(["down", "--state", str(tmp_path)]) == 0


def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    folder = StateFolder(tmp_path)
    os.close(folder.lock() or -1)
    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CommandError, match="cannot be locked: No locks available; give another"):
        folder.lock()
    assert not folder._is_locked()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_runner_may_end_while_its_state_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path)
    folder._file.touch()
    folder.mark_old()
    assert folder.is_old()
    exists = Path.exists

    def ends(path: Path) -> bool:
        found = exists(path)
        folder.forget()
        return found

    monkeypatch.setattr(Path, "exists", ends)
    folder.is_old()
    folder.forget()
    assert not folder.is_old()
