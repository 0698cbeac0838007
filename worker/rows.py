"""Rows: what the worker keeps of each sequence from its first step until it is dropped.

Knows tokens, blocks and how to draw. Which rows run, and in what order, is in the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from protos import worker as wire
from worker.errors import RowError
from worker.grammar import Grammars
from worker.kernels.checks import Ints
from worker.pooling import Pool
from worker.sampling.candidates import History
from worker.sampling.draw import read_draw


class Room(NamedTuple):
    """What there is for any row."""

    num_blocks: int
    block_size: int
    num_positions: int


class Column:
    """int32 values that grow at their end, in place as long as there is room."""

    def __init__(self, values: Ints) -> None:
        self._held = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Ints:
        """A view."""
        return self._held[: self._length]

    def extend(self, values: Sequence[int]) -> None:
        self.note(values)
        self._length += len(values)

    def add(self, value: int) -> None:
        """Add one value: what a step does to every row."""
        if self._length == len(self._held):
            return self.extend((value,))
        self._held[self._length] = value
        self._length += 1

    def put(self, place: int, value: int) -> None:
        self._held[place] = value

    def at(self, place: int) -> int:
        """Return a value, which may be one that is noted."""
        return self._held[place]  # type: ignore[no-any-return]

    def note(self, values: Sequence[int]) -> None:
        """Write behind the end without moving it: what is added next is written over this."""
        end = self._length + len(values)
        if end > len(self._held):
            grown = np.empty(2 * end + 64, np.int32)
            grown[: self._length] = self.values
            self._held = grown
        self._held[self._length : end] = values

    def span(self, start: int, stop: int) -> Ints:
        """Return a view that may reach into what is noted."""
        return self._held[start:stop]


class Row:
    """One sequence: num_computed ≤ num_tokens, and blocks for all that is computed.

    During a step that tries guesses, these stand behind the known tokens and num_computed runs into
    them; `settle` takes it back to what has come true. Keys and values behind num_computed are
    garbage that the next step writes over: no token looks at positions after its own.

    Its last tokens may be promised: drawn by a device, not read yet. `~place` stands for such a
    token, of the device's list of draws, and it counts like any other.
    """

    def __init__(
        self, start: wire.SequenceStart, vocab_size: int, grammars: Grammars | None = None
    ) -> None:
        known = np.frombuffer(start.token_ids, "<u4")
        if not 0 <= start.num_computed < len(known):
            raise RowError(f"{start.num_computed} of {len(known)} tokens are said to be computed")
        if int(known.max()) >= vocab_size:
            raise RowError(f"token id {int(known.max())}, vocabulary is {vocab_size}")
        self.seq_id = start.seq_id
        self.num_prompt_tokens = start.num_prompt_tokens
        self._num_dropped_outputs = start.num_dropped_outputs
        self.num_computed = start.num_computed
        self.draw = read_draw(start, vocab_size, grammars)
        self.pool = Pool(start) if start.pooling else None
        self._blocks = Column(np.array(start.block_ids, np.int32))
        self._num_checked = 0  # blocks that are known to exist
        self._tokens = Column(known.astype(np.int32))
        self.num_tokens = len(known)
        """Those that are known or promised."""
        self._num_guesses = 0
        self.num_promised = 0
        self.has_failed = False
        self.prompt_logprobs = None if start.pooling else start.prompt_logprobs
        self.logits_from = 0
        """Logits are wanted at all positions of this step from here on: from the last known token;
        at none when the row is pooled; at all of a prompt that is to be told how likely it was."""
        self.settle()

    @property
    def tells_prompt(self) -> bool:
        """Whether some of the prompt is to be computed, and to be told how likely it was."""
        return self.prompt_logprobs is not None and self.num_computed < self.num_prompt_tokens

    @property
    def tokens(self) -> Ints:
        """The known ids, prompt and output; a view."""
        return self._tokens.values

    @property
    def blocks(self) -> Ints:
        """The blocks that hold its keys and values, in order; a view."""
        return self._blocks.values

    @property
    def history(self) -> History:
        tokens = self.tokens
        return History(tokens[: self.num_prompt_tokens], tokens[self.num_prompt_tokens :])

    @property
    def num_output_tokens(self) -> int:
        """The index of the next output token: all there ever were count, also those dropped."""
        return self.num_tokens - self.num_prompt_tokens + self._num_dropped_outputs

    def promise(self, place: int) -> None:
        """Add a token that stands at `place` of the device's list; `append` brings it later."""
        self._tokens.add(~place)
        self.num_tokens += 1
        self.num_promised += 1

    def append(self, token_id: int) -> bool:
        """Add a drawn token; return whether it was the next guess, so that what follows holds.

        The oldest promise comes true first.
        """
        if self.num_promised:
            self._tokens.put(self.num_tokens - self.num_promised, token_id)
            self.num_promised -= 1
            return False
        place = self.num_tokens
        is_guessed = self._num_guesses > 0 and self._tokens.at(place) == token_id
        self._num_guesses = self._num_guesses - 1 if is_guessed else 0
        self._tokens.add(token_id)
        self.num_tokens += 1
        return is_guessed

    @property
    def has_guesses(self) -> bool:
        return self._num_guesses > 0

    def guess(self, token_ids: Sequence[int]) -> None:
        """Put guesses behind the known tokens, for the step that is about to run."""
        self._tokens.note(token_ids)
        self._num_guesses = len(token_ids)

    def span(self, start: int, stop: int) -> Ints:
        """Return the ids at these positions, guesses included; a view."""
        return self._tokens.span(start, stop)

    def token_at(self, position: int) -> int:
        """Return the id there, which may be a guess or a promise."""
        return self._tokens.at(position)

    def settle(self) -> None:
        """The step is over: go back behind guesses that did not come true."""
        self._num_guesses = 0
        end = self.num_tokens - (self.pool is None)  # the last is computed when the next is drawn
        if self.num_computed > end:
            self.num_computed = end
        self.logits_from = 0 if self.tells_prompt else end

    def extend(self, block_ids: Sequence[int]) -> None:
        """Add blocks behind those it has."""
        self._blocks.extend(block_ids)

    def check(self, num_tokens: int, room: Room) -> None:
        """Raise RowError unless `num_tokens` more tokens are known and have blocks that exist."""
        end, most = self.num_computed + num_tokens, self.num_tokens + self._num_guesses
        if not 0 < num_tokens <= most - self.num_computed:
            raise RowError(f"step of {num_tokens} tokens after {self.num_computed} of "
                           f"{most} known ones")  # fmt: skip
        if self._num_guesses and end != most:
            raise RowError(f"{self._num_guesses} guesses, and a step that ends at {end} of {most}")
        num_blocks = len(self._blocks)
        if end > num_blocks * room.block_size:
            raise RowError(f"{end} tokens do not fit in {num_blocks} blocks of {room.block_size}")
        if num_blocks != self._num_checked:  # once for each new block, not at every step
            blocks = self.blocks
            if not 0 <= int(blocks.min()) <= int(blocks.max()) < room.num_blocks:
                raise RowError(f"block ids {blocks.tolist()} outside 0..{room.num_blocks - 1}")
            self._num_checked = num_blocks
        if end > room.num_positions:
            raise RowError(f"{end} tokens, the model has {room.num_positions} positions")


class Rows:
    """The live rows by seq_id. A row that failed is forgotten: its later steps say nothing."""

    def __init__(self, vocab_size: int, grammars: Grammars | None = None) -> None:
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._rows: dict[int, Row] = {}
        self._failed: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def drop(self, seq_ids: Iterable[int]) -> None:
        """Forget these sequences; unknown ones are no error."""
        for seq_id in seq_ids:
            self._rows.pop(seq_id, None)
            self._failed.discard(seq_id)

    def start(self, start: wire.SequenceStart) -> Row:
        """Add a row, in place of any of the same id; raise RowError when it cannot run."""
        self.drop([start.seq_id])
        row = Row(start, self._vocab_size, self._grammars)
        self._rows[start.seq_id] = row
        return row

    def step(self, step: wire.SequenceStep) -> Row | None:
        """Return the row with its new blocks, or None when it failed before."""
        if step.seq_id in self._failed:
            return None
        row = self._rows.get(step.seq_id)
        if row is None:
            raise RowError(f"sequence {step.seq_id} has never started here")
        if step.new_block_ids:
            row.extend(step.new_block_ids)
        if step.draft_token_ids:
            self._check_ids(step.draft_token_ids)
            row.guess(step.draft_token_ids)
        return row

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise RowError(f"guesses {token_ids}, vocabulary is {self._vocab_size}")

    def refuse(self, seq_id: int) -> None:
        """Forget a sequence whose failure is reported."""
        self._rows.pop(seq_id, None)
        self._failed.add(seq_id)

    def fail(self, row: Row) -> None:
        """Forget a row whose failure is reported, also for the step that has begun after it."""
        row.has_failed = True
        if self._rows.get(row.seq_id) is row:  # not dropped since, and not started anew
            self.refuse(row.seq_id)
