"""Libraries of the emulator are made once, in a folder that test processes share."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from tests import emulator


def test_processes_side_by_side_compile_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each moved away what the other was writing, or loaded it half written."""
    made: list[str] = []
    others: list[Thread] = []
    paths: list[Path] = []

    def build(source: str) -> None:
        paths.append(emulator.build(source, tmp_path))

    def compile_beside_another(*command: str) -> None:
        if not others:
            others.append(Thread(target=build, args=["one"]))
            others[0].start()
            others[0].join(0.2)  # which now waits
        made.append(command[-1])
        Path(command[-1]).write_text("made")

    monkeypatch.setattr(emulator, "run", compile_beside_another)
    build("one")
    others[0].join()
    build("another")
    assert paths[0] == paths[1] != paths[2]
    runtimes = [name for name in made if "runtime" in name]
    assert len(made) == len(set(made)) == 5 and len(runtimes) == 1
