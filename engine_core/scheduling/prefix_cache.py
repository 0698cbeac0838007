"""Which block holds the keys and values of which tokens: a chain of hashes over whole blocks.

The key of a block is sha256(key of the block before, its token ids). The chain begins with what
else the content depends on, and with who may read it: the model's key, the tenant, the salt. Only
what a plan has computed and its result has confirmed is entered; a block entered is never written
again. Knows no plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.host_tier import HostTier
from engine_core.scheduling.request import Request
from engine_core.scheduling.reuse import Known
from engine_core.scheduling.sequence import NEVER, Sequence
from protos.worker import ModelFacts


def model_key(facts: ModelFacts) -> bytes:
    """Return what the keys and values of a model depend on besides the tokens."""
    return f"{facts.model_hash}/{facts.fingerprint}/{facts.block_size}".encode()


class PrefixCache:
    """Blocks by key. `model_key` says what makes two models' values differ."""

    def __init__(self, pool: BlockPool, model_key: bytes, tier: HostTier | None = None) -> None:
        """What is evicted goes to `tier`, if there is one."""
        self._tier = tier
        self._pool = pool
        self._model_key = model_key
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def find(self, sequence: Sequence) -> Known:
        found = []
        for key in self.keys(sequence):
            block_id = self._blocks.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return Known(len(found) * self._pool.block_size, tuple(found))

    def claim(self, sequence: Sequence, known: Known) -> None:
        self._pool.adopt(sequence.seq_id, known.block_ids)

    def watch(self, sequence: Sequence, num_known: int) -> None:
        """The whole blocks among the first `num_known` tokens came from here."""
        sequence.num_entered = num_known // self._pool.block_size
        sequence.enter_at = (sequence.num_entered + 1) * self._pool.block_size

    def enter(self, sequence: Sequence, num_computed: int) -> None:
        """Enter the whole blocks among the first `num_computed` tokens that are not in yet.

        Tokens that `sequence` does not have (overshot behind its end) are no part of it.
        """
        if num_computed < sequence.enter_at:
            return
        size, length = self._pool.block_size, len(sequence.tokens)
        count = (num_computed if num_computed < length else length) // size
        self._extend(sequence, count)
        self.restore(sequence, sequence.num_entered, count)
        sequence.num_entered = count
        sequence.enter_at = (count + 1) * size

    def keys(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of all blocks that `sequence` might find."""
        most = (len(sequence.tokens) - 1) // self._pool.block_size
        self._extend(sequence, most)
        return sequence.block_keys[:most]

    def restore(self, sequence: Sequence, start: int, stop: int) -> None:
        """Enter these pages of the table of `sequence`, whose content is what their keys say."""
        blocks, keys = self._blocks, sequence.block_keys
        block_ids = self._pool.table(sequence.seq_id)
        for index in range(start, stop):
            key = keys[index]
            if key not in blocks:  # the same tokens may be computed twice: the first stays
                blocks[key] = block_id = block_ids[index]
                self._keys[block_id] = key
                self._pool.keep(block_id)

    def retire(self, sequence: Sequence, num_computed: int) -> None:
        self.enter(sequence, num_computed)
        self._pool.free(sequence.seq_id)

    def distrust(self, sequence: Sequence) -> None:
        """All its blocks are forgotten, also those that came from here, and their copies."""
        self.exclude(sequence)
        if self._tier is not None:
            self._tier.forget(sequence.block_keys)
        if sequence.seq_id in self._pool.holders():
            for block_id in self._pool.table(sequence.seq_id):
                self._forget(block_id)

    def exclude(self, sequence: Sequence) -> None:
        sequence.enter_at = NEVER

    def evict(self, num_free: int) -> None:
        """As Reuse says, and the pool's reserve with them: twice that, for some steps."""
        pool = self._pool
        if pool.num_free >= num_free + pool.reserve:
            return
        num_free += 2 * pool.reserve
        while pool.num_free < num_free and pool.num_idle:
            block_id = pool.oldest_idle()
            if self._tier is not None:
                self._tier.evicted(self._keys[block_id], block_id)
            self._forget(block_id)

    def _forget(self, block_id: int) -> None:
        key = self._keys.pop(block_id, None)
        if key is not None:
            del self._blocks[key]
            self._pool.discard(block_id)

    def _extend(self, sequence: Sequence, count: int) -> None:
        """Make the keys of the first `count` blocks known."""
        keys, size = sequence.block_keys, self._pool.block_size
        if len(keys) >= count:
            return
        if not keys:
            keys += self._of_choices(sequence)
        key = keys[-1] if keys else self._root(sequence.request)
        tokens = sequence.tokens
        for start in range(len(keys) * size, count * size, size):
            key = sha256(key + tokens[start : start + size].tobytes()).digest()
            keys.append(key)

    def _of_choices(self, sequence: Sequence) -> list[bytes]:
        """Return what another choice knows of the prompt they share: it is hashed once for all."""
        if sequence.num_dropped:
            return []
        others = (row.block_keys for row in sequence.family if not row.num_dropped)
        return max(others, key=len, default=[])[: sequence.num_prompt // self._pool.block_size]

    def _root(self, request: Request) -> bytes:
        digest = sha256()
        limits = request.limits
        for part in (self._model_key, limits.tenant.encode(), limits.cache_salt):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def holders(self) -> Iterable[int]:
        return ()

    def check(self) -> list[str]:
        """Keys and blocks must mirror each other and the pool's marks."""
        problems = []
        if dict(zip(self._keys.values(), self._keys.keys(), strict=True)) != self._blocks:
            problems += [
                f"block {b} is cached under a key of block {self._blocks.get(k)}"
                for b, k in self._keys.items()
                if self._blocks.get(k) != b
            ]
        if len(self._keys) != len(self._blocks):
            problems.append(f"{len(self._blocks)} keys for {len(self._keys)} cached blocks")
        if strays := self._pool.kept().symmetric_difference(self._keys):
            problems.append(f"blocks {sorted(strays)} are kept or cached, not both")
        return problems + (self._tier.check() if self._tier is not None else [])
