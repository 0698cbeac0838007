"""The options of every channel and server."""

from __future__ import annotations

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
    async with rpc.channel(joined(host, port)) as channel:
        call = channel.unary_unary("/nobody/asks")
        with pytest.raises(grpc.aio.AioRpcError) as answer:
            await call(b"", timeout=10)
        assert answer.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_messages_may_be_large_both_ways() -> None:
    async def echo(message: bytes, context: object) -> bytes:
        return message

    server = rpc.new_server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("any", {"echo": handler}),)
    )
    port = await rpc.start_server(server, "127.0.0.1:0")
    large = bytes(rpc.MAX_MERGED_BYTES)
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        assert await channel.unary_unary("/any/echo")(large, timeout=20) == large
    await server.stop(None)
