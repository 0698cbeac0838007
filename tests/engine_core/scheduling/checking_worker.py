"""A worker that computes no arrays but keeps every book a real one relies on, and asserts on it.

Its KV cache is a table from cell to a hash of all tokens up to there: a row whose cells hold
anything but its own has lost a block to somebody else. A block may have many readers, but whoever
writes to it must be its only owner.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from protos.worker import (
    BlockCopy,
    Bulk,
    CompileGrammar,
    DropKeys,
    Errand,
    ErrandDone,
    ExecutePlan,
    LoadBlocks,
    Logprobs,
    SequenceFault,
    SequenceStart,
    SequenceStep,
    Shift,
    StepResult,
    StoreBlocks,
)

MANY = 1 << 30


def draw(tokens: Iterable[int], choice: int) -> int:
    """Return the token after `tokens`: a function of them and the choice alone."""
    digest = hashlib.sha256(array("I", [choice, *tokens]).tobytes()).digest()
    return digest[0] % 16


def content(tokens: Sequence[int], position: int) -> int:
    """Return what stands for the keys and values of one position: they depend on all before."""
    return hash(tuple(tokens[: position + 1]))


def embedding(tokens: Iterable[int]) -> bytes:
    """Return what stands for the embedding of `tokens`."""
    return hashlib.sha256(array("I", tokens).tobytes()).digest()


def undisturbed(
    prompt: Sequence[int],
    choice: int,
    max_total: int,
    stop_ids: Iterable[int],
    min_tokens: int,
    shift: tuple[int, int] | None = None,
) -> list[int]:
    """Return the whole output of a request that nothing happens to.

    With a `shift`, n_keep and the length of the context, a full context loses its middle.
    """
    tokens, output, stops = list(prompt), list[int](), set(stop_ids)
    while len(prompt) + len(output) < max_total:
        output.append(draw(tokens, choice))
        tokens.append(output[-1])
        if output[-1] in stops and len(output) > min_tokens:
            break
        if shift is not None and len(tokens) == shift[1]:
            keep = min(shift[0], len(prompt), shift[1] - 4)
            del tokens[keep : keep + (len(tokens) - keep) // 2]
    return output


@dataclass
class Row:
    tokens: list[int]
    choice: int
    num_computed: int
    block_ids: list[int]
    pooling: str
    tells_prompt: bool
    num_prompt: int
    next_index: int
    """Output index of the next token it draws."""


class CheckingWorker:
    """Executes plans in order; `applied` tells it which the scheduler has seen the result of."""

    def __init__(self, block_size: int, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.rows: dict[int, Row] = {}
        self.cells: dict[tuple[int, int], int] = {}
        self.host: dict[bytes, list[int]] = {}
        self.host_blocks = 0
        self.most_stored = MANY
        self.in_flight: dict[int, dict[int, tuple[int, ...]]] = {}  # step_id → seq_id → its blocks
        self.next_index: dict[int, int] = {}  # seq_id → output index of the next token
        self.num_computed = 0
        self.next_step_id = 1

    def execute(self, plan: ExecutePlan, faulty: frozenset[int] = frozenset()) -> StepResult:
        assert plan.step_id == self.next_step_id, "step ids have no gaps"
        self.next_step_id += 1
        left = {seq_id: self.rows.pop(seq_id) for seq_id in plan.finished}
        named = [self._start(start) for start in plan.starts]
        named += [self._step(step) for step in plan.steps]
        self._check(plan, [seq_id for seq_id, _ in named])
        for copy in plan.copies:
            self._copy(copy)
        for shift in plan.shifts:
            self._turn(shift, left[shift.seq_id])
        bulks = [bulk for seq_id, count in named for bulk in self._bulks(seq_id, count)]
        guesses = {step.seq_id: step.draft_token_ids for step in plan.steps}
        pairs = [
            (seq_id, self._compute(seq_id, self.rows[seq_id], count, guesses.get(seq_id, ())))
            for seq_id, count in named
        ]
        drawn = [(s, tokens) for s, tokens in pairs if tokens and s not in faulty]
        return StepResult(
            plan.step_id,
            tuple(seq_id for seq_id, _ in drawn),
            tuple(len(tokens) for _, tokens in drawn),
            tuple(token for _, tokens in drawn for token in tokens),
            faults=tuple(SequenceFault(s, "told to fail") for s, _ in named if s in faulty),
            bulks=tuple(bulk for bulk in bulks if bulk.key not in faulty),
        )

    def run(self, errand: Errand | DropKeys) -> ErrandDone | None:
        """Do an errand at once; a grammar called bad is none."""
        match errand:
            case DropKeys():
                for key in errand.keys:
                    self.host.pop(key, None)
                return None
            case CompileGrammar():
                return ErrandDone(0, errand.errand_id, "bad grammar" * (errand.sampling == b"bad"))
            case StoreBlocks():
                return ErrandDone(0, errand.errand_id, num_blocks=self._store(errand))
            case LoadBlocks():
                return ErrandDone(0, errand.errand_id, num_blocks=self._load(errand))

    def _store(self, errand: StoreBlocks) -> int:
        """Return how many from the first on are stored."""
        count, self.most_stored = min(len(errand.keys), self.most_stored), MANY
        for block_id, key in zip(errand.block_ids[:count], errand.keys, strict=False):
            assert key not in self.host, "stored twice"
            cells = [self.cells[block_id, offset] for offset in range(self.block_size)]
            self.host[key] = cells
        assert len(self.host) <= self.host_blocks, "host memory is full"
        return count

    def _load(self, errand: LoadBlocks) -> int:
        """Return how many from the first on are good; what comes behind is not touched."""
        held = {b for rows in self.in_flight.values() for blocks in rows.values() for b in blocks}
        for count, (block_id, key) in enumerate(zip(errand.block_ids, errand.keys, strict=True)):
            assert block_id not in held, "a block is overwritten that a plan under way names"
            if (cells := self.host.get(key)) is None:
                return count
            for offset, value in enumerate(cells):
                self.cells[block_id, offset] = value
        return len(errand.keys)

    def applied(self, step_id: int) -> None:
        del self.in_flight[step_id]

    def _start(self, start: SequenceStart) -> tuple[int, int]:
        assert start.seq_id not in self.rows, "started twice"
        tokens = list(array("I", start.token_ids))
        assert 0 <= start.num_prompt_tokens <= len(tokens)
        index = len(tokens) - start.num_prompt_tokens + start.num_dropped_outputs
        assert self.next_index.setdefault(start.seq_id, index) == index, "a noise is skipped"
        if start.pooling == "mean" or start.prompt_logprobs is not None:
            assert start.num_computed == 0, "positions are skipped that must be seen"
        self.rows[start.seq_id] = Row(
            tokens, start.choice, start.num_computed, list(start.block_ids), start.pooling,
            start.prompt_logprobs is not None, start.num_prompt_tokens, index,
        )  # fmt: skip
        return start.seq_id, start.num_tokens

    def _step(self, step: SequenceStep) -> tuple[int, int]:
        self.rows[step.seq_id].block_ids += step.new_block_ids
        return step.seq_id, step.num_tokens

    def _check(self, plan: ExecutePlan, named: list[int]) -> None:
        assert len(set(named)) == len(named) > 0, "a row is named twice, or none is"
        assert len(self.rows) <= self.max_num_seqs
        counts = [row.num_tokens for row in (*plan.starts, *plan.steps)]
        assert min(counts) > 0 and sum(counts) <= self.max_num_batched_tokens
        blocks = {seq_id: tuple(self.rows[seq_id].block_ids) for seq_id in named}
        now = {seq_id: tuple(row.block_ids) for seq_id, row in self.rows.items()}
        for seq_id, count in zip(named, counts, strict=True):
            start = self.rows[seq_id].num_computed
            span = slice(start // self.block_size, -(-(start + count) // self.block_size))
            for owners in (now, *self.in_flight.values()):
                others = {b for owner, held in owners.items() if owner != seq_id for b in held}
                assert not others & set(blocks[seq_id][span]), "a shared block is written"
        self.in_flight[plan.step_id] = blocks

    def _copy(self, copy: BlockCopy) -> None:
        held = [block_id for row in self.rows.values() for block_id in row.block_ids]
        assert (copy.source, 0) in self.cells, "nothing was written there"  # a resident's, perhaps
        assert held.count(copy.target) == 1, "a copy goes to a block of many"
        for offset in range(self.block_size):
            if (copy.source, offset) in self.cells:
                self.cells[copy.target, offset] = self.cells[copy.source, offset]

    def _turn(self, shift: Shift, old: Row) -> None:
        """Cells that hold what stood further behind now hold what their row says there."""
        row, cells = self.rows[shift.seq_id], array("I", shift.cells)
        first = row.block_ids.index(cells[0] // self.block_size) * self.block_size
        for position, cell in enumerate(cells, first):
            place = divmod(cell, self.block_size)
            assert place == self._cell(row, position), "the turned cells are not in order"
            assert self.cells[place] == content(old.tokens, position - shift.delta), "not that cell"
            self.cells[place] = content(row.tokens, position)
        held = [b for other in self.rows.values() if other is not row for b in other.block_ids]
        assert not set(held) & {cell // self.block_size for cell in cells}, "others read it"

    def _bulks(self, seq_id: int, count: int) -> Iterator[Bulk]:
        """Yield what the next `count` positions of a row bring besides tokens."""
        row = self.rows[seq_id]
        end = row.num_computed + count
        indices = range(row.num_computed + 1, min(end + 1, row.num_prompt))
        if row.tells_prompt and indices:
            told = (Logprobs(seq_id, i, (row.tokens[i],), (-1.0,)) for i in indices)
            yield Bulk(seq_id, prompt_logprobs=tuple(told))
        if row.pooling and end == len(row.tokens):
            yield Bulk(seq_id, embedding=embedding(row.tokens))

    def _compute(self, seq_id: int, row: Row, count: int, guesses: tuple[int, ...]) -> list[int]:
        """Return the tokens drawn: that after each guess, up to the first guess that is wrong."""
        end, tokens = row.num_computed + count, [*row.tokens, *guesses]
        assert end <= len(tokens), "a token is computed before it is known"
        assert end <= len(row.block_ids) * self.block_size, "no block for a position"
        assert end == len(tokens) or not guesses, "guesses before the end of what is known"
        for position in range(row.num_computed, end):
            self.cells[self._cell(row, position)] = content(tokens, position)
        row.num_computed = end
        self.num_computed += count
        if end < len(tokens) or row.pooling:
            return []
        for position in range(len(row.tokens)):
            assert self.cells[self._cell(row, position)] == content(row.tokens, position), "lost KV"
        drawn = [draw(row.tokens, row.choice)]
        while len(drawn) <= len(guesses) and drawn[-1] == guesses[len(drawn) - 1]:
            drawn.append(draw([*row.tokens, *drawn], row.choice))
        row.tokens += drawn
        row.next_index += len(drawn)
        self.next_index[seq_id] = row.next_index
        row.num_computed = len(row.tokens) - 1
        return drawn

    def _cell(self, row: Row, position: int) -> tuple[int, int]:
        return row.block_ids[position // self.block_size], position % self.block_size
