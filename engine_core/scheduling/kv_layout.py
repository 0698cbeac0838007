"""What the scheduler asks of a KV cache's layout, whatever its pages look like.

A sequence has a table: position → cell, as a list of pages of `block_size` positions each. Knows no
tokens and no requests; `seq_id` is a key. Ranges are `start` up to, not including, `end`; `end`
None means to the end. The names of the `seq_` operations are those of llama.cpp's `llama_memory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from protos.worker import BlockCopy


class OutOfBlocks(Exception):
    """Fewer blocks are free than asked for; nothing was taken."""


class Unsupported(Exception):
    """This layout cannot do that; nothing was changed."""


class Grant(NamedTuple):
    """New pages at the end of a table, and the copies the workers make before they write there."""

    block_ids: tuple[int, ...]
    copies: tuple[BlockCopy, ...] = ()


class KvLayout(Protocol):
    """Pages and their owners. Free + idle + held by a sequence = all pages."""

    num_blocks: int
    block_size: int
    """Positions per page; a cell is page * block_size + offset."""
    growth: int
    """Pages that a running sequence takes at a time, when there are plenty."""
    is_static: bool
    """A sequence has from the start all it will ever hold, and shares nothing."""

    @property
    def num_free(self) -> int: ...

    @property
    def num_idle(self) -> int:
        """Pages that nobody computes with; their content is worth keeping until they are needed."""
        ...

    @property
    def num_available(self) -> int:
        """Free pages, and idle ones that may be evicted."""
        ...

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many pages hold `num_tokens` tokens."""
        ...

    def fits(self, num_tokens: int, known: Collection[int] = ()) -> bool:
        """Return whether a new sequence of `num_tokens` tokens fits, if all idle pages were evicted
        but `known`, which hold its beginning already."""
        ...

    def table(self, seq_id: int) -> list[int]:
        """Return the pages of `seq_id` in order of position: the list itself, which grows."""
        ...

    def holders(self) -> Iterable[int]:
        """Return the sequences that have a table."""
        ...

    def allocate(self, seq_id: int, num_tokens: int) -> Grant:
        """Give `seq_id` cells behind those it has, so that it can write below `num_tokens`.

        A shared page that it would write to is replaced by a copy. Raises OutOfBlocks and takes
        nothing; never evicts.
        """
        ...

    def free(self, seq_id: int) -> None:
        """Forget `seq_id`; pages without another owner are free, or idle when worth keeping."""
        ...

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        """Let `target`, which is new, share these positions of `source` without moving a byte."""
        ...

    def seq_rm(self, seq_id: int, start: int = 0, end: int | None = None) -> None:
        """Take these positions from `seq_id`."""
        ...

    def seq_add(self, seq_id: int, start: int, end: int | None, delta: int) -> Grant:
        """Move these positions of `seq_id` by `delta`.

        Cells with other owners are cloned first: the copies say how. Raises OutOfBlocks.
        """
        ...

    def seq_keep(self, seq_id: int) -> None:
        """Free every other sequence."""
        ...

    def seq_pos_max(self, seq_id: int) -> int:
        """Return the last position of `seq_id` that has a cell, -1 when none has."""
        ...

    def check(self) -> list[str]:
        """Return what is wrong in the books; empty when they are true."""
        ...
