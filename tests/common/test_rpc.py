"""The options of every channel and server."""

from __future__ import annotations

from common.rpc import OPTIONS


def test_a_peer_that_answers_no_ping_is_given_up_within_seconds() -> None:
    options = dict(OPTIONS)
    assert options["grpc.keepalive_time_ms"] == 10_000
    # grpcio waits for the longer of the two, and its own ping timeout is a minute
    assert options["grpc.keepalive_timeout_ms"] == 5_000
    assert options["grpc.http2.ping_timeout_ms"] == 5_000
