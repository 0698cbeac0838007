"""One token stream of a request: its tokens, how far they are planned and computed, its blocks.

Holds `num_computed ≤ num_planned ≤ capacity`. Decides nothing: the scheduler moves it, and only
along TRANSITIONS.
"""

from __future__ import annotations

from array import array
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from engine_core.scheduling.request import FinishReason, Request
from protos.limits import PROOF_TOKENS, Age
from protos.worker import Bulk, Finished, Logprobs, Progress, SequenceStep

NEVER = 1 << 62
"""More tokens than any sequence has."""


class Status(Enum):
    WAITING = auto()
    WAITING_FOR_GRAMMAR = auto()
    WAITING_FOR_REMOTE_KVS = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    """Its blocks return when the last plan that names it is applied; then it waits again."""
    PAUSED = auto()
    """Preempted, or not yet started, and held back: its reader is slow."""
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH = auto()
    FINISHED_ABORTED = auto()
    FINISHED_DEADLINE = auto()
    FINISHED_IGNORED = auto()
    FINISHED_ERROR = auto()


FINISHED = {
    FinishReason.STOPPED: Status.FINISHED_STOPPED,
    FinishReason.LENGTH: Status.FINISHED_LENGTH,
    FinishReason.ABORTED: Status.FINISHED_ABORTED,
    FinishReason.DEADLINE: Status.FINISHED_DEADLINE,
    FinishReason.IGNORED: Status.FINISHED_IGNORED,
    FinishReason.ERROR: Status.FINISHED_ERROR,
}
_CUT_OFF = frozenset({Status.FINISHED_ABORTED, Status.FINISHED_DEADLINE, Status.FINISHED_STOPPED})
"""What ends a sequence anywhere: a cancel, its deadline, the text tier's stop string."""
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: _CUT_OFF
    | {
        Status.WAITING_FOR_GRAMMAR,
        Status.WAITING_FOR_REMOTE_KVS,
        Status.RUNNING,
        Status.PAUSED,
        Status.FINISHED_LENGTH,  # a replay of which all had been delivered
    },
    Status.WAITING_FOR_GRAMMAR: _CUT_OFF | {Status.WAITING, Status.PAUSED, Status.FINISHED_IGNORED},
    Status.WAITING_FOR_REMOTE_KVS: _CUT_OFF | {Status.WAITING, Status.PAUSED},
    Status.RUNNING: _CUT_OFF | {Status.PREEMPTED, Status.FINISHED_LENGTH, Status.FINISHED_ERROR},
    Status.PREEMPTED: _CUT_OFF
    | {
        Status.WAITING,
        Status.PAUSED,
        Status.FINISHED_LENGTH,  # by the last plan in flight, as when it ran
        Status.FINISHED_ERROR,
    },
    Status.PAUSED: _CUT_OFF | {Status.WAITING},
    **dict.fromkeys(FINISHED.values(), frozenset()),
}


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """New output of a slot, its end, or both: exactly one event of a slot carries `finish`.

    The struct of the wire's library, because a tuple costs four times as much per token.
    """

    session: int
    slot: int
    offset: int
    """Output index of the first of `token_ids`."""
    token_ids: tuple[int, ...]
    finish: Finished | None = None
    logprobs: tuple[Logprobs, ...] = ()
    bulks: tuple[Bulk, ...] = ()
    progress: Progress | None = None


class Room(NamedTuple):
    """What a sequence may have at most."""

    context: int
    """Tokens at a time, prompt and output."""
    new_tokens: int


class Sequence:
    """A request's choice number `index`, from the queue to the freed block."""

    __slots__ = (
        "age", "block_ids", "block_keys", "capacity", "choice", "decode_step", "enter_at", "family",
        "first_output", "first_token_at", "has_fetched", "is_embed", "is_inexact", "is_paused",
        "is_score", "last_plan", "last_token_at", "max_context", "max_new", "max_total",
        "may_shift", "min_total", "num_cached", "num_computed", "num_dropped", "num_entered",
        "num_expected", "num_guesses", "num_planned", "num_preemptions", "num_prompt",
        "num_prompt_left", "num_resumed", "num_told", "order", "request", "scheduled_at", "seq_id",
        "session", "slot", "status", "stop_ids", "tenant", "tokens",
    )  # fmt: skip

    def __init__(self, seq_id: int, request: Request, index: int, room: Room) -> None:
        self.seq_id = seq_id
        self.request = request
        self.session = request.session
        self.slot = request.slot + index
        self.choice = request.limits.first_choice + index
        self.status = Status.WAITING
        self.tokens = request.prompt + (request.resumed[index] if request.resumed else array("I"))
        self.num_prompt = len(request.prompt)
        self.num_resumed = len(self.tokens) - self.num_prompt
        self.is_embed = request.limits.kind == "embed"  # nothing is drawn
        self.is_score = request.limits.kind == "score"  # nor here: its prompt's logprobs are all
        self.max_context = room.context
        self.max_new = min(request.limits.max_tokens, room.new_tokens) if self.draws else 0
        self.is_inexact = False  # it runs in cells whose keys were turned
        self.set_dropped(0, 0)
        self.stop_ids = request.stop_ids
        self.tenant = request.limits.tenant
        waited_s = request.limits.waited_s  # before a replay it stood where it stands now
        # smaller runs first, no two are equal
        self.order = (request.limits.priority, request.arrival - waited_s, seq_id)
        self.age = Age(request.arrival, waited_s)
        self.num_computed = 0
        self.num_planned = 0
        self.num_expected = len(self.tokens)  # known tokens and those that plans in flight bring
        self.num_guesses = 0  # of num_planned: guessed tokens in a plan in flight
        self.block_ids: list[int] = []
        self.capacity = 0
        self.block_keys: list[bytes] = []  # the prefix cache's, of the whole blocks hashed so far
        self.num_entered = 0  # blocks that came from the prefix cache or went in
        self.enter_at = NEVER  # computed tokens at which the next block may go in
        self.is_paused = False  # asked to be held back
        # the last position of the prompt whose logprobs are out: they come before any output
        self.num_told = self.num_prompt if len(self.tokens) > self.num_prompt else 0
        self.num_cached = 0  # prompt tokens found when it first started
        self.has_fetched = False  # it has asked host memory since it last ran
        # the choices of one request, this one and ended ones too, until the last has ended
        self.family: list[Sequence] = []
        self.last_plan = 0
        self.num_preemptions = 0
        self.decode_step = SequenceStep(seq_id, 1)  # the usual row of a plan, made once
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0

    def set_dropped(self, num_dropped: int, num_kept: int) -> None:
        """Reckon with `num_dropped` tokens gone from behind the first `num_kept`."""
        limits = self.request.limits
        self.num_dropped = num_dropped
        self.first_output = self.num_prompt - num_dropped  # where output 0 stands, or stood
        self.num_prompt_left = max(self.first_output, num_kept)
        # a grammar that is complete outranks min_tokens: until then the sampler forbids its end
        self.min_total = self.first_output + (0 if limits.has_grammar else limits.min_tokens)
        last = self.first_output + self.max_new
        self.max_total = min(last, self.max_context)
        self.may_shift = limits.n_keep is not None and last > self.max_context

    @property
    def has_ended(self) -> bool:
        return not TRANSITIONS[self.status]

    @property
    def draws(self) -> bool:
        """False when no token comes of it."""
        return not (self.is_embed or self.is_score)

    @property
    def num_left(self) -> int:
        """Tokens that are known, to be computed, and in no plan.

        The last one of a prompt tells of the token after it, which a score does not ask for.
        """
        return self.num_expected - self.num_planned - self.is_score

    @property
    def is_full(self) -> bool:
        """True when its context must be shifted before it can go on."""
        return self.may_shift and len(self.tokens) >= self.max_total

    @property
    def num_output(self) -> int:
        """All there ever was, also what a context shift has dropped."""
        return len(self.tokens) - self.first_output

    @property
    def has_prompt(self) -> bool:
        """True when it runs and the keys and values of all of its prompt are there to be shared."""
        is_whole = not self.num_dropped and self.num_computed >= self.num_prompt
        return self.status is Status.RUNNING and is_whole

    @property
    def owes_prompt_logprobs(self) -> bool:
        """True while logprobs of its prompt are asked for and not all told: the first choice's."""
        asked = self.request.limits.prompt_logprobs is not None and self.choice == 0
        return asked and not self.num_dropped and self.num_told < self.num_prompt - 1

    @property
    def may_skip(self) -> bool:
        """False when every position must be computed, whatever is known already.

        The mean of all hidden states, and the logits of the prompt, are in no cache.
        """
        is_mean = self.is_embed and self.request.limits.pooling != "last"
        return not (is_mean or self.owes_prompt_logprobs)

    def is_choice_like(self, other: Sequence) -> bool:
        """Return whether it waits for the same prompt as `other`, a choice that may share it."""
        return self.request is other.request and self.may_skip and not self.num_dropped

    @property
    def is_suspect(self) -> bool:
        """Two crashes happened while it ran: it must run alone until it has proved itself."""
        return self.request.attempt >= 2 and self.num_output - self.num_resumed < PROOF_TOKENS

    def move(self, status: Status) -> None:
        """Change the status; asserts that the table allows it."""
        assert status in TRANSITIONS[self.status], f"{self}: {self.status} → {status}"
        self.status = status

    def ending(self) -> FinishReason:
        """Return why the tokens so far end the sequence, UNFINISHED when they do not."""
        if self.is_embed or (self.is_score and self.owes_prompt_logprobs):
            return FinishReason.UNFINISHED
        length = len(self.tokens)
        if length > self.min_total and self.tokens[-1] in self.stop_ids:
            return FinishReason.STOPPED
        if length < self.max_total or self.may_shift:
            return FinishReason.UNFINISHED
        return FinishReason.LENGTH

    def phases(self, now: float) -> tuple[float, float, float]:
        """Return seconds in queue, prefill and decode."""
        if self.scheduled_at is None:
            return now - self.request.arrival, 0.0, 0.0
        queue_s = self.scheduled_at - self.request.arrival
        if self.first_token_at is None:
            return queue_s, now - self.scheduled_at, 0.0
        prefill_s = self.first_token_at - self.scheduled_at
        return queue_s, prefill_s, self.last_token_at - self.first_token_at

    def __repr__(self) -> str:
        return f"sequence {self.seq_id} (session {self.session}, slot {self.slot})"
