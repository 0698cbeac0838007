"""The local runner with fake tiers: order, restarts, ports, and that nothing is ever left."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from common.errors import CANNOT_WORK
from millrace.processes import is_listening
from tests.support.stack import MakeStack, eventually


def ask(port: int) -> dict[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as reply:
        answer: dict[str, str] = json.loads(reply.read())
    return answer


def test_up_gives_every_replica_its_ports_and_down_takes_all_away(make_stack: MakeStack) -> None:
    stack = make_stack()
    done = stack.call("up", "--detach", closed_input=True)
    assert done.returncode == 0, done.stdout
    assert f"http://127.0.0.1:{stack.port}/v1/chat/completions" in done.stdout
    state = stack.state()
    assert state.ready
    runner = state.runner.pid
    assert os.getsid(runner) == runner, "the terminal's signals are not its own"
    assert {os.readlink(f"/proc/{runner}/fd/{number}") for number in range(3)} == {os.devnull}
    assert [r.name for r in state.replicas] == ["bottom-1", "middle-1", "middle-2", "door-1"]
    middle = [r.ports[7000] for r in state.replicas if r.service == "middle"]
    assert len(set(middle)) == 2
    door = ask(stack.port)
    assert door["FAKE_BACKENDS"] == ",".join(f"127.0.0.1:{port}" for port in middle)
    assert door["FAKE_HOST"] == "127.0.0.1"

    again = stack.call("up")
    assert again.returncode == 1
    assert again.stderr.startswith(f"millrace: already running at http://127.0.0.1:{stack.port} ")

    status = stack.call("status")
    assert status.returncode == 0
    assert "middle-2" in status.stdout
    assert "fake: listening" in stack.call("logs", "door").stdout
    assert "middle" not in stack.call("logs", "door-1").stdout
    unknown = stack.call("logs", "gate")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no service gate here; there are millrace, bottom, middle, door" in unknown.stderr

    with subprocess.Popen(
        stack.command("logs", "-f", "millrace"), stdout=subprocess.PIPE, text=True
    ) as following:
        done = stack.call("down")
        said, _ = following.communicate(timeout=20)
    assert [line.split(" | ")[1] for line in said.splitlines()] == ["stopping", "stopped"]
    assert (done.returncode, done.stdout) == (0, "millrace: stopped\n")
    assert stack.left() == []
    ports = {port for r in state.replicas for port in r.ports.values()}
    assert not [port for port in ports if is_listening("127.0.0.1", port)]
    assert stack.call("down").stdout == "millrace: nothing is running\n"


@pytest.mark.parametrize(
    ("fingerprint", "count"), [("cpu reference float32 tile=8", 1), ("cpu bf16 kernels=3", 0)]
)
def test_up_says_that_numpy_computes(make_stack: MakeStack, fingerprint: str, count: int) -> None:
    done = make_stack(FINGERPRINT=fingerprint).call("up", "--detach")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("millrace: SLOW: NumPy computes") == count


def test_a_scale_of_an_absent_service_is_refused(make_stack: MakeStack) -> None:
    done = make_stack().call("up", "--gateways", "2")
    assert done.returncode == 1
    assert done.stderr == "millrace: --gateways: there is no active service api-gateway\n"


def test_nothing_starts_before_what_it_depends_on_is_healthy(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    stack = make_stack(BOTTOM_GATE=str(gate))
    process = stack.up()
    stack.until(process, "bottom-1 | fake: listening")
    assert [r.process is not None for r in stack.state().replicas] == [True, False, False, False]
    gate.touch()
    stack.until(process, "ready at")
    assert all(replica.healthy for replica in stack.state().replicas)


def test_up_waits_until_the_door_says_ready(make_stack: MakeStack, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stack = make_stack(GATE=str(gate))
    process = stack.up()
    stack.until(process, "waiting: the gate is shut")
    gate.touch()
    stack.until(process, "ready at")


def test_a_stack_that_was_stopped_before_it_was_ready_is_no_success(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(GATE=str(tmp_path / "gate"))
    up = stack.up("--detach")
    stack.until(up, "waiting")
    assert stack.call("down").stdout == "millrace: stopped\n"
    assert up.wait(20) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_it_is_ready_ends_the_command_as_any_other(
    make_stack: MakeStack, tmp_path: Path, signum: signal.Signals
) -> None:
    stack = make_stack(GATE=str(tmp_path / "gate"))
    up = stack.up("--detach")
    stack.until(up, "waiting")
    up.send_signal(signum)
    assert up.wait(20) == 128 + signum
    assert stack.left() == []


def test_a_runner_that_is_killed_before_it_is_ready_is_told(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(GATE=str(tmp_path / "gate"))
    up = stack.up("--detach")
    stack.until(up, "waiting")
    os.kill(stack.state().runner.pid, signal.SIGKILL)
    stack.until(up, "millrace: what starts and watches the stack ended: signal 9, the system's way")
    assert up.wait(20) == 1


def test_up_gives_up_with_the_reason_and_the_log(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack(BOTTOM_GATE=str(tmp_path / "never"))
    process = stack.up("--ready-timeout", "1")
    text = stack.until(process, "gave up")[-1]
    assert "gave up: bottom-1 is not healthy yet; middle-1 is not" in text
    assert text.endswith("The last lines of the log:\n")
    assert process.wait(20) == 1
    assert stack.left() == []


@pytest.mark.parametrize(("status", "tries_again"), [("1", True), (str(CANNOT_WORK), False)])
def test_a_replica_that_cannot_start_ends_the_command(
    make_stack: MakeStack, status: str, tries_again: bool
) -> None:
    stack = make_stack(BROKEN=status)
    done = stack.call("up", "--detach")
    assert done.returncode == 1
    assert ("starts again in" in done.stdout) == tries_again
    assert re.search(r"gave up: middle-\d does not start", done.stdout)
    assert "fake: this setting is wrong" in done.stdout
    assert stack.left() == []


def test_a_killed_replica_comes_back_on_its_ports(make_stack: MakeStack) -> None:
    stack = make_stack()
    process = stack.up()
    stack.until(process, "ready at")
    before = next(r for r in stack.state().replicas if r.name == "bottom-1")
    assert before.process is not None
    os.kill(before.process.pid, signal.SIGKILL)
    stack.until(process, "bottom-1 ended (signal 9, the system's way when memory runs out); starts")
    stack.until(process, "bottom-1 | fake: listening")
    after = next(r for r in stack.state().replicas if r.name == "bottom-1")
    assert after.process is not None and after.process.pid != before.process.pid
    assert (after.ports, after.num_restarts) == (before.ports, 1)
    assert ask(after.ports[7100])["pid"] == after.process.pid


def test_a_system_without_room_for_a_process_is_waited_for(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.call("up", "--detach").returncode == 0
    runner = stack.state().runner.pid
    num_open = len(list(Path(f"/proc/{runner}/fd").iterdir()))
    _, hard = resource.prlimit(runner, resource.RLIMIT_NOFILE)
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (num_open, hard))
    os.kill(stack.pid("middle-1"), signal.SIGKILL)
    eventually(
        lambda: "middle-1 cannot be run (Too many open files)" in stack.folder.log.read_text()
    )
    assert ask(stack.port)
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (hard, hard))
    eventually(lambda: all(replica.healthy for replica in stack.state().replicas))


def test_killing_the_runner_leaves_nothing(make_stack: MakeStack) -> None:
    stack = make_stack()
    process = stack.up()
    stack.until(process, "ready at")
    assert len(stack.left()) == 5, "four replicas, and a grandchild in a session of its own"
    process.kill()
    process.communicate()
    eventually(lambda: stack.left() == [])
    assert stack.call("down").stdout == "millrace: stopped\n"


def test_down_cleans_up_when_runner_and_guard_are_both_killed(make_stack: MakeStack) -> None:
    stack = make_stack()
    process = stack.up()
    stack.until(process, "ready at")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (guard,) = (
        int(child)
        for child in children
        if f"watch\0{stack.state().run}".encode() in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.communicate()
    eventually(lambda: len(stack.left()) == 1)
    assert "1 processes had to be killed" in stack.call("down").stdout
    assert stack.left() == []


def test_down_after_a_reboot_leaves_strangers_their_ports(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.call("up", "--detach").returncode == 0
    state = stack.folder.read()
    assert state is not None
    assert stack.call("down").returncode == 0
    stack.folder.write(state)  # what a machine that went down leaves
    with socket.create_server(("127.0.0.1", stack.port)):
        done = stack.call("down")
    assert (done.returncode, done.stdout) == (0, "millrace: stopped\n")
    assert stack.folder.read() is None


def test_a_used_port_is_named(make_stack: MakeStack) -> None:
    stack = make_stack()
    with socket.create_server(("127.0.0.1", stack.port)):
        done = stack.call("up")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {stack.port} is in use by pid {os.getpid()} (" in done.stderr
    assert "; use PORT=" in done.stderr


def test_two_stacks_that_start_at_once_do_not_share_a_port(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = make_stack(BOTTOM_GATE=str(gate))
    process = first.up()
    first.until(process, "waiting: bottom-1")  # its door does not listen yet
    done = first.call("up", "--state", str(tmp_path / "other"))
    said = f"millrace: another stack starts at http://127.0.0.1:{first.port}; use another port"
    assert (done.returncode, done.stderr) == (1, f"{said} (--port)\n")
    gate.touch()
    first.until(process, "ready at")
    process.kill()  # whatever ends the runner, the name goes with it
    process.wait()
    eventually(lambda: not first.left())
    assert first.call("up", "--detach").returncode == 0
    assert first.call("down").returncode == 0


@pytest.mark.parametrize(
    ("asked", "given"), [({}, b"ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, b"DEBUG")]
)
def test_grpc_adds_no_lines_of_its_own_unless_asked(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], given: bytes
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    stack = make_stack(**asked)
    assert stack.call("up", "--detach").returncode == 0
    environment = Path(f"/proc/{stack.pid('door-1')}/environ").read_bytes().split(b"\0")
    assert b"GRPC_VERBOSITY=" + given in environment
    assert stack.call("down").returncode == 0


def test_a_halted_replica_is_not_called_healthy(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.call("up", "--detach").returncode == 0
    os.kill(stack.pid("middle-1"), signal.SIGSTOP)
    lines = {
        line.split()[0]: line.split()[3] for line in stack.call("status").stdout.splitlines()[1:]
    }
    assert lines == {
        "bottom-1": "healthy", "middle-1": "halted", "middle-2": "healthy", "door-1": "healthy",
    }  # fmt: skip
    assert stack.call("down").returncode == 0


def test_what_ended_under_a_halted_runner_is_not_called_healthy(make_stack: MakeStack) -> None:
    """As by a Ctrl-Z on the terminal of `up`; `down` has it go on, and end in order."""
    stack = make_stack()
    assert stack.call("up", "--detach").returncode == 0
    runner, ended = stack.state().runner.pid, stack.pid("middle-1")
    os.kill(runner, signal.SIGSTOP)
    os.kill(ended, signal.SIGKILL)
    told = stack.call("status").stdout
    assert f"pid {runner}, which starts again what ends, is halted" in told
    line = next(line for line in told.splitlines() if "middle-1" in line)
    assert "not running  down " in line and f"pid {ended}" not in line
    assert stack.call("down").returncode == 0
    assert "millrace | stopped" in stack.folder.log.read_text(), "it was not killed"
    assert stack.left() == []


@pytest.mark.parametrize(("prefix", "is_ignored"), [(["nohup"], True), ([], False)])
def test_a_hang_up_that_the_caller_ignores_stays_ignored(
    make_stack: MakeStack, prefix: list[str], is_ignored: bool
) -> None:
    stack = make_stack()
    process = stack.up(prefix=prefix)
    stack.until(process, "ready at")
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = int(next(re.finditer(r"SigIgn:\s*(\w+)", status))[1], 16)
    assert bool(ignored & 1 << signal.SIGHUP - 1) == is_ignored
    if not is_ignored:
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
    stack.call("down")


def test_a_state_that_cannot_be_written_stops_no_stack(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.call("up", "--detach").returncode == 0
    (stack.folder.folder / "state.new").mkdir()  # as a full disk: root may write anywhere else
    state = stack.folder.read()
    assert state is not None
    one = next(r for r in state.replicas if r.process)
    assert one.process is not None
    os.kill(one.process.pid, signal.SIGKILL)
    eventually(lambda: f"{one.name} ended (signal 9" in stack.folder.log.read_text())
    eventually(lambda: is_listening("127.0.0.1", next(iter(one.ports.values()))))
    assert stack.folder.running() is not None
    assert "cannot be written (is the disk full?): what follows is" in stack.call("status").stdout
    (stack.folder.folder / "state.new").rmdir()
    eventually(lambda: not stack.folder.is_old())  # though nothing changes any more
    assert f"pid {one.process.pid} " not in stack.call("status").stdout
    assert stack.call("down").returncode == 0
    assert stack.left() == []


def test_a_state_that_cannot_be_written_at_first_is_one_line(make_stack: MakeStack) -> None:
    stack = make_stack()
    (stack.folder.folder / "state.new").mkdir(parents=True)
    done = stack.call("up")
    assert done.returncode == 1
    said = f"millrace: {stack.folder.folder / 'state.new'} cannot be written: Is a directory\n"
    assert done.stderr == said


def test_closed_standard_streams_do_not_hide_that_it_is_ready() -> None:
    code = (
        "from millrace import cli, runner\n"
        "cli._open_standard_streams()\n"
        "raise SystemExit(runner.in_background(lambda detach: detach() or 3))"
    )
    closed = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code]
    assert subprocess.run(closed).returncode == 0  # 3: nobody was told


def test_who_reads_no_more_of_a_report_ends_no_run() -> None:
    """As `millrace up --detach | head -1` does."""
    code = (
        "from millrace import runner\n"
        "say = lambda: [print(n, flush=True) for n in (1, 2)] and None\n"
        "raise SystemExit(runner.in_background(lambda detach: say() or detach() or 3))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    assert subprocess.run([sys.executable, "-c", code], stdout=writing).returncode == 0
    os.close(writing)


def test_ctrl_c_stops_dependents_first(make_stack: MakeStack) -> None:
    stack = make_stack()
    process = stack.up()
    stack.until(process, "ready at")
    process.send_signal(signal.SIGINT)
    lines = stack.until(process, "millrace | stopped")
    order = [line.partition("-")[0].strip() for line in lines if "fake: stopping" in line]
    assert order == ["door", "middle", "middle", "bottom"]
    assert process.wait(20) == 0
    assert stack.left() == []
    assert stack.folder.read() is None


def test_who_ignores_the_stop_is_killed_after_its_grace(make_stack: MakeStack) -> None:
    stack = make_stack(STUBBORN="1")
    process = stack.up()
    stack.until(process, "ready at")
    process.terminate()
    lines = stack.until(process, "millrace | stopped")
    assert any("middle-1 does not stop: killed" in line for line in lines)
    assert process.wait(20) == 0
    assert stack.left() == []


def test_a_second_signal_waits_for_no_grace(make_stack: MakeStack) -> None:
    stack = make_stack(STUBBORN="1", GRACE="1h")
    process = stack.up()
    stack.until(process, "ready at")
    process.send_signal(signal.SIGINT)
    stack.until(process, "millrace | stopping")
    process.send_signal(signal.SIGINT)
    stack.until(process, "millrace | stopped")
    assert process.wait(20) == 0
    assert stack.left() == []
