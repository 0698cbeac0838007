"""One clock for all live requests: keep-alives, slow clients, deadlines, and the loop's own lag.

A client whose socket stays full first has its sequences paused, which gives their memory to others,
and is cut off when it takes nothing for long.

A single task ticks four times a second, so that no token ever starts or stops a timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from api_gateway.job import Job
from api_gateway.taking import Taking

if TYPE_CHECKING:
    from api_gateway.link import Link

TICK_S = 0.25
IDLE_TICK_S = 0.5
"""While there is no request."""
MAX_UNREAD_TOKENS = 128
"""More than these wait for a full socket: the sequences behind it are paused."""
DEADLINE_GRACE_S = 0.5  # the tiers below get the first word, with their figures
GONE, IDLE, DEADLINE, SHUTDOWN, CANCELLED = "gone", "idle", "deadline", "shutdown", "cancelled"


class Vigil:
    """What the clock must know of one request. The reply keeps the first two up to date."""

    __slots__ = (
        "deadline_s",
        "job",
        "paused",
        "sending_since_s",
        "sent_s",
        "taking",
        "task",
        "was_slow",
    )

    def __init__(
        self, job: Job, task: asyncio.Task[Any] | None, taking: Taking | None = None
    ) -> None:
        self.sent_s = time.monotonic()
        self.sending_since_s: float | None = None
        self.job = job
        self.task = task
        self.taking = taking
        self.deadline_s = job.deadline_s
        self.paused: tuple[Link, list[int]] | None = None
        self.was_slow = False

    @property
    def num_unread(self) -> int:
        """Tokens that came since the reply last looked."""
        return sum(choice.num_tokens - choice.num_seen for choice in self.job.choices)

    def is_stuck(self, since_s: float, now: float, timeout_s: float) -> bool:
        """Return whether the client took nothing in `timeout_s` of a send that waits so long."""
        if self.taking is not None:  # asked at every tick, for it notices only then
            since_s = max(since_s, self.taking.nothing_since(now))
        return now - since_s >= timeout_s

    def pause(self) -> None:
        """Let the engine hold the sequences back; a replay has other slots and needs it again."""
        link, choices = self.job.link, self.job.unfinished
        if link is None or self.paused == (link, slots := [choice.slot for choice in choices]):
            return
        link.pause(choices, is_paused=True)
        self.paused = (link, slots)

    def resume(self) -> None:
        """The socket has room again."""
        self.paused = None
        if self.job.link is not None:
            self.job.link.pause(self.job.unfinished, is_paused=False)


class Watch:
    """Rings the mailbox of a request when its time has come for something."""

    def __init__(
        self,
        keep_alive_s: float,
        slow_client_timeout_s: float,
        on_lag: Callable[[float], None] = lambda lag_s: None,
    ) -> None:
        self._keep_alive_s = keep_alive_s
        self._slow_client_timeout_s = slow_client_timeout_s
        self._on_lag = on_lag
        self._vigils: dict[Vigil, None] = {}

    def add(self, vigil: Vigil) -> None:
        self._vigils[vigil] = None

    def remove(self, vigil: Vigil) -> None:
        self._vigils.pop(vigil, None)

    def end_all(self) -> None:
        """Tell every live request that the process is about to go."""
        for vigil in self._vigils:
            vigil.job.mailbox.ring(SHUTDOWN)

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            tick_s = TICK_S if self._vigils else IDLE_TICK_S
            due_s = time.monotonic() + tick_s
            await asyncio.sleep(tick_s)
            now = time.monotonic()
            self._on_lag(max(0.0, now - due_s))
            self.tick(now)

    def tick(self, now: float) -> None:
        """Look at every live request once."""
        for vigil in list(self._vigils):
            since = vigil.sending_since_s
            if since is not None:
                is_stuck = vigil.is_stuck(since, now, self._slow_client_timeout_s)
                if is_stuck and vigil.task is not None:
                    vigil.was_slow = True
                    vigil.task.cancel()
                elif vigil.num_unread > MAX_UNREAD_TOKENS:
                    vigil.pause()
            elif vigil.deadline_s is not None and now >= vigil.deadline_s + DEADLINE_GRACE_S:
                vigil.job.mailbox.ring(DEADLINE)
            elif now - vigil.sent_s >= self._keep_alive_s:
                vigil.sent_s = now  # in vain for replies in one piece, and not at every tick
                if vigil.job.mailbox.alarm is None:  # of an end it would be the last heard
                    vigil.job.mailbox.ring(IDLE)
