"""The options of every channel and server, and how addresses are resolved."""

from __future__ import annotations

import errno
import socket
from typing import Any

import grpc
import pytest

from common import rpc
from common.addresses import joined


def test_a_peer_that_answers_no_ping_is_given_up_within_seconds() -> None:
    options = dict(rpc.OPTIONS)
    assert options["grpc.keepalive_time_ms"] == 10_000
    # grpcio waits for the longer of the two, and its own ping timeout is a minute
    assert options["grpc.keepalive_timeout_ms"] == 5_000
    assert options["grpc.http2.ping_timeout_ms"] == 5_000


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_server_is_reached_whatever_proxy_is_set(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = rpc.new_server()
    port = await rpc.start_server(server, joined(host, 0))
    (address,) = await rpc.resolve(joined(host, port))
    async with rpc.channel(address) as channel:
        call = channel.unary_unary("/nobody/asks")
        with pytest.raises(grpc.aio.AioRpcError) as answer:
            await call(b"", timeout=10)
        assert answer.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_addresses_are_resolved_to_every_replica() -> None:
    assert await rpc.resolve("localhost:71, 127.0.0.2:72,[::1]:73,no.such.name.invalid:74") == {
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
    assert await rpc.resolve("six:71,both:72,none:73") == {"[fd00::7]:71", "127.0.0.2:72"}


async def test_an_address_that_cannot_be_resolved_now_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = socket.getaddrinfo

    def without_files(host: str, *rest: Any, **more: Any) -> Any:
        if host == "replicas":
            raise OSError(errno.EMFILE, "Too many open files")
        return ask(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", without_files)
    assert await rpc.resolve("replicas:71,a..b:72,127.0.0.1:73") == {"127.0.0.1:73"}
    told = [vars(record)["address"] for record in caplog.records]
    assert told == ["replicas:71", "a..b:72"]
