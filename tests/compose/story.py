"""`make compose-test` once the images stand: up, chat, alert, scale, scrape, compare, down.

Every chapter asserts; the first that fails ends the story, and `down -v` is always its last line.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millrace.http import Server
from millrace.processes import free_port
from tests.compose import docker
from tests.compose.clients import MODEL, Crowd, answer, corpus, events
from tests.compose.prometheus import Prometheus, eventually

KEY = "sk-compose-test"
TIERS = ("api-gateway", "tokenizer-service", "engine-core", "worker")
AROUND = ("gateway-lb", "redis", "prometheus")
EPOCH_S = float(os.environ.get("EPOCH", time.time()))


def say(text: str) -> None:
    sys.stdout.write(f"compose-test: {time.time() - EPOCH_S:.0f} s: {text}\n")
    sys.stdout.flush()


class Story:
    """One project of containers, and what is asked of it."""

    def __init__(self, folder: Path, with_grafana: bool) -> None:
        self._folder = folder
        self._services = [*TIERS, *AROUND, *(["grafana"] if with_grafana else [])]
        keys = folder / "keys"
        keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} tester\n")
        folder.chmod(0o755)
        self._port, prometheus, grafana = free_port(), free_port(), free_port()
        os.environ |= {
            "PORT": str(self._port),
            "PROMETHEUS_PORT": str(prometheus),
            "GRAFANA_PORT": str(grafana),
            "API_KEY_FILE": str(keys),
            "KV_CACHE_MEMORY": "64MiB",
        }
        self._url = f"http://127.0.0.1:{self._port}"
        self._server = Server(self._url, KEY)
        self._prometheus = Prometheus(f"http://127.0.0.1:{prometheus}")

    def tell(self) -> None:
        for chapter in (
            self.everything_is_healthy,
            self.promtool_accepts_the_rules,
            self.containers_are_confined,
            self.chat_streams_through_the_balancer,
            self.the_corpus_is_answered,
            self.an_alert_fires_and_clears,
            self.replicas_come_and_go_under_load,
            self.nothing_is_left,
            self.processes_answer_alike,
        ):
            chapter()
            say(f"ok: {chapter.__name__.replace('_', ' ')}")

    def _scale(self, worker: int = 1, api_gateway: int = 1) -> None:
        docker.up(self._services, worker=worker, api_gateway=api_gateway)

    def everything_is_healthy(self) -> None:
        self._scale()
        states = docker.health()
        assert set(states.values()) == {"healthy"}, states
        assert states.keys() == set(self._services), states

    def promtool_accepts_the_rules(self) -> None:
        docker.compose("config", "-q")
        promtool = ("exec", "-T", "-w", "/etc/prometheus", "prometheus", "promtool")
        docker.compose(*promtool, "check", "config", "prometheus.yml")
        docker.compose(*promtool, "test", "rules", "rules_test.yml")

    def containers_are_confined(self) -> None:
        for container in docker.containers():
            config, host = container["Config"], container["HostConfig"]
            name = docker.service(container)
            assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], name
            user = docker.docker("exec", container["Id"], "id", "-u").strip()
            assert user != "0", f"{name} runs as root"
            assert not any("KEY" in v.partition("=")[0] for v in config["Env"] if KEY in v), name
        for tier in TIERS:
            package = tier.replace("-", "_")
            inside = docker.compose("exec", "-T", tier, "ls", "/app").split()
            assert sorted(inside) == sorted({"common", "protos", package}), inside
            code = "from importlib.util import find_spec as f; print(f('torch'), f('pip'))"
            found = docker.compose("exec", "-T", tier, "/opt/millrace/bin/python", "-c", code)
            assert found.split() == ["None", "None"], (tier, found)

    def chat_streams_through_the_balancer(self) -> None:
        """The request is cancelled after its first text has come: nothing held that back."""
        story = [{"role": "user", "content": "Hello"}]
        stream = events(self._server, messages=story, ignore_eos=True, max_tokens=400)
        first = next(e for e in stream if any(c["delta"].get("content") for c in e["choices"]))
        assert self._post(f"/v1/requests/{first['id']}/cancel") == 200
        stream.close()
        assert self._post("/v1/chat/completions", key="wrong") == 401
        assert self._post("/v1/chat/completions") == 400

    def _post(self, path: str, key: str = KEY) -> int:
        request = Request(self._url + path, b"{}", {"Authorization": f"Bearer {key}"})
        try:
            with urlopen(request, timeout=10) as reply:
                return int(reply.status)
        except HTTPError as error:
            with error:
                return error.code

    def the_corpus_is_answered(self) -> None:
        self._answers = corpus(self._server)

    def an_alert_fires_and_clears(self) -> None:
        wanted, firing = {"MillraceNoReplica", "MillraceWorkerLost"}, self._prometheus.firing
        eventually("all tiers up", self._miscounted)
        eventually("no alert", firing)
        docker.compose("stop", "worker")
        eventually("the alerts fire", lambda: wanted - firing())
        docker.compose("start", "worker")
        eventually("the alerts clear", lambda: wanted & firing())
        eventually("all healthy", lambda: set(docker.health().values()) - {"healthy"})
        assert answer(self._server, messages=[{"role": "user", "content": "Hello"}])

    def replicas_come_and_go_under_load(self) -> None:
        with Crowd(self._server) as crowd:
            self._scale(worker=2, api_gateway=2)
            eventually("6 replicas", lambda: self._miscounted(worker=2, api_gateway=2))
            for tier in ("worker", "api-gateway"):
                eventually(f"both serve: {tier}", lambda tier=tier: self._idle(tier))
            eventually("every panel draws", self._prometheus.silent_panels)
            eventually("every replica's series", self._missing_series)
            served = crowd.num_answers
            self._scale(worker=1, api_gateway=2)
            eventually("one worker", lambda: self._miscounted(worker=1, api_gateway=2))
            eventually("it goes on", lambda: crowd.num_answers < served + 8)
        assert not crowd.failures, crowd.failures
        say(f"{crowd.num_answers} streams of the crowd, none failed, none had another answer")

    def _miscounted(self, worker: int = 1, api_gateway: int = 1) -> str:
        wanted = dict.fromkeys(TIERS, 1) | {"worker": worker, "api-gateway": api_gateway}
        found = dict(self._prometheus.num_up())
        return "" if found == wanted else f"{found} instead of {wanted}"

    def _idle(self, job: str) -> str:
        """Name the tier unless both of its replicas have worked within 20 s."""
        metric = {
            "worker": "millrace_worker_steps_total",
            "api-gateway": 'millrace_gateway_http_requests_total{method="POST",status="200"}',
        }[job]
        busy = self._prometheus.query(f"sum by (instance) (increase({metric}[20s])) > 0")
        return "" if len(busy) == 2 else f"{len(busy)} work"

    def _missing_series(self) -> list[str]:
        self._post("/v1/chat/completions")  # a gateway that has refused nothing lacks that series
        return self._prometheus.missing_series()

    def nothing_is_left(self) -> None:
        docker.down()

    def processes_answer_alike(self) -> None:
        """`make up` gives the answers that the containers gave."""
        state, port = self._folder / "state", free_port()
        args = f"ARGS=--state {state} --ready-timeout 60"
        try:
            self._make("up", "DETACH=1", f"PORT={port}", args)
            assert corpus(Server(f"http://127.0.0.1:{port}", KEY)) == self._answers
        finally:
            subprocess.run([sys.executable, "-m", "millrace.cli", "down", "--state", str(state)])

    def _make(self, *words: str) -> None:
        venv = Path(sys.executable).parent.parent
        command = ["make", "--no-print-directory", f"VENV={venv}", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def main(with_grafana: bool) -> int:
    """Tell the story; return the exit status."""
    os.environ["SERVED_MODEL_NAME"] = MODEL
    with tempfile.TemporaryDirectory() as folder:
        status = told(Story(Path(folder), with_grafana).tell)
        docker.down()
        say("nothing is left of the project")
    return status


def told(story: Callable[[], None]) -> int:
    try:
        story()
    except (AssertionError, RuntimeError, OSError) as error:
        traceback.print_exc()
        say(f"FAILED: {error!r}")
        sys.stderr.write(docker.compose("ps", "-a") + docker.compose("logs", "-n20"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--with-grafana" in sys.argv))
