"""HostTier: which evicted blocks the workers keep in host memory, and what is to be moved.

A block is stored when its page is about to be used for something else: the order goes out before
the plan that may write there. Books only; what is really there, the answers to loads say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from engine_core.scheduling.errands import Errands, Then
from protos.worker import DropKeys, ErrandDone, LoadBlocks, StoreBlocks


class HostTier:
    """Keys of at most `capacity` blocks, the one used least recently first."""

    def __init__(self, capacity: int, errands: Errands) -> None:
        self.capacity = capacity
        self._errands = errands
        self._held: OrderedDict[bytes, None] = OrderedDict()
        self._leaving: dict[bytes, int] = {}  # key → page, to be stored before the next plan
        self._dropped: list[bytes] = []
        self._coming = set[bytes]()

    def evicted(self, key: bytes, block_id: int) -> None:
        """The page `block_id` is about to be used for something else than what `key` names."""
        if key not in self._held:
            self._leaving[key] = block_id
            self._held[key] = None
        self._held.move_to_end(key)
        if len(self._held) > self.capacity:
            self.forget([next(key for key in self._held if key not in self._coming)])

    def num_held(self, keys: Iterable[bytes]) -> int:
        """Return how many of `keys` are held, up to the first that is not."""
        count = 0
        for key in keys:
            if key not in self._held:
                break
            count += 1
        return count

    def reserve(self, keys: Iterable[bytes]) -> None:
        """From now on, and until they are loaded, these do not make way for others."""
        for key in keys:
            self._held.move_to_end(key)
            self._coming.add(key)

    def is_coming(self, key: bytes) -> bool:
        """Return whether `key` is reserved or being loaded."""
        return key in self._coming

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int], then: Then) -> None:
        """Have pages filled from reserved `keys`.

        `then` hears how many of them, from the first on, are good and not forgotten since.
        """
        self.flush()  # what these pages held until now

        def loaded(answer: ErrandDone, now: float) -> None:
            # what was forgotten meanwhile may be held again: not what has been loaded
            coming = [key in self._coming for key in keys]
            num_known = coming.index(False) if False in coming else len(keys)
            self._coming.difference_update(keys)
            then(replace(answer, num_blocks=min(answer.num_blocks, num_known)), now)

        blocks, wanted = tuple(block_ids), tuple(keys)
        self._errands.ask(lambda errand_id: LoadBlocks(errand_id, blocks, wanted), loaded)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These are not to be loaded any more; those not held are no error."""
        for key in keys:
            if key in self._held:
                del self._held[key]
                self._coming.discard(key)
                if self._leaving.pop(key, None) is None:
                    self._dropped.append(key)

    def clear(self) -> None:
        """Forget all that is held."""
        self.forget(list(self._held))

    def flush(self) -> None:
        """Ask for what is to be dropped and stored before the next plan."""
        if self._dropped:
            self._errands.say(DropKeys(tuple(self._dropped)))
            self._dropped.clear()
        if self._leaving:
            keys, blocks = tuple(self._leaving), tuple(self._leaving.values())
            self._leaving.clear()

            def then(answer: ErrandDone, now: float) -> None:
                self.forget(keys[answer.num_blocks :])

            self._errands.ask(lambda errand_id: StoreBlocks(errand_id, blocks, keys), then)

    def check(self) -> list[str]:
        """Return what is wrong in the books."""
        problems = []
        if len(self._held) > self.capacity:
            problems.append(f"{len(self._held)} blocks in host memory of {self.capacity}")
        if strays := self._leaving.keys() - self._held.keys():
            problems.append(f"{len(strays)} blocks are to be stored and not held")
        return problems
