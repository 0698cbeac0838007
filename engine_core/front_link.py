"""The scheduler process's end of the ipc channel to the front."""

from __future__ import annotations

from typing import Any

import zmq

from common.channel import Dealer
from protos.worker import ToFront, ToScheduler


class ZmqFrontLink:
    """A FrontLink over ZeroMQ; `socket` may be polled by whoever waits for something else, too."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._dealer: Dealer[ToScheduler] = Dealer(context, address, "scheduler", ToScheduler)
        self._dealer.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket = self._dealer.socket

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return all messages that are there, waiting up to `timeout_s` for the first."""
        found: list[ToScheduler] = []
        message = self._dealer.receive(timeout_s)
        while message is not None:
            found.append(message)
            message = self._dealer.receive(0)
        return found

    def send(self, message: ToFront) -> None:
        self._dealer.send(message)

    def close(self) -> None:
        self._dealer.close()
