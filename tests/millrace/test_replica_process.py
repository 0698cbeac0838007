"""One replica as a process: what it says at last, how it ends, and whether it is started again."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import CANNOT_WORK
from millrace import replica_process
from millrace.child import MARK
from millrace.placement import Replica
from millrace.processes import identify, is_alive
from millrace.replica_process import Lines, ReplicaProcess
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


async def test_all_that_it_says_is_written_from_its_folder(tmp_path: Path) -> None:
    """Whatever the bytes; what stands there beside an end of a line is kept until there is one."""
    said: list[str] = []
    code = (
        "import os, sys, time\n"
        "os.write(2, os.getcwd().encode() + b'\\n\\xff b')\n"
        "time.sleep(0.1)\n"
        "os.write(1, b'egins\\n' + b'x' * 200_000 + b'\\n\\n')"
    )
    process = ReplicaProcess(replica(code), tmp_path, "run", lambda _, text: said.append(text))
    num_open = len(os.listdir("/proc/self/fd"))
    assert await process.live(process.start()) == 0
    assert said == [str(tmp_path), "\ufffd begins", "x" * 200_000, ""]
    assert len(os.listdir("/proc/self/fd")) <= num_open


async def test_its_variables_are_the_files_and_else_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file leaves empty hides nothing, and a path is the caller's, who is elsewhere."""
    monkeypatch.setenv("MILLRACE_CONFIG", "conf.yaml")
    monkeypatch.setenv("MILLRACE_GATEWAY_API_KEY_FILE", "keys")
    monkeypatch.setenv("MILLRACE_ENGINE_TENANT_LIMITS", "")
    said: list[str] = []
    given = {"MILLRACE_CONFIG": "", "MILLRACE_GATEWAY_API_KEY_FILE": "/data/keys"}
    one = replace(replica("import json, os; print(json.dumps({**os.environ}))"), environment=given)
    process = ReplicaProcess(one, tmp_path, "run", lambda _, text: said.append(text))
    assert await process.live(process.start()) == 0
    found = json.loads(said[0])
    assert found["MILLRACE_CONFIG"] == f"{os.getcwd()}/conf.yaml"
    assert found["MILLRACE_GATEWAY_API_KEY_FILE"] == "/data/keys"
    assert not found["MILLRACE_ENGINE_TENANT_LIMITS"]
    assert found[MARK] == "run"


async def test_a_pipe_that_is_closed_is_read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is news for ever: the loop would do nothing else. Who may not enlarge it reads on."""

    def deny(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", deny)
    reading, writing = os.pipe()
    said: list[str] = []
    lines = Lines(reading, said.append)
    os.write(writing, b"a\nb")
    os.close(writing)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asyncio.get_running_loop().remove_reader(reading)
    lines.close()
    os.close(reading)
    assert said == ["a", "b"]


async def test_it_is_healthy_from_its_probes_success_to_its_end(tmp_path: Path) -> None:
    """The probe fails twice; it runs as the file says, and is no child that would be left."""
    probe = "import os, sys; os.mkdir(sys.argv[1 + os.path.exists('1')])"
    again = [sys.executable, "-c", f"{probe}; raise SystemExit(not os.path.exists('2'))", "1", "2"]
    one = replace(replica("input()", probe=again), probe_interval_s=0)
    process = ReplicaProcess(one, tmp_path, "run", lambda *_: None)
    assert not await process._probe() and not process.was_healthy
    await process.probe_until_healthy()
    assert process.healthy.is_set() and process.was_healthy
    assert await process.live(process.start()) == 1
    assert not process.healthy.is_set() and process.was_healthy


async def test_a_probe_that_hangs_has_failed_and_is_ended(tmp_path: Path) -> None:
    code = "import os, signal; open('pid', 'w').write(str(os.getpid())); signal.pause()"
    hanging = replica("", probe=[sys.executable, "-c", code])
    process = ReplicaProcess(hanging, tmp_path, "run", lambda *_: None)
    probing = asyncio.create_task(process._probe())
    pid = tmp_path / "pid"
    await asyncio.to_thread(eventually, lambda: pid.exists() and bool(pid.read_text()))
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)
    assert identify(int(pid.read_text())) is None
    process.replica = replace(hanging, probe_timeout_s=0.01)
    num_open = len(os.listdir("/proc/self/fd"))
    assert not await process._probe()
    assert len(os.listdir("/proc/self/fd")) <= num_open


async def test_what_it_has_started_is_killed_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    code = (
        "import subprocess, signal\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()"
    )
    process = ReplicaProcess(replica(code), tmp_path, "run", lambda _, text: said.append(text))
    living = asyncio.create_task(process.live(process.start()))
    await asyncio.to_thread(eventually, lambda: bool(said))
    process.kill()
    assert await living == -signal.SIGKILL
    eventually(lambda: identify(int(said[0])) is None)


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


@pytest.mark.parametrize("name", ["identify", "Lines"])
async def test_who_cannot_be_watched_does_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another is started in its place, and would find its port taken."""
    spawned: list[int] = []
    spawn = ReplicaProcess._spawn

    def noted(process: ReplicaProcess, *how: Any) -> Any:
        child = spawn(process, *how)
        spawned.append(child.pid)
        return child

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(ReplicaProcess, "_spawn", noted)
    monkeypatch.setattr(replica_process, name, full)
    process = ReplicaProcess(
        replica("import time; time.sleep(1000)"), tmp_path, "run", lambda *_: None
    )
    with pytest.raises(OSError, match="no room"):
        await process.live(process.start())
    assert [identify(pid) for pid in spawned] == [None]
    assert process.identity is None
