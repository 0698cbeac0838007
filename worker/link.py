"""Link: a DEALER in a thread of its own, so that heartbeats go out while a step runs.

Knows frames, heartbeats and whether the peer is there. Knows no meaning of a message. The thread
owns the socket; the main thread hands it frames over an inproc pair and reads one inbox.
"""

from __future__ import annotations

import itertools
import logging
import math
import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from common.addresses import joined
from common.channel import Dealer
from protos import worker as wire
from worker.flights import Flight

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
HELLO_S = 5.0
"""A Hello may be lost on a link that acknowledges what it does not carry; a front takes doubles."""
MAX_RETRIES = 10
"""Refused connections, one in 0.1 s, after which a scheduler is lost. A front is waited for."""
EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
_names = itertools.count()


class Received(NamedTuple):
    link: Link
    message: wire.ToWorker


class Lost(NamedTuple):
    link: Link
    reason: str


class Answer(NamedTuple):
    """Something for the peer, from a thread that does not own the link."""

    link: Link
    message: wire.ErrandDone


class Landed(NamedTuple):
    """A device has done a step, of the life that this link belongs to."""

    link: Link
    flight: Flight


Event = Received | Lost | Answer | Landed | None
"""None = stop."""


class Link:
    """One connection of one incarnation; after `Lost` it is only good for closing."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        inbox: SimpleQueue[Event],
        beat: wire.Hello | wire.Heartbeat,
        name: str = "worker",
    ) -> None:
        """`beat` is said again and again: to a scheduler that we live, from the first moment; to a
        front Hello, once it is there and until it has given a lease. `name` begins our identity."""
        self._context = context
        self._address = address
        self._inbox = inbox
        self._encode = msgspec.msgpack.Encoder().encode
        self._is_to_front = isinstance(beat, wire.Hello)
        self._beat = self._encode(beat)
        self._next_beat = math.inf if self._is_to_front else time.monotonic()
        self._num_retries = 0
        self._dialled = ""
        self._name = name
        inside = f"inproc://link-{next(_names)}"
        self._outbox = context.socket(zmq.PAIR)
        self._outbox.setsockopt(zmq.LINGER, 0)
        self._outbox.bind(inside)
        self._thread = threading.Thread(target=self._run, args=(inside,), name="link", daemon=True)
        self._thread.start()

    def send(self, message: wire.FromWorker) -> None:
        """Send from the main thread; never blocks."""
        self._outbox.send(self._encode(message))

    def close(self) -> None:
        """Send what is queued, then close and join the thread."""
        self._outbox.send(b"")
        self._thread.join()
        self._outbox.close()

    # ── everything below runs in the thread ──────────────────────────────────────────────────

    def _run(self, inside: str) -> None:
        frames = self._context.socket(zmq.PAIR)
        frames.connect(inside)
        self._dialled = dialled(self._address)
        try:
            dealer: Dealer[wire.ToWorker] = Dealer(
                self._context, self._dialled, self._name, wire.ToWorker, EVENTS
            )
        except zmq.ZMQError as error:  # it is no address, such as `*:7202`
            self._inbox.put(Lost(self, f"it cannot be dialled: {error}"))
            while frames.recv():  # what cannot be sent, up to the end
                pass
            frames.close(0)
            return
        assert dealer.watch is not None
        try:
            self._loop(dealer, frames, dealer.watch)
        finally:
            dealer.close()
            frames.close(0)

    def _loop(
        self, dealer: Dealer[wire.ToWorker], frames: zmq.Socket[bytes], watch: zmq.Socket[bytes]
    ) -> None:
        poller = zmq.Poller()
        for each in (dealer.socket, frames, watch):
            poller.register(each, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._wait_ms()))
            if watch in ready:
                self._watch(watch)
            if dealer.socket in ready:
                self._receive(dealer)
            if frames in ready:
                frame = frames.recv()
                if not frame:
                    return
                self._send(dealer, frame)
            if time.monotonic() >= self._next_beat:
                every_s = HELLO_S if self._is_to_front else HEARTBEAT_S
                self._next_beat = time.monotonic() + every_s
                self._send(dealer, self._beat)

    def _wait_ms(self) -> int | None:
        if self._next_beat == math.inf:
            return None  # nothing to say by itself: wait for somebody
        return int(max(0.0, self._next_beat - time.monotonic()) * 1000) + 1

    def _send(self, dealer: Dealer[wire.ToWorker], frame: bytes) -> None:
        try:
            dealer.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._inbox.put(Lost(self, f"{self._address} takes no more messages"))

    def _receive(self, dealer: Dealer[wire.ToWorker]) -> None:
        try:
            message = dealer.receive(0)
        except msgspec.DecodeError as error:
            self._inbox.put(Lost(self, f"{self._address} sent what is not for a worker: {error}"))
            return
        if isinstance(message, wire.Lease):
            self._next_beat = math.inf
        if message is not None:
            self._inbox.put(Received(self, message))

    def _watch(self, watch: zmq.Socket[bytes]) -> None:
        event = recv_monitor_message(watch)["event"]
        if event == zmq.EVENT_CONNECTED:
            if self._is_to_front:
                self._next_beat = time.monotonic()
            log.info("connected", extra={"address": self._address})
        elif event == zmq.EVENT_DISCONNECTED:
            self._inbox.put(Lost(self, f"{self._address} is gone"))
        else:
            self._num_retries += 1
            if self._num_retries == MAX_RETRIES:
                self._num_retries = 0
                if not self._is_to_front:
                    self._inbox.put(Lost(self, f"{self._address} refuses connections"))
                elif dialled(self._address) != self._dialled:
                    self._inbox.put(Lost(self, f"{self._address} has another address now"))


def dialled(address: str) -> str:
    """Return `tcp://host:port` as ZeroMQ reaches it, which asks a name for IPv4 alone.

    A name that has just IPv6 becomes one of its addresses. ZeroMQ asks any other anew by itself.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, UnicodeError):
            rows = socket.getaddrinfo(host.strip("[]"), port, family=family)
            return address if family is socket.AF_INET else f"tcp://{joined(*rows[0][4][:2])}"
    return address
