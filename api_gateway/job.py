"""What the line below must do for one HTTP request, and what a replay needs to do it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from api_gateway.sessions import Choice, Mailbox
from protos.limits import Age
from protos.tokenizer_pb2 import Resumed, TextRequest

if TYPE_CHECKING:
    from api_gateway.link import Link

PROMPTS_AT_ONCE = 256
"""Of one job. The tiers below refuse what waits in too large a number, whoever it is from."""


class Job:
    """The `TextRequest`s of one HTTP request (one a prompt) and the choices they make.

    `link` is where it runs now; None while it waits for a tokenizer. `attempt` counts losses
    under which it got no further, `num_waits` those in a row that found it waiting, `num_replays`
    all of them. A tokenizer must have spoken at `heard_after_s` or later to be given it.
    """

    def __init__(self, requests: Sequence[TextRequest], deadline_s: float | None = None) -> None:
        """`requests` lack their slots; `deadline_s` is on the monotonic clock."""
        self.mailbox = Mailbox()
        self.requests = requests
        self.deadline_s = deadline_s
        self.attempt = 0
        self.num_replays = 0
        self.num_waits = 0
        self.heard_after_s = 0.0  # on the monotonic clock
        self.link: Link | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.groups: list[list[Choice]] = []
        self._begun_by = ""
        self._num_begun = 0  # prompts
        self._num_ended = 0  # of the first ones, without a gap
        index = 0
        for prompt, request in enumerate(requests):
            n = max(1, request.limits.n)
            self.groups.append([Choice(self.mailbox, prompt, k, index + k) for k in range(n)])
            index += n
        self.choices = [choice for group in self.groups for choice in group]

    @property
    def model(self) -> str:
        return self.requests[0].model

    @property
    def tenant(self) -> str:
        return self.requests[0].limits.tenant

    @property
    def request_id(self) -> str:
        return self.requests[0].request_id

    @property
    def unfinished(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.finish is None]

    @property
    def running(self) -> list[Choice]:
        """Those of `unfinished` that have been sent."""
        begun = self.groups[: self._num_begun]
        return [choice for group in begun for choice in group if choice.finish is None]

    def next_requests(self) -> list[tuple[TextRequest, list[Choice]]]:
        """Return what to send now, and count it as sent: all choices of a prompt go together."""
        groups = self.groups
        while self._num_ended < len(groups) and has_ended(groups[self._num_ended]):
            self._num_ended += 1
        first = self._num_begun
        self._num_begun = min(len(groups), self._num_ended + PROMPTS_AT_ONCE)
        begun = groups[first : self._num_begun]
        if first:  # these have waited for their own: nobody else went before them
            for choice in chain(*begun):
                choice.age = Age(time.monotonic())
        return [(self._copy(group[0]), group) for group in begun]

    def replay_of(self, choice: Choice) -> TextRequest:
        """Return what brings one choice to where it was and on from there."""
        request = self._copy(choice)
        request.limits.n = 1
        request.limits.first_choice = choice.number
        request.attempt = self.attempt
        held = Resumed(token_ids=bytes(choice.token_ids), text_bytes=choice.text_bytes)
        request.resumed.append(held)
        return request

    @property
    def begun_by(self) -> str:
        """The model whose words some choice holds already: all of them are of one."""
        if not self._begun_by:
            begun = (choice.model_hash for choice in self.choices if choice.token_ids)
            self._begun_by = next(begun, "")
        return self._begun_by

    def _copy(self, choice: Choice) -> TextRequest:
        """Return the request of `choice` as of now: its deadline, its age, the model that began."""
        copy, now_s = TextRequest(), time.monotonic()
        copy.CopyFrom(self.requests[choice.prompt])
        copy.model_hash = self.begun_by
        copy.limits.waited_ms = int(choice.age.at(now_s) * 1000)
        if self.deadline_s is not None:
            copy.limits.deadline_ms = max(1, int((self.deadline_s - now_s) * 1000))
        return copy


def has_ended(choices: Sequence[Choice]) -> bool:
    return all(choice.finish is not None for choice in choices)
