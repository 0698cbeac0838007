"""gRPC between tiers: options, addresses, and a server that stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

import grpc

from common.addresses import joined
from common.errors import PortTaken

log = logging.getLogger(__name__)
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


async def resolve(addresses: str) -> set[str]:
    """Return every `ip:port` behind a comma list of `host:port`; a name may have many replicas.

    Who listens on 0.0.0.0 may have IPv6 as well: only a name without IPv4 stands for what it has of
    IPv6. What has no address just now is left out.
    """
    loop = asyncio.get_running_loop()
    found: set[str] = set()
    for address in filter(None, (a.strip() for a in addresses.split(","))):
        host, _, port = address.rpartition(":")
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                with suppress(socket.gaierror):  # no replica yet, and so no name
                    rows = await loop.getaddrinfo(host.strip("[]"), int(port), family=family)
                    found |= {joined(*row[4][:2]) for row in rows}
                    break
        except (OSError, UnicodeError) as error:
            log.warning("cannot resolve", extra={"address": address, "error": error})
    return found


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
