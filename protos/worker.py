"""Messages on ZeroMQ: front process ↔ scheduler process ↔ worker.

Array-like structs: fields are only ever appended. Columns are bytes of little-endian u32 values,
as in the protos. Knows every layout, decides nothing.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Root of all messages below: tagged, so that one socket carries a closed union of them."""


# ── front → scheduler ────────────────────────────────────────────────────────────────────────


class Limits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The engine's share of a request; mirrors `common.proto` Limits, complete and checked."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: int | None = None
    priority: int = 0
    tenant: str = ""
    cache_salt: bytes = b""
    deadline_s: float | None = None
    """Seconds left at the moment of sending."""
    kind: str = "generate"
    first_choice: int = 0
    """Index of the first of the n choices; enters the noise."""


class Add(Message, frozen=True):
    """A request; `session` is the front's number of the caller's stream, `slot` the caller's."""

    session: int
    slot: int
    request_id: str
    prompt_token_ids: bytes
    limits: Limits
    sampling: bytes
    resumed_token_ids: tuple[bytes, ...] = ()
    attempt: int = 0


class Abort(Message, frozen=True):
    session: int
    slot: int


class StopAt(Message, frozen=True):
    """The text tier ended the slot on a stop string after `num_output_tokens` tokens."""

    session: int
    slot: int
    num_output_tokens: int


class CloseSession(Message, frozen=True):
    """The caller's stream is gone: all its requests end."""

    session: int


class Shutdown(Message, frozen=True):
    pass


ToScheduler = Add | Abort | StopAt | CloseSession | Shutdown

# ── scheduler → front ────────────────────────────────────────────────────────────────────────


class SchedulerListening(Message, frozen=True):
    """First message of a scheduler process: where its workers may connect."""

    port: int


class ModelFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker reports of the model it has loaded."""

    vocab_size: int
    max_position_embeddings: int
    fingerprint: str
    """Level or SM, dtype, tensor-parallel size, build: equal means exact twins."""
    model_hash: str
    block_size: int
    max_blocks: int
    """Blocks that fit this worker's memory."""


class ReplicaReady(Message, frozen=True):
    facts: ModelFacts
    num_blocks: int
    max_model_len: int
    startup_s: dict[str, float]


class Finished(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sparse row: the terminal event of a slot. `reason` is a FinishReason number."""

    slot: int
    reason: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int
    stop_token_id: int | None = None
    error_kind: str = ""
    error_message: str = ""
    error_param: str = ""
    error_code: str = ""
    retry_after_ms: int = 0


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sparse row: the chosen token first, then the alternatives, likeliest first.

    `key` is a seq_id between worker and scheduler, a slot between scheduler and front.
    """

    key: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class SessionOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step means for one session; columns are parallel. Empty `counts` = one each."""

    session: int
    slots: bytes
    counts: bytes
    token_offsets: bytes
    token_ids: bytes
    finishes: tuple[Finished, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()


class StepOutput(Message, frozen=True):
    step_id: int
    timestamp_ns: int
    sessions: tuple[SessionOutput, ...]


class SchedulerState(Message, frozen=True):
    """Heartbeat of a scheduler, several times a second; counters are cumulative."""

    num_waiting: int
    num_running: int
    num_free_blocks: int
    num_blocks: int
    step_age_s: float
    """Age of the step in flight; 0 when none runs."""
    worker_age_s: float
    """Time since the worker last spoke."""
    num_steps: int
    num_preemptions: int
    num_prefill_tokens: int
    num_decode_tokens: int
    schedule_s: float
    execute_s: float
    leaks: str = ""
    """What the ledger check found; empty = the books are true."""
    iteration_tokens: tuple[int, ...] = ()
    """Steps by number of tokens: one counter per bucket of `ITERATION_BUCKETS` and one above."""
    num_prefix_queries: int = 0
    """Tokens of sequences when they first started, looked up in the prefix cache."""
    num_prefix_hits: int = 0
    """Of these, tokens that were found there."""
    num_cached_blocks: int = 0
    """Blocks among the free ones that the prefix cache still knows."""


ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ReplicaLost(Message, frozen=True):
    """The worker is gone; every request of this replica is to be replayed elsewhere."""

    reason: str


ToFront = SchedulerListening | ReplicaReady | StepOutput | SchedulerState | ReplicaLost

# ── worker → front (registration), front → worker ────────────────────────────────────────────


class Hello(Message, frozen=True):
    """A worker asks for work. The socket identity contains a random incarnation."""

    host: str
    device: str
    model_hash: str
    build: str


class Lease(Message, frozen=True):
    """Rank `rank` of replica `replica`; its scheduler listens on `port` of the front's host."""

    replica: int
    rank: int
    world_size: int
    port: int


# ── worker ↔ scheduler ───────────────────────────────────────────────────────────────────────


class KvReport(Message, frozen=True):
    """The weights are loaded; this much KV would fit."""

    rank: int
    facts: ModelFacts


class Allocate(Message, frozen=True):
    """The minimum over the ranks: allocate exactly this, warm up, then say WorkerReady."""

    num_blocks: int


class WorkerReady(Message, frozen=True):
    rank: int
    startup_s: dict[str, float]


class Heartbeat(Message, frozen=True):
    rank: int


class SequenceStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All a worker must know of a sequence; sent on its first step and again after preemption.

    `token_ids` are prompt and output so far; this step computes the `num_tokens` after
    `num_computed`. When that reaches the end of the known tokens, the next one is sampled.
    """

    seq_id: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed: int
    num_tokens: int
    block_ids: tuple[int, ...]
    sampling: bytes
    choice: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """Forbidden to the sampler before `min_tokens` output tokens."""


class SequenceStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What changed since the worker last saw this sequence."""

    seq_id: int
    num_tokens: int
    new_block_ids: tuple[int, ...] = ()


class BlockCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    source: int
    target: int


class ExecutePlan(Message, frozen=True):
    """One step. `step_id` counts without gaps; rows are computed in this order: starts, steps.

    Never carries a token the worker already has, so step N+1 may be planned while N runs.
    `finished` rows are dropped before anything is computed.
    """

    step_id: int
    starts: tuple[SequenceStart, ...] = ()
    steps: tuple[SequenceStep, ...] = ()
    finished: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


class SequenceFault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row failed; the others of the step are good."""

    seq_id: int
    message: str


class StepResult(Message, frozen=True):
    """Tokens of step `step_id`: `counts[i]` of them for `seq_ids[i]`, concatenated.

    A row that has not reached the end of its known tokens does not appear.
    """

    step_id: int
    seq_ids: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    faults: tuple[SequenceFault, ...] = ()
    forward_s: float = 0.0
    sample_s: float = 0.0


class WorkerFault(Message, frozen=True):
    """The whole step failed; the worker's state is no longer trusted."""

    step_id: int
    message: str


ToWorker = Lease | Allocate | ExecutePlan | Shutdown
FromWorker = Hello | KvReport | WorkerReady | Heartbeat | StepResult | WorkerFault
