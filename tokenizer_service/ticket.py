"""The text tier's record of a request: session → ticket → choices. Decides nothing."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.errors import DeadlineExceeded
from protos import limits
from protos.common_pb2 import Limits, PromptProgress
from protos.tokenizer_pb2 import TextBatch, TextBulk, TextRequest
from tokenizer_service.reasoning import SplitStream
from tokenizer_service.text_stream import TextStream

if TYPE_CHECKING:
    from tokenizer_service.placement import EngineSeat

Sink = Callable[[TextBatch], None]
"""Takes the text of one step for one gateway session; must not block."""
BulkSink = Callable[[TextBulk], None]
"""Takes what is too large for the columns, before the Finish of its slot; must not block."""


@dataclass(slots=True, eq=False)
class Session:
    """One gateway's stream; `choices` are its open slots."""

    number: int
    sink: Sink
    bulk_sink: BulkSink
    choices: dict[int, Choice] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request from the door to the last Finish of its choices."""

    session: Session
    request: TextRequest
    submitted_s: float
    """Time of arrival, in seconds of the loop's clock."""
    choices: list[Choice] = field(default_factory=list)
    prompt: bytes = b""
    limits: Limits | None = None
    """Complete; set once the prompt is built and an engine is known."""
    sampling: bytes = b""
    model_hash: str = ""
    """Of the engine that got it for the last time, or of what a replay has begun; empty when that
    did not tell."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """What is under way for it: its start, or the replay of a choice."""

    @property
    def key(self) -> tuple[str, str]:
        return self.request.limits.tenant, self.request.request_id

    @property
    def slots(self) -> range:
        """Those of its choices; raises ValueError for more of them than anybody may ask for."""
        count = max(1, self.request.limits.n)
        if why := limits.violation("n", count):
            raise ValueError(why)
        return range(self.request.slot, self.request.slot + count)

    @property
    def begun_by(self) -> str:
        """The model whose words some choice holds already; empty when none holds any."""
        has_begun = self.request.model_hash or any(choice.token_ids for choice in self.choices)
        return self.model_hash if has_begun else ""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt) // 4

    def remaining_ms(self) -> int:
        """Return what is left of the deadline, 0 for none; raise DeadlineExceeded when nothing."""
        deadline_ms = self.request.limits.deadline_ms
        if not deadline_ms:
            return 0
        spent_s = asyncio.get_running_loop().time() - self.submitted_s
        remaining_ms = deadline_ms - int(spent_s * 1000)
        if remaining_ms <= 0:
            raise DeadlineExceeded("the deadline has passed")
        return remaining_ms

    @property
    def is_open(self) -> bool:
        return any(choice.is_open for choice in self.choices)


@dataclass(slots=True, eq=False)
class Choice:
    """One token stream. `is_open` until its one Finish is sent; then only the engine's end is due.

    `seat` and `engine_slot` say where it runs; `token_ids` is all a replay needs.
    """

    ticket: Ticket
    slot: int
    index: int
    attempt: int
    num_at_start: int = 0
    """Tokens that it had when an engine got it for the last time."""
    started_s: float = 0.0
    """And when that was, on the monotonic clock."""
    num_waits: int = 0
    """Engines lost in a row while it waited."""
    age: limits.Age = field(init=False)
    """On the monotonic clock; an engine serves it from its first token there."""
    stream: TextStream | None = None
    split: SplitStream | None = None
    """Reads `stream` when thoughts and answer go out on channels of their own."""
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    seat: EngineSeat | None = None
    engine_slot: int = 0
    begun: PromptProgress | None = None
    """What the engine said with the first token, if it was asked."""
    is_open: bool = True
    is_aborted: bool = False
    is_paused: bool = False
    next_prompt_logprob: int = 0
    """Prompt tokens before this one have been shown: a replay shows them no second time."""
    replay_until_s: float | None = None
    """While lost: when to give up, in seconds of the loop's clock."""
    heard_after_s: float = 0.0
    """An engine must have spoken since then to be given it, on the monotonic clock."""

    def __post_init__(self) -> None:
        waited_s = self.ticket.request.limits.waited_ms / 1000
        self.age = limits.Age(time.monotonic(), waited_s)

    def note_loss(self, heard_s: float) -> bool:
        """Count the loss of an engine that spoke last at `heard_s`; return whether it found this
        one waiting."""
        num_tokens = len(self.token_ids) - self.num_at_start
        self.num_waits = limits.waits(self.num_waits, num_tokens, self.started_s, heard_s)
        return self.num_waits > 0

    def attempt_after_loss(self) -> int:
        """Return what `attempt` is now that the engine under it was lost."""
        return limits.attempts(self.attempt, len(self.token_ids) - self.num_at_start)

    def give_up_at(self, heard_s: float, timeout_s: float) -> float:
        """Return when to give up, now that the engine that spoke last at `heard_s` is lost.

        `timeout_s` from now if it had had a place there: a loss long ago says nothing of this one.
        Who is only refused while engines come back keeps to the end it had.
        """
        if self.replay_until_s is None or heard_s - self.started_s >= limits.PROOF_S:
            self.replay_until_s = asyncio.get_running_loop().time() + timeout_s
        return self.replay_until_s
