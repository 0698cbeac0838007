"""Which addresses stand behind a list of names, and that no name holds up another."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest

from common import names
from common.names import Names


async def test_addresses_are_resolved_to_every_replica() -> None:
    assert await Names("localhost:71, 127.0.0.2:72,[::1]:73,no.such.name.invalid:74").look_up() == {
        "127.0.0.1:71",
        "127.0.0.2:72",
        "[::1]:73",
    }


async def test_only_a_name_without_ipv4_stands_for_its_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = socket.getaddrinfo
    addresses = {("six", socket.AF_INET6): "fd00::7", ("both", socket.AF_INET6): "fd00::8"}
    addresses["both", socket.AF_INET] = "127.0.0.2"

    def lookup(host: str, port: int, family: int = 0, *rest: Any) -> Any:
        if (host, family) not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ask(addresses[host, family], port, family, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert await Names("six:71,both:72,none:73").look_up() == {"[fd00::7]:71", "127.0.0.2:72"}


async def test_an_address_that_cannot_be_resolved_now_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = socket.getaddrinfo

    def without_files(host: str, *rest: Any, **more: Any) -> Any:
        if host == "replicas":
            raise OSError(errno.EMFILE, "Too many open files")
        return ask(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", without_files)
    assert await Names("replicas:71,a..b:72,no-port:,127.0.0.1:73").look_up() == {"127.0.0.1:73"}
    told = sorted(vars(record)["address"] for record in caplog.records)  # each has its thread
    assert told == ["a..b:72", "no-port:", "replicas:71"]


async def test_a_name_that_nobody_answers_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, is_back = socket.getaddrinfo, threading.Event()
    asked: list[str] = []

    def lookup(host: str, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        if host == "silent":
            is_back.wait()
            host = "127.0.0.2"
        return ask(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(names, "PATIENCE_S", 0.05)
    both = Names("silent:71,127.0.0.1:72")
    for _ in range(3):
        assert await both.look_up() == {"127.0.0.1:72"}
    assert asked.count("silent") == 1, "once at a time"
    both._known["silent:71"] = {"127.0.0.9:71"}
    assert await both.look_up() == {"127.0.0.9:71", "127.0.0.1:72"}, "as it was last"
    is_back.set()
    monkeypatch.setattr(names, "PATIENCE_S", 10)
    assert await both.look_up() == {"127.0.0.2:71", "127.0.0.1:72"}
