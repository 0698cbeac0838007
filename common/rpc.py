"""gRPC between tiers: options, channels, and a server that says what it cannot have."""

from __future__ import annotations

import grpc

from common.errors import PortTaken

MAX_MESSAGE_BYTES = 64 * 2**20
MAX_MERGED_BYTES = 8 * 2**20
"""No more requests are put into a message that has so much."""
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # its 60 s would override keepalive_timeout_ms
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),  # `http_proxy`, as Docker sets it, is for the way out of a site
]


def channel(address: str) -> grpc.aio.Channel:
    """Return a lazy channel to one `ip:port`."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)


async def start_server(server: grpc.aio.Server, address: str) -> int:
    """Bind and start `server`; return the port. Raises PortTaken."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:  # it does not say why
        raise PortTaken(f"{address} cannot be listened on: taken, or none of this host") from error
    await server.start()
    return port


def new_server() -> grpc.aio.Server:
    """Return a gRPC server with the house's options."""
    return grpc.aio.server(options=[*OPTIONS, ("grpc.so_reuseport", 0)])
