"""Sequences that wait until the beginning of their prompt is back from host memory.

Their pages are reserved until the answer comes, whatever happens to the sequence meanwhile. What
has come back goes into the prefix cache, and the sequence waits for its turn like any other; what
is lost is computed again.
"""

from __future__ import annotations

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.host_tier import HostTier
from engine_core.scheduling.prefix_cache import PrefixCache
from engine_core.scheduling.reuse import Known
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import ErrandDone


class Fetching:
    """Loads that are under way."""

    def __init__(self, roster: Roster, pool: BlockPool, cache: PrefixCache, tier: HostTier) -> None:
        self._roster = roster
        self._pool = pool
        self._cache = cache
        self._tier = tier

    def begin(self, sequence: Sequence, known: Known) -> bool:
        """Have fetched what host memory holds of `sequence` behind what is `known`; return whether
        it waits now. It fits, and it asks once each time that it waits for its turn."""
        if sequence.has_fetched or not sequence.may_skip or known.source is not None:
            return False
        keys = self._wanted(sequence, known)
        count = self._tier.num_held(keys)
        if not count:
            return False
        keys = keys[:count]
        self._tier.reserve(keys)
        self._cache.claim(sequence, known)
        self._cache.evict(count)
        num_known = len(known.block_ids)
        length = (num_known + count) * self._pool.block_size
        block_ids = self._pool.allocate(sequence.seq_id, length).block_ids
        sequence.has_fetched = True
        self._roster.hold(sequence, Status.WAITING_FOR_REMOTE_KVS)
        self._roster.fetching.add(sequence.seq_id)

        def then(answer: ErrandDone, now: float) -> None:
            self._end(sequence, num_known, keys, answer.num_blocks)

        self._tier.load(keys, block_ids, then)
        return True

    def is_coming(self, sequence: Sequence, known: Known) -> bool:
        """Return whether what follows the `known` of `sequence` is on its way for another."""
        wanted = self._wanted(sequence, known)
        return bool(wanted) and not sequence.has_fetched and self._tier.is_coming(wanted[0])

    def _wanted(self, sequence: Sequence, known: Known) -> list[bytes]:
        return self._cache.keys(sequence)[len(known.block_ids) :]

    def _end(self, sequence: Sequence, num_known: int, keys: list[bytes], num_good: int) -> None:
        self._tier.forget(keys[num_good : num_good + 1])  # those behind it may be good
        self._cache.restore(sequence, num_known, num_known + num_good)
        self._pool.free(sequence.seq_id)
        self._roster.fetching.remove(sequence.seq_id)
        self._roster.tally.fetched(
            num_good * self._pool.block_size, (len(keys) - num_good) * self._pool.block_size
        )
        if sequence.status is Status.WAITING_FOR_REMOTE_KVS:
            self._roster.release(sequence)


def new_fetching(roster: Roster, tier: HostTier | None) -> Fetching | None:
    """Return what brings pages back from `tier`; None when nothing ever goes there."""
    pool, cache = roster.layout, roster.cache
    if tier is None or not isinstance(pool, BlockPool) or not isinstance(cache, PrefixCache):
        return None
    return Fetching(roster, pool, cache, tier)
