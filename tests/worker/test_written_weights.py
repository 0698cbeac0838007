"""A model folder that is written to under a worker that serves it."""

from __future__ import annotations

import os
from pathlib import Path

from protos import worker as wire
from tests.support.fake_scheduler import FakeEngine
from tests.support.model_folders import write_folder
from tests.support.running_worker import Running
from tests.worker.plans import start
from worker.build import load_model

FIRST = wire.ExecutePlan(0, starts=(start(1, list(range(5, 40)), range(3)),))
SECOND = wire.ExecutePlan(1, steps=(wire.SequenceStep(1, 1),))


def changed(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    return bytes(content)


def test_weights_that_are_written_over_are_not_served(engine: FakeEngine, tmp_path: Path) -> None:
    """Tokens are looked up in the file: answers would be half of one model, half of another."""
    path = write_folder(tmp_path / "model") / "model.safetensors"
    running = Running(engine, load_model(path.parent, num_threads=1))
    _, scheduler = engine.ready()
    scheduler.execute(FIRST)
    path.write_bytes(changed(path))
    scheduler.send(SECOND)
    assert f"{path} was written to" in scheduler.expect(wire.WorkerFault).message
    running.wait()
    assert [str(path) in str(error) for error in running.errors] == [True]


def test_a_file_in_its_place_changes_nothing(engine: FakeEngine, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model") / "model.safetensors"
    running = Running(engine, load_model(path.parent, num_threads=1))
    _, scheduler = engine.ready()
    scheduler.execute(FIRST)
    (path.parent / "new").write_bytes(changed(path))
    os.replace(path.parent / "new", path)
    assert scheduler.execute(SECOND).step_id == 1
    path.unlink()
    assert scheduler.execute(wire.ExecutePlan(2, steps=(wire.SequenceStep(1, 1),))).step_id == 2
    running.end()
    assert running.errors == []
