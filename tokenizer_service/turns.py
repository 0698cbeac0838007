"""Whose message a sandbox answers next: one of each tenant in turn, whatever waits behind it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from common.errors import Overloaded
from protos.tokenizer_pb2 import TextRequest

Answers = list[asyncio.Future[bytes]]


class Asker(NamedTuple):
    """Who waits in which queue."""

    tenant: str = ""
    is_replay: bool = False
    """Never refused: its client may have text already."""


NOBODY = Asker()


def asker_of(request: TextRequest) -> Asker:
    return Asker(request.limits.tenant, bool(request.attempt or request.resumed))


class Turns:
    """What waits, by tenant. Belongs to one event loop.

    Who asks the same as another request of its tenant shares its place and its answer: a hundred
    requests with one new schema are one check.
    """

    def __init__(self, most: int) -> None:
        """`most` messages of a tenant may wait."""
        self._most = most
        self._waiting: OrderedDict[str, dict[bytes, Answers]] = OrderedDict()
        self._is_any = asyncio.Event()

    def add(self, message: bytes, asker: Asker) -> asyncio.Future[bytes]:
        """Return what will be the answer; raise Overloaded when too much of the tenant's waits."""
        own = self._waiting.get(asker.tenant, {})
        if len(own) >= self._most:
            forget_abandoned(own)
        if message not in own and len(own) >= self._most and not asker.is_replay:
            raise Overloaded(
                f"{self._most} requests of this tenant wait for their check or their template",
                retry_after_s=1,
            )
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker.tenant, own).setdefault(message, []).append(answer)
        self._is_any.set()
        return answer

    async def next(self) -> tuple[str, bytes]:
        """Return the tenant whose turn it is and its first message, which stays until `take`."""
        while True:
            while self._waiting:
                tenant, own = next(iter(self._waiting.items()))
                self._waiting.move_to_end(tenant)
                while own:
                    message, answers = next(iter(own.items()))
                    if not all(answer.done() for answer in answers):
                        return tenant, message
                    del own[message]  # nobody waits for it any more
                del self._waiting[tenant]
            self._is_any.clear()
            await self._is_any.wait()

    def take(self, tenant: str, message: bytes) -> Answers:
        """Take a message out; return who still waits for its answer."""
        own = self._waiting[tenant]
        answers = own.pop(message)
        if not own:
            del self._waiting[tenant]
        return [answer for answer in answers if not answer.done()]

    def cancel(self) -> None:
        """Cancel whoever waits."""
        for own in self._waiting.values():
            for answer in (answer for answers in own.values() for answer in answers):
                answer.cancel()
        self._waiting.clear()


def forget_abandoned(own: dict[bytes, Answers]) -> None:
    """Drop what nobody waits for any more, but the first: that one may be under way."""
    for message in list(own)[1:]:
        if all(answer.done() for answer in own[message]):
            del own[message]
