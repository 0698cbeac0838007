"""The layouts by name: pages and what finds their content again, made for each other."""

from __future__ import annotations

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.kv_layout import KvLayout
from engine_core.scheduling.prefix_cache import PrefixCache
from engine_core.scheduling.reuse import NoReuse, Reuse


def new_layout(
    name: str, num_blocks: int, block_size: int, prefix_key: bytes | None
) -> tuple[KvLayout, Reuse]:
    """Return an empty layout and its memory; without a `prefix_key` it remembers nothing.

    Raises ValueError for a name that is no layout.
    """
    if name != "block":
        raise ValueError(f"kv_layout is {name!r}, allowed: block")
    pool = BlockPool(num_blocks, block_size)
    return pool, NoReuse(pool) if prefix_key is None else PrefixCache(pool, prefix_key)
