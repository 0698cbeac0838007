"""Whether the client of a connection takes what it is sent, by what its host has acknowledged.

A send that waits says little: the kernel wakes it when a third of its buffer is free, which takes a
client of 1 KB/s minutes. And the kernel's own bound (TCP_USER_TIMEOUT) counts such a client's small
windows as none at all.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import NamedTuple

TCP_INFO_BYTES = 148
UNACKED_AT, TAKEN_AT, UNSENT_AT = 24, 120, 144
"""Where `struct tcp_info` of Linux has segments under way, bytes acknowledged and bytes to send."""

SLEPT_S = 5.0
"""Between two looks, of which there is one a second: this process was stopped. A client that waited
meanwhile has taken all there was, and nothing yet of what is written since."""


class Queue(NamedTuple):
    """What lies before a client."""

    num_taken: int
    is_waiting: bool


class Taking:
    """One connection. Its state is refreshed when it is asked for, and only then."""

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._num_taken = 0
        self._since_s = self._looked_s = now

    def nothing_since(self, now: float) -> float:
        """Return since when something waits and nothing of it is taken; `now` if that is not so."""
        queue, has_slept = look_at(self._transport), now - self._looked_s > SLEPT_S
        self._looked_s = now
        if has_slept or not queue.is_waiting or queue.num_taken != self._num_taken:
            self._num_taken, self._since_s = queue.num_taken, now
        return self._since_s


def look_at(transport: asyncio.Transport) -> Queue:
    """Ask the kernel; where it does not tell, what it has not taken from us must do."""
    num_ours = transport.get_write_buffer_size()
    try:
        option = socket.TCP_INFO
        sock = transport.get_extra_info("socket")
        info = sock.getsockopt(socket.IPPROTO_TCP, option, TCP_INFO_BYTES)
        (num_unacked,) = struct.unpack_from("I", info, UNACKED_AT)
        (num_taken,) = struct.unpack_from("Q", info, TAKEN_AT)
        (num_unsent,) = struct.unpack_from("I", info, UNSENT_AT)
    except (AttributeError, OSError, struct.error):
        return Queue(-num_ours, num_ours > 0)
    return Queue(num_taken, num_ours + num_unacked + num_unsent > 0)
