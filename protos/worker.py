"""Messages on ZeroMQ: front process ↔ scheduler process ↔ worker.

Array-like structs: fields are only ever appended. Columns are bytes of little-endian u32 values,
as in the protos. Knows every layout, decides nothing.
"""

from __future__ import annotations

import msgspec

from protos.plan import BlockCopy as BlockCopy
from protos.plan import Bulk as Bulk
from protos.plan import CompileGrammar as CompileGrammar
from protos.plan import DropKeys as DropKeys
from protos.plan import ErrandDone as ErrandDone
from protos.plan import ExecutePlan as ExecutePlan
from protos.plan import LoadBlocks as LoadBlocks
from protos.plan import Logprobs as Logprobs
from protos.plan import Message as Message
from protos.plan import SequenceFault as SequenceFault
from protos.plan import SequenceStart as SequenceStart
from protos.plan import SequenceStep as SequenceStep
from protos.plan import Shift as Shift
from protos.plan import StepResult as StepResult
from protos.plan import StoreBlocks as StoreBlocks

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
    prompt_logprobs: int | None = None
    has_grammar: bool = False
    n_keep: int | None = None
    rotate_kv: bool = False
    pooling: str = "last"
    report_progress: bool = False
    waited_s: float = 0.0
    """What it had waited at the moment of sending."""
    max_is_ours: bool = False
    """Nobody asked for `max_tokens`: it was filled in."""


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


class Pause(Message, frozen=True):
    """The reader of this slot is slow: its memory goes to others until `Resume`."""

    session: int
    slot: int


class Resume(Message, frozen=True):
    session: int
    slot: int


class Query(Message, frozen=True):
    """A question about the scheduler's books; `body` is JSON. Answered by `QueryAnswer`."""

    session: int
    query_id: int
    kind: str
    body: bytes = b"{}"


class CloseSession(Message, frozen=True):
    """The caller's stream is gone: all its requests end."""

    session: int


class Shutdown(Message, frozen=True):
    pass


ToScheduler = Add | Abort | StopAt | Pause | Resume | Query | CloseSession | Shutdown

# ── scheduler → front ────────────────────────────────────────────────────────────────────────


class SchedulerListening(Message, frozen=True):
    """First message of a scheduler process: where its workers may connect, and by what name."""

    port: int
    key: str = ""


class ModelFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker reports of the model it has loaded."""

    vocab_size: int
    max_position_embeddings: int
    fingerprint: str
    """Device or library, dtypes, build; no level, as all agree. Equal means exact twins."""
    model_hash: str
    block_size: int
    max_blocks: int
    """Blocks that fit this worker's memory."""
    layout: str = "block"
    """block, slot (a block is one cell) or static."""
    host_blocks: int = 0
    """Evicted blocks that this worker keeps in host memory."""
    has_head: bool = True
    """False: the model embeds and cannot say what comes next."""


class ReplicaReady(Message, frozen=True):
    facts: ModelFacts
    num_blocks: int
    max_model_len: int


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


class SessionOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step means for one session; columns are parallel. Empty `counts` = one each."""

    session: int
    slots: bytes
    counts: bytes
    token_offsets: bytes
    token_ids: bytes
    finishes: tuple[Finished, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    bulks: tuple[Bulk, ...] = ()
    progress: tuple[Progress, ...] = ()


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    slot: int
    num_total: int
    num_cached: int
    num_computed: int
    queue_s: float | None = None
    """This and `prefill_s` are told once, with the first token."""
    prefill_s: float = 0.0


class QueryAnswer(Message, frozen=True):
    """`body` is a JSON object of lists, so that the answers of several can be joined."""

    session: int
    query_id: int
    body: bytes
    error_kind: str = ""
    """Name of the class in `common/errors.py`; empty = no error."""
    error_message: str = ""


class StepOutput(Message, frozen=True):
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
    num_paused: int = 0
    num_host_hits: int = 0
    """Tokens whose keys and values came back from host memory."""
    num_host_losses: int = 0
    """Tokens whose keys and values should have come back, and were lost or not whole."""
    num_guesses: int = 0
    """Tokens guessed for the workers to verify."""
    num_right_guesses: int = 0


ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ReplicaLost(Message, frozen=True):
    """The worker is gone; every request of this replica is to be replayed elsewhere.

    `under_way`: session and slot of those that a step was being computed of; None = not known.
    """

    reason: str
    under_way: tuple[tuple[int, int], ...] | None = None


ToFront = (
    SchedulerListening | ReplicaReady | StepOutput | SchedulerState | QueryAnswer | ReplicaLost
)

# ── worker → front (registration), front → worker ────────────────────────────────────────────


class Hello(Message, frozen=True):
    """A worker asks for work. The socket identity contains a random incarnation."""

    host: str
    device: str
    model_hash: str
    build: str


class Waiting(Message, frozen=True):
    """To a worker without a lease, again and again: what it waits for."""

    reason: str


class Lease(Message, frozen=True):
    """Rank `rank` of replica `replica`; its scheduler listens on `port` of the front's host.

    `key` begins the identity of whoever speaks there, and is told to nobody else.
    """

    replica: int
    rank: int
    world_size: int
    port: int
    key: str = ""


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
    memory: dict[str, int] = {}
    """Bytes by what they are for."""


class Heartbeat(Message, frozen=True):
    rank: int


class WorkerFault(Message, frozen=True):
    """The whole step failed; the worker's state is no longer trusted."""

    step_id: int
    message: str


Errand = CompileGrammar | StoreBlocks | LoadBlocks
ToWorker = Waiting | Lease | Allocate | ExecutePlan | Errand | DropKeys
FromWorker = Hello | KvReport | WorkerReady | Heartbeat | StepResult | ErrandDone | WorkerFault
