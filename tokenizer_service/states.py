"""Forwards engine states to gateways: often enough to be fresh, never more often than needed.

Knows no streams: every open gateway is a callable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from protos.common_pb2 import EngineState
from protos.words import NO_ENGINE
from tokenizer_service.placement import CONNECTION_LOST, nobody

EVERY_S = 0.5
JITTER = 0.8
"""An engine's own 500 ms may come a little early; that is no reason to skip one."""

StateSink = Callable[[EngineState], None]


class StateFeed:
    """The last state of each engine, and who wants to hear of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sought: str = "") -> None:
        """`sought` are the engines that should be there, as the settings name them."""
        self._clock = clock
        self._none = EngineState(engine=NO_ENGINE, ready=False, reasons=[nobody(sought)])
        self._listeners: set[StateSink] = set()
        self._states: dict[str, EngineState] = {}
        self._sent_s: dict[str, float] = {}

    def join(self, listener: StateSink) -> None:
        """Tell `listener` all that is known, and everything from now on."""
        self._listeners.add(listener)
        for state in self._states.values() or [self._none]:
            listener(state)

    def leave(self, listener: StateSink) -> None:
        self._listeners.discard(listener)

    def tell(self, state: EngineState) -> None:
        """Forward a state: at once when readiness changed, else at most every 500 ms.

        The last state of a lost engine is forwarded and forgotten.
        """
        before = self._states.get(state.engine)
        changed = before is None or before.ready != state.ready
        self._states[state.engine] = state
        now = self._clock()
        if changed or now - self._sent_s.get(state.engine, 0.0) >= EVERY_S * JITTER:
            self._sent_s[state.engine] = now
            self._send(state)
        if list(state.reasons) == [CONNECTION_LOST]:
            self._states.pop(state.engine)
            self._sent_s.pop(state.engine, None)
            self.remind()

    def remind(self) -> None:
        """Repeat that no engine is connected, if that is so."""
        if not self._states:
            self._send(self._none)

    async def run(self) -> None:
        """Remind until cancelled: silence must never look like an old good state."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.remind()

    def _send(self, state: EngineState) -> None:
        for listener in list(self._listeners):
            listener(state)
