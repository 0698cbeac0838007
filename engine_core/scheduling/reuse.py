"""What the scheduler asks of whoever remembers what was computed, and one who remembers nothing.

How a beginning is found again depends on the layout: whole pages by their key, or the cells of the
sequence that has the most in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from engine_core.scheduling.kv_layout import KvLayout
from engine_core.scheduling.sequence import Sequence


class Known(NamedTuple):
    """The first `num_tokens` of a sequence need not be computed."""

    num_tokens: int = 0
    block_ids: tuple[int, ...] = ()
    """Whole pages that hold them."""
    owner: int | None = None
    """Who has them in the layout; None = the pages stand by themselves."""
    source: Sequence | None = None
    """The running choice of the same request that they are shared with."""


class Reuse(Protocol):
    """Finds known beginnings, and decides what is left of a row that leaves the workers."""

    def find(self, sequence: Sequence) -> Known:
        """Return the longest known beginning of `sequence`, not yet claimed.

        The last token is never in it: it must be computed to draw the next one.
        """
        ...

    def claim(self, sequence: Sequence, known: Known) -> None:
        """Let `sequence` begin with what `find` has returned."""
        ...

    def watch(self, sequence: Sequence, num_known: int) -> None:
        """From now on `enter` is due when `sequence.enter_at` tokens are computed."""
        ...

    def enter(self, sequence: Sequence, num_computed: int) -> None:
        """Let others find what is computed and confirmed of `sequence`."""
        ...

    def retire(self, sequence: Sequence, num_computed: int) -> None:
        """Take `sequence` out of the layout; what is worth keeping may stay, idle."""
        ...

    def distrust(self, sequence: Sequence) -> None:
        """The worker failed on `sequence`: nothing of it is found again, nothing is entered."""
        ...

    def exclude(self, sequence: Sequence) -> None:
        """From now on its cells do not hold what its tokens say: nobody finds them."""
        ...

    def evict(self, num_free: int) -> None:
        """Forget what idles, the oldest first, until `num_free` pages are free or none idles."""
        ...

    def holders(self) -> Iterable[int]:
        """Return who has a table in the layout without being a live sequence."""
        ...

    def check(self) -> list[str]:
        """Return what is wrong in the books; empty when they are true."""
        ...


class NoReuse:
    """Every sequence is computed from its first token on and leaves nothing behind."""

    def __init__(self, layout: KvLayout) -> None:
        self._layout = layout

    def find(self, sequence: Sequence) -> Known:
        return Known()

    def claim(self, sequence: Sequence, known: Known) -> None:
        assert not known.num_tokens, "nothing is ever known"

    def watch(self, sequence: Sequence, num_known: int) -> None:
        pass

    def enter(self, sequence: Sequence, num_computed: int) -> None:
        pass

    def retire(self, sequence: Sequence, num_computed: int) -> None:
        self._layout.free(sequence.seq_id)

    def distrust(self, sequence: Sequence) -> None:
        pass

    def exclude(self, sequence: Sequence) -> None:
        pass

    def evict(self, num_free: int) -> None:
        pass

    def holders(self) -> Iterable[int]:
        return ()

    def check(self) -> list[str]:
        return []
