"""The tiers as processes of a measurement: started, awaited, and ended whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from common.settings import inherited
from millrace.processes import free_port

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05


@dataclass
class Stack:
    """Processes started here, by role; each leads a group, so that its children end with it."""

    url: str
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, role: str, *command: str, **env: str) -> None:
        """Start `python -m command`; what it prints is kept for `stop`."""
        self.processes[role] = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=inherited(env),
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def wait_until(self, serves: Callable[[], bool]) -> None:
        """Return when `serves`; raise RuntimeError when a process ends first, or TimeoutError."""
        end = time.monotonic() + READY_TIMEOUT_S
        while not serves():
            for role, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{role} ended with exit status {process.returncode}")
            if time.monotonic() > end:
                raise TimeoutError(f"{self.url} does not serve after {READY_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def stop(self) -> str:
        """Ask all to end; return what they printed."""
        for process in self.processes.values():
            process.terminate()
        printed = [p.communicate(timeout=STOP_TIMEOUT_S)[0] for p in self.processes.values()]
        return "".join(printed)

    def kill(self) -> None:
        """End whatever is left of each group; nothing after a `stop` that went well."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def tiers(
    folder: Path, step_ms: float, streams: int, **gateway: object
) -> AbstractContextManager[Stack]:
    """Run the four tiers, the worker paced; they serve, and end with the block.

    `gateway` are settings of that tier, by their names in the environment.
    """
    registry = free_port()
    paced = ("bench.paced_worker", f"127.0.0.1:{registry}", str(folder), str(step_ms))
    return _tiers(folder, registry, paced, {}, streams, gateway)


def worker_tiers(folder: Path, streams: int, **worker: object) -> AbstractContextManager[Stack]:
    """Run the four tiers on a model; they serve, and end with the block.

    `worker` are settings of that tier, by their names in the environment.
    """
    registry = free_port()
    settings = {"ENGINE": f"127.0.0.1:{registry}", "MODEL": folder, **worker}
    return _tiers(folder, registry, ("worker",), settings, streams, {})


@contextmanager
def _tiers(
    folder: Path,
    registry: int,
    worker: tuple[str, ...],
    worker_settings: Mapping[str, object],
    streams: int,
    gateway: Mapping[str, object],
) -> Iterator[Stack]:
    """Run `python -m worker`, whatever that is, below the three others."""
    http, text, engine = (free_port() for _ in range(3))
    stack = Stack(f"http://127.0.0.1:{http}")
    quiet = {"LOG_LEVEL": "error", "METRICS_PORT": "0"}

    def named(service: str, values: Mapping[str, object]) -> dict[str, str]:
        pairs = {**quiet, **values}
        return {f"MILLRACE_{service}_{key}": str(value) for key, value in pairs.items()}

    try:
        ports = {"PORT": engine, "REGISTRY_PORT": registry, "MAX_NUM_SEQS": streams}
        stack.start("front", "engine_core", **named("ENGINE", ports))
        stack.start("worker", *worker, **named("WORKER", worker_settings))
        text_settings = {"PORT": text, "ENGINES": f"127.0.0.1:{engine}", "MODEL": folder}
        stack.start("tokenizer", "tokenizer_service", **named("TOKENIZER", text_settings))
        below = {"PORT": http, "TOKENIZERS": f"127.0.0.1:{text}", "MAX_CONCURRENT_REQUESTS": 4096}
        stack.start("gateway", "api_gateway", **named("GATEWAY", {**below, **gateway}))
        stack.wait_until(lambda: is_ready(f"{stack.url}/ready"))
        yield stack
    finally:
        stack.kill()


@contextmanager
def one_process(folder: Path, step_ms: float) -> Iterator[Stack]:
    """Run the one threaded process; it serves, and ends with the block."""
    port = free_port()
    stack = Stack(f"http://127.0.0.1:{port}")
    try:
        stack.start("one process", "bench.one_process", str(port), str(folder), str(step_ms))
        stack.wait_until(lambda: is_listening(port))
        yield stack
    finally:
        stack.kill()


def end_on_sigterm() -> None:
    """Make SIGTERM an exception, so that blocks end what they have started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def is_ready(url: str) -> bool:
    """Tell whether `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:  # refused: not yet
        return False


def is_listening(port: int) -> bool:
    """Tell whether something listens on `port`."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
