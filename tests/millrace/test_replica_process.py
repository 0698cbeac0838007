"""One replica as a process: what it says at last, how it ends, and whether it is started again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import CANNOT_WORK
from millrace import replica_process
from millrace.placement import Replica
from millrace.processes import identify, is_alive
from millrace.replica_process import ReplicaProcess
from millrace.supervisor import wants_restart
from tests.support.stack import eventually


def replica(code: str, restart: str = "no", probe: list[str] | None = None) -> Replica:
    return Replica(
        name="one-1", service="one", command=[sys.executable, "-c", code], environment={},
        ports={}, probe=probe, probe_interval_s=1,
        probe_timeout_s=60, stop_grace_s=1, restart=restart, needs=[],
    )  # fmt: skip


async def test_its_last_words_are_kept_and_its_group_ends_with_it(tmp_path: Path) -> None:
    """They need no end of line: a message of a crash often has none."""
    said: list[tuple[str, str]] = []
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL)\n"
        "sys.stdout.write(f'{child.pid}\\nno end')\n"
        "raise SystemExit(3)"
    )
    process = ReplicaProcess(replica(code), tmp_path, "run", lambda *line: said.append(line))
    running = process.start()
    me = process.identity
    assert me is not None and is_alive(me)
    assert await process.live(running) == 3
    (_, child), last = said
    assert last == ("one-1", "no end")
    assert process.identity is None
    eventually(lambda: identify(int(child)) is None)


@pytest.mark.parametrize(
    ("policy", "status", "num_starts", "again"),
    [
        ("no", 1, 1, False),
        ("always", 0, 9, True),
        ("unless-stopped", 1, 9, True),
        ("unless-stopped", CANNOT_WORK, 1, False),
        ("on-failure", 0, 1, False),
        ("on-failure", 1, 9, True),
        ("on-failure:2", 1, 2, True),
        ("on-failure:2", 1, 3, False),
    ],
)
def test_who_is_started_again(
    tmp_path: Path, policy: str, status: int, num_starts: int, again: bool
) -> None:
    """`on-failure:2` allows two more starts, as Docker counts them."""
    process = ReplicaProcess(replica("", policy), tmp_path, "run", lambda *_: None)
    process.num_starts = num_starts
    assert wants_restart(process, status) == again


def test_who_has_worked_once_is_started_again_whatever_ended_it(tmp_path: Path) -> None:
    process = ReplicaProcess(replica("", "always"), tmp_path, "run", lambda *_: None)
    process.was_healthy = True
    assert wants_restart(process, CANNOT_WORK)


def run_through(*_: object) -> subprocess.Popen[bytes]:
    """Return a probe that has succeeded."""
    probe = subprocess.Popen(["true"])
    probe.wait()
    return probe


async def test_who_ended_as_its_probe_succeeded_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wait_for of Python 3.11 forgets to be cancelled when what it waits for is just there."""
    succeeded = asyncio.Event()

    async def ended(pid: int) -> None:
        await succeeded.wait()

    monkeypatch.setattr(replica_process, "ended", ended)
    monkeypatch.setattr(ReplicaProcess, "_spawn", run_through)
    process = ReplicaProcess(replica("", probe=["true"]), tmp_path, "run", lambda *_: None)
    for num_turns in range(4):
        probing = asyncio.create_task(process.probe_until_healthy())
        for _ in range(3):
            await asyncio.sleep(0)
        succeeded.set()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        process.healthy.clear()  # as `live` does, and then its caller
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        assert not process.healthy.is_set(), num_turns
        succeeded.clear()
