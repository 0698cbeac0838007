"""Who is killed leaves a folder to the next, and nobody takes that of who lives."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine_core import socket_folder
from engine_core.socket_folder import SocketFolder

MAKES_ONE = """
from engine_core.socket_folder import SocketFolder
folder = SocketFolder()
print(folder.path, flush=True)
input()
"""


def maker(place: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    environment = os.environ | {"TMPDIR": str(place)}
    command = [sys.executable, "-c", MAKES_ONE]
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def told(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().rstrip())


def test_what_a_killed_front_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with maker(tmp_path) as killed, maker(tmp_path) as living:
        left, held = told(killed), told(living)
        (left / "1").touch()
        killed.kill()
        killed.wait()
        with SocketFolder() as own:
            assert set(tmp_path.iterdir()) == {held, own.path}
            own.remove()
        assert not own.path.exists()
        living.communicate("\n")


def test_a_folder_that_was_taken_for_left_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, make = [], tempfile.mkdtemp

    def taken_once(prefix: str, dir: Path) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    folder = SocketFolder()
    assert str(folder.path) == made[1] and folder.path.exists()
    folder.remove()


def test_a_place_whose_path_is_too_long_for_a_socket_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (far := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    monkeypatch.setattr(socket_folder, "SHORT", tmp_path)
    with SocketFolder() as folder:
        assert folder.path.parent == tmp_path
