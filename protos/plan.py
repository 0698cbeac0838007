"""One step on its way to the workers and back, and the errands beside the steps.

`protos/worker.py` is the door to these structs; they stand apart for their length.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Root of all messages below: tagged, so that one socket carries a closed union of them."""


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sparse row: the chosen token first, then the alternatives, likeliest first.

    `key` is a seq_id between worker and scheduler, a slot between scheduler and front.
    """

    key: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Bulk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is too large for columns: exactly one of the last three is set.

    `key` is a seq_id between worker and scheduler, a slot between scheduler and front.
    """

    key: int
    prompt_logprobs: tuple[Logprobs, ...] = ()
    """In order of `index`, the position in the prompt; a long prompt may come in parts."""
    embedding: bytes = b""
    """float32 little-endian."""
    trace: bytes = b""
    """JSON of the sampler's stages for one token."""


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
    prompt_logprobs: int | None = None
    pooling: str = ""
    """Not empty: nothing is drawn; the end of the prompt brings a `Bulk` with the embedding."""
    num_dropped_outputs: int = 0
    """Output tokens that a context shift has taken out of `token_ids`; `num_prompt_tokens` are
    those that are left. The index of the next output token, and so its noise, counts them."""


class SequenceStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What changed since the worker last saw this sequence."""

    seq_id: int
    num_tokens: int
    new_block_ids: tuple[int, ...] = ()
    draft_token_ids: tuple[int, ...] = ()
    """Guesses for what follows the last known token, counted in `num_tokens`. The worker draws the
    target's token after each and keeps the guesses that are equal, up to the first that is not."""


class BlockCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    source: int
    target: int


class Shift(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Turn the keys of these cells by `delta` positions, in place."""

    seq_id: int
    cells: bytes
    """Column of block * block_size + offset."""
    delta: int


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
    shifts: tuple[Shift, ...] = ()


class SequenceFault(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row failed; the others of the step are good."""

    seq_id: int
    message: str
    code: str = ""
    """Set when the row is sound, and its request asks for what cannot be: an error of its own."""


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
    bulks: tuple[Bulk, ...] = ()
    forward_s: float = 0.0
    sample_s: float = 0.0


class CompileGrammar(Message, frozen=True):
    """An errand: get ready what `sampling` asks for. Errands run beside the steps, in the order of
    the socket, and each is answered by one `ErrandDone` of every rank."""

    errand_id: int
    sampling: bytes


class StoreBlocks(Message, frozen=True):
    """An errand: keep the content of `block_ids` in host memory under `keys`.

    Read before any later plan may write them.
    """

    errand_id: int
    block_ids: tuple[int, ...]
    keys: tuple[bytes, ...]


class LoadBlocks(Message, frozen=True):
    """An errand: fill `block_ids` from host memory, checked. The answer says how many of them,
    from the first on, are good."""

    errand_id: int
    block_ids: tuple[int, ...]
    keys: tuple[bytes, ...]


class DropKeys(Message, frozen=True):
    """Forget these keys of host memory; no answer."""

    keys: tuple[bytes, ...]


class ErrandDone(Message, frozen=True):
    rank: int
    errand_id: int
    error: str = ""
    num_blocks: int = 0
    """Of `LoadBlocks` and `StoreBlocks`: how many from the first on are good."""
