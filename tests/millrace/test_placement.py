"""From services to local processes: ports, addresses, paths."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from millrace.compose import ComposeError, ComposeFile, load
from millrace.placement import Replica, place
from millrace.project import HOME


def project_file(**variables: str) -> ComposeFile:
    return load(HOME / "docker-compose.yml", variables, frozenset())


def placed(file: ComposeFile, **scales: int) -> dict[str, Replica]:
    ports = itertools.count(20_001)
    named = {name.replace("_", "-"): count for name, count in scales.items()}
    return {r.name: r for r in place(file, named, lambda: next(ports))}


def test_addresses_become_lists_of_replicas() -> None:
    replicas = placed(project_file(), tokenizer_service=2, worker=3)
    tokenizers = [replicas[f"tokenizer-service-{i}"].ports[7100] for i in (1, 2)]
    gateway = replicas["api-gateway-1"].environment
    listed = ",".join(f"127.0.0.1:{port}" for port in tokenizers)
    assert gateway["MILLRACE_GATEWAY_TOKENIZERS"] == listed
    registry = replicas["engine-core-1"].ports[7202]
    for index in (1, 2, 3):
        environment = replicas[f"worker-{index}"].environment
        assert environment["MILLRACE_WORKER_ENGINE"] == f"127.0.0.1:{registry}"


def test_every_port_is_its_own_but_the_published_one() -> None:
    replicas = placed(project_file(PORT="8123"), api_gateway=2, tokenizer_service=2, worker=2)
    shared = [replicas[f"api-gateway-{i}"].ports[8000] for i in (1, 2)]
    assert shared == [8123, 8123]
    own = [p for r in replicas.values() for inside, p in r.ports.items() if inside != 8000]
    assert len(own) == len(set(own))
    for replica in replicas.values():
        for key, value in replica.environment.items():
            if key.endswith("_PORT"):
                assert int(value) in replica.ports.values(), key


def test_processes_listen_on_loopback_unless_published_elsewhere() -> None:
    hosts = {
        key: value
        for replica in placed(project_file(LISTEN_HOST="0.0.0.0")).values()
        for key, value in replica.environment.items()
        if key.endswith("_HOST")
    }
    assert hosts.pop("MILLRACE_GATEWAY_HOST") == "0.0.0.0"
    assert set(hosts.values()) == {"127.0.0.1"}
    environment = placed(project_file())["api-gateway-1"].environment
    assert environment["MILLRACE_GATEWAY_HOST"] == "127.0.0.1"


def test_paths_of_mounts_become_local_paths() -> None:
    replicas = placed(project_file(MODEL="/data/qwen", API_KEY_FILE="/data/keys"))
    assert replicas["worker-1"].environment["MILLRACE_WORKER_MODEL"] == "/data/qwen"
    environment = replicas["api-gateway-1"].environment
    assert environment["MILLRACE_GATEWAY_API_KEY_FILE"] == "/data/keys"
    demo = placed(project_file())
    model = demo["worker-1"].environment["MILLRACE_WORKER_MODEL"]
    assert Path(model) == HOME / "millrace" / "demo_model"
    assert demo["api-gateway-1"].environment["MILLRACE_GATEWAY_API_KEY_FILE"] == ""


def test_probes_ask_the_replicas_own_port() -> None:
    replica = placed(project_file())["worker-1"]
    assert replica.probe is not None
    assert replica.probe[0] == sys.executable
    assert replica.probe[-1] == f"http://127.0.0.1:{replica.ports[7301]}/ready"
    assert (replica.probe_interval_s, replica.probe_timeout_s) == (0.25, 3.0)
    assert replica.stop_grace_s == 10.0


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (
            "environment: {A_PORT: '1', B: 'b:9'}",
            "environment.B: b has no variable *_PORT holding 9",
        ),
        ("environment: {A_PORT: '1'}, ports: ['80:2']", "ports: no variable *_PORT of the service"),
        ("environment: {A_PORT: one}", "environment.A_PORT: 'one' is not a port"),
    ],
)
def test_a_port_nobody_listens_on_is_refused(tmp_path: Path, service: str, said: str) -> None:
    path = tmp_path / "compose.yml"
    path.write_text(
        "services:\n"
        f"  a: {{command: [ls], {service}}}\n"
        "  b: {command: [ls], environment: {B_PORT: '2'}}\n"
    )
    with pytest.raises(ComposeError, match=re.escape(said)):
        placed(load(path, {}, frozenset()))


def test_only_what_is_meant_is_replaced(tmp_path: Path) -> None:
    """A variable may hold any text; ports, addresses and paths of the file are found in it."""
    path = tmp_path / "compose.yml"
    path.write_text(
        "services:\n"
        "  a:\n"
        "    command: [ls]\n"
        "    environment:\n"
        "      FILE: /in/side/keys.txt\n"
        "      FOLDER: /in/side\n"
        "      BESIDE: /in/sides\n"
        "      FAR: redis://db:6379 b:9x\n"
        "      NEAR: b:2,https://b:2/path\n"
        "    volumes: [{type: bind, source: ./out, target: /in/side}]\n"
        "    depends_on: {b: {condition: service_healthy}}\n"
        "  b:\n"
        "    command: [python, serve]\n"
        "    environment: {B_PORT: '2'}\n"
        "    healthcheck: {test: [CMD, ask, 'http://localhost:2/', 'http://127.0.0.1:3/']}\n"
    )
    replicas = placed(load(path, {}, frozenset()), b=2)
    first, second = (replicas[f"b-{index}"].ports[2] for index in (1, 2))
    both = f"127.0.0.1:{first},127.0.0.1:{second}"
    environment = replicas["a-1"].environment
    assert environment["FILE"] == str(tmp_path / "out" / "keys.txt")
    assert environment["FOLDER"] == str(tmp_path / "out")
    assert environment["BESIDE"] == "/in/sides"
    assert environment["FAR"] == "redis://db:6379 b:9x"
    assert environment["NEAR"] == f"{both},https://{both}/path"
    assert (replicas["a-1"].needs, replicas["b-1"].needs) == (["b"], [])
    assert replicas["b-2"].probe == ["ask", f"http://localhost:{second}/", "http://127.0.0.1:3/"]
