"""What of docker-compose.yml is understood, and that the rest is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.compose import ComposeError, duration_s, load
from millrace.project import HOME

NO_PROFILES: frozenset[str] = frozenset()


def write(folder: Path, text: str) -> Path:
    path = folder / "compose.yml"
    path.write_text(text)
    return path


def service(extra: str = "") -> str:
    return "services:\n  one:\n    command: [python, -V]\n" + extra


def test_the_file_of_this_project() -> None:
    file = load(HOME / "docker-compose.yml", {"TENSOR_PARALLEL_SIZE": "2"}, NO_PROFILES)
    assert list(file.services) == ["engine-core", "worker", "tokenizer-service", "api-gateway"]
    assert file.services["worker"].deploy.replicas == 2
    assert file.services["api-gateway"].published() == {8000: ("127.0.0.1", 8000)}
    for name, one in file.services.items():
        assert one.healthcheck is not None, name
        assert one.read_only and one.init and one.cap_drop == ["ALL"], name
        assert one.security_opt == ["no-new-privileges:true"], name
        assert one.restart == "unless-stopped", name
        assert one.networks == (["front", "back"] if name == "api-gateway" else ["back"])


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "compose.yml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ComposeError, match="compose.yml: 'utf-8' codec can't decode"):
        load(path, {}, NO_PROFILES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (service("    privileged: true\n"), "services.one: .*unknown field `privileged`"),
        (service("    environment: {A: '${A:?a reason}'}\n"), "services.one: A is required: a rea"),
        (service("    ports: ['8000']\n"), "'8000' is not \\[host:\\]published:container"),
        (service("    stop_grace_period: soon\n"), "'soon' is not a duration"),
        (service("    volumes: ['./a:/b']\n"), "services.one: .*volumes"),
        (service("    healthcheck: {test: [CMD-SHELL, ls]}\n"), 'must be \\["CMD", program'),
        (service("    depends_on: {two: {condition: service_healthy}}\n"), "two, which is no act"),
        (service("    depends_on: {one: {condition: service_started}}\n"), "service_started"),
        (service("    depends_on: {one: {condition: service_healthy}}\n"), "no healthcheck"),
        ("services:\n  one: {command: []}\n", "command is empty"),
        (service("    secrets: [key]\n"), "services.one: no secrets \\['key'\\]"),
        (service() + "secrets: {key: {external: true}}\n", "secrets: .*external"),
        (
            service() + "  lb: {x-millrace-local: two}\n",
            "services.lb: x-millrace-local: 'two' is no",
        ),
        ("name: x\n" + service(), "unknown keys \\['name'\\]"),
        ("[]", "not a mapping"),
        ("services: [1]\n", "services: Expected `object`, got `array`"),
        ("services: {one: 5}\n", "services: Expected `object | null`, got `int`"),
        (
            "services: {lb: {x-millrace-local: [a]}}\n",
            "services.lb: x-millrace-local: .* is no ser",
        ),
        ("a: [", "while parsing"),
    ],
)
def test_refusals_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ComposeError, match=message):
        load(write(tmp_path, text), {}, NO_PROFILES)


def test_a_circle_is_told(tmp_path: Path) -> None:
    probe = "healthcheck: {test: [CMD, ls]}"
    needs = "depends_on: {%s: {condition: service_healthy}}"
    text = "\n    ".join(
        ["services:\n  a:", "command: [ls]", probe, needs % "b\n  b:".split("\n")[0]]
    )
    text += "\n  b:\n    command: [ls]\n    " + probe + "\n    " + needs % "a" + "\n"
    with pytest.raises(ComposeError, match="a → b → a"):
        load(write(tmp_path, text), {}, NO_PROFILES)


def test_a_service_of_a_profile_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, service("    profiles: [gpu]\n"))
    assert list(load(path, {}, NO_PROFILES).services) == []
    assert list(load(path, {}, frozenset({"gpu"})).services) == ["one"]


def test_a_service_may_be_left_out_here_and_another_publish_its_ports(tmp_path: Path) -> None:
    text = service("    environment: {A_PORT: '1'}\n")
    text += "  store: {x-millrace-local: false, volumes: ['what/is:/this']}\n"
    text += "  lb: {x-millrace-local: one, ports: ['8080:1'], user: nobody}\n"
    file = load(write(tmp_path, text), {}, NO_PROFILES)
    assert list(file.services) == ["one"]
    assert file.services["one"].published() == {1: ("0.0.0.0", 8080)}


def test_a_secret_is_a_file_at_its_place(tmp_path: Path) -> None:
    text = service("    secrets: [key]\n") + "secrets: {key: {file: '${FILE}'}}\n"
    (mount,) = load(write(tmp_path, text), {"FILE": "/k"}, NO_PROFILES).services["one"].volumes
    assert (mount.source, mount.target, mount.read_only) == ("/k", "/run/secrets/key", True)


def test_durations() -> None:
    assert [duration_s(t) for t in ("10s", "250ms", "1m30s", "1.5h")] == [10, 0.25, 90, 5400]
