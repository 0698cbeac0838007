"""Identities of processes, and who holds a port."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millrace import child
from millrace.processes import (
    ProcessId,
    age_s,
    claim,
    free_port,
    identify,
    is_address,
    is_alive,
    is_listening,
    kill_group,
    listener,
    send,
)
from millrace.replica_process import Lines
from tests.support.stack import eventually


def test_a_pid_with_another_start_time_is_another_process() -> None:
    me = identify(os.getpid())
    assert me is not None and is_alive(me)
    stranger = ProcessId(me.pid, me.started - 1)
    assert not is_alive(stranger)
    assert not send(stranger, signal.SIGKILL), "and is never signalled"


def test_a_younger_process_has_a_later_start_time() -> None:
    me = identify(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = identify(process.pid)
    assert me is not None and other is not None
    assert me.started < other.started
    assert age_s(me) > age_s(other) >= 0


@pytest.mark.parametrize("error", [PermissionError, ProcessLookupError])
def test_a_process_of_which_nothing_is_told_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Under hidepid=1 what an old run left behind names a stranger's pid; or it ends meanwhile."""

    def deny(path: Path) -> str:
        raise error(1, "nothing is told", str(path))

    monkeypatch.setattr(Path, "read_text", deny)
    assert identify(os.getpid()) is None


def test_an_ended_process_is_none_even_unreaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    assert identity is not None and send(identity, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert identify(process.pid) is None
    process.communicate()


def test_who_ends_before_the_signal_was_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(*_: object) -> None:
        raise ProcessLookupError

    me = identify(os.getpid())
    assert me is not None
    monkeypatch.setattr(os, "kill", miss)
    monkeypatch.setattr(os, "killpg", miss)
    assert not send(me, signal.SIGTERM)
    kill_group(me.pid)


def test_a_clock_that_is_set_makes_no_process_older(monkeypatch: pytest.MonkeyPatch) -> None:
    me = identify(os.getpid())
    assert me is not None
    real = time.time
    before = age_s(me)
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    assert 0 <= before <= age_s(me)


def test_the_listener_of_a_port_is_found() -> None:
    port = free_port()
    assert not is_listening("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert is_listening("127.0.0.1", port)
        found = listener(port)
        assert found is not None and found[0] == os.getpid()
    assert listener(port) is None


def test_a_listener_that_ends_while_it_is_looked_at_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        read_text = Path.read_text

        def gone(path: Path, *rest: Any) -> str:
            if path.name == "comm":
                raise FileNotFoundError(str(path))
            return read_text(path, *rest)

        monkeypatch.setattr(Path, "read_text", gone)
        assert listener(port) is None


def test_who_only_talks_on_a_port_does_not_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        peer, _ = server.accept()
    with client, peer:
        assert listener(port) is None


def test_a_port_that_could_be_shared_counts_as_taken() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        assert is_listening("127.0.0.1", port)


def test_a_port_whose_connections_fade_away_is_free() -> None:
    """As after `down`: the kernel keeps what the server closed for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    assert not is_listening("127.0.0.1", port)


@pytest.mark.skipif(not is_address("::1"), reason="this machine has no IPv6")
def test_listeners_of_ipv6_are_seen() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert is_listening("::1", port)
        found = listener(port)
        assert found is not None and found[0] == os.getpid()
    assert not is_listening("::1", port)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, free = server.getsockname()[1], free_port()
        ports = iter([taken, taken, free])
        monkeypatch.setattr(random, "choice", lambda _: next(ports))
        assert free_port() == free


def test_a_name_has_one_holder_until_it_lets_go() -> None:
    name = f"millrace-test-{os.getpid()}"
    held = claim(name)
    assert held is not None
    num_open = len(os.listdir("/proc/self/fd"))
    assert claim(name) is None
    assert len(os.listdir("/proc/self/fd")) <= num_open
    held.close()
    again = claim(name)
    assert again is not None
    again.close()


def test_addresses_of_this_machine() -> None:
    assert all(is_address(host) for host in ("127.0.0.1", "localhost", "0.0.0.0"))
    assert not any(is_address(host) for host in ("999.1.1.1", "192.0.2.7"))


def test_only_marked_processes_are_killed() -> None:
    run = f"cafe-{os.getpid()}"  # what another run of this test has left is not ours
    marked, other = (
        subprocess.Popen(["sleep", "1000"], env={**os.environ, child.MARK: mark})
        for mark in (run, f"{run}1")
    )
    eventually(lambda: bool(child.marked(run) and child.marked(f"{run}1")))  # seen late, if new
    assert child.marked(run) == [marked.pid]
    assert child.kill_marked(run) == 1
    assert marked.wait(5) == -signal.SIGKILL
    assert other.poll() is None
    assert child.kill_marked(f"{run}1") == 1
    other.wait(5)


def test_those_who_are_started_while_others_are_killed_are_killed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And who has ended meanwhile is none to stop at."""
    gone, late = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
    gone.kill()
    gone.wait()
    looks = iter([[gone.pid], [late.pid], []])
    monkeypatch.setattr(child, "marked", lambda run: next(looks))
    assert child.kill_marked("run") == 2
    assert late.wait(5) == -signal.SIGKILL


def test_the_guard_heeds_no_signal_and_ends_with_its_input() -> None:
    run = f"guarded-{os.getpid()}"
    marked = subprocess.Popen(["sleep", "1000"], env={**os.environ, child.MARK: run})
    guard = subprocess.Popen(child.watching(run), stdin=subprocess.PIPE)
    ignored = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1 | 1 << signal.SIGHUP - 1
    status = Path(f"/proc/{guard.pid}/status")
    eventually(
        lambda: int(status.read_text().partition("SigIgn:")[2].split()[0], 16) & ignored == ignored
    )
    assert marked.poll() is None
    guard.communicate()
    assert guard.returncode == 0
    assert marked.wait(5) == -signal.SIGKILL


def test_a_child_whose_parent_is_gone_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, child.__file__, "exec", "1", "echo", "ran"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "the runner is gone\n")


def test_a_command_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [sys.executable, child.__file__, "exec", str(os.getpid()), "no-such-program"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == "no-such-program: No such file or directory\n"


async def test_a_replica_writes_on_while_the_disk_of_its_log_stands_still() -> None:
    """The runner waited for its disk, and after 160 requests the gateway for the runner."""
    reading, writing = os.pipe()
    written: list[str] = []
    lines = Lines(reading, written.append)
    line = b"x" * 1023 + b"\n"
    os.set_blocking(writing, False)
    assert sum(os.write(writing, line) for _ in range(500)) == 500 * 1024
    os.close(writing)
    lines.close()
    os.close(reading)
    assert len(written) == 500
