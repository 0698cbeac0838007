"""The layouts by name: pages and what finds their content again, made for each other."""

from __future__ import annotations

from engine_core.scheduling.block_pool import BlockPool
from engine_core.scheduling.host_tier import HostTier
from engine_core.scheduling.kv_layout import KvLayout
from engine_core.scheduling.prefix_cache import PrefixCache
from engine_core.scheduling.residents import Residents
from engine_core.scheduling.reuse import NoReuse, Reuse
from engine_core.scheduling.slot_pool import SlotPool
from engine_core.scheduling.static_pool import StaticPool


def new_layout(
    name: str,
    num_blocks: int,
    block_size: int,
    prefix_key: bytes | None,
    tier: HostTier | None = None,
) -> tuple[KvLayout, Reuse]:
    """Return an empty layout and its memory; without a `prefix_key` it remembers nothing.

    Only whole pages go to `tier` and come back.

    Raises ValueError for a name that is no layout, or pages that it cannot have.
    """
    match name:
        case "block":
            pages = BlockPool(num_blocks, block_size)
            return pages, PrefixCache(pages, prefix_key, tier) if prefix_key else NoReuse(pages)
        case "slot":
            if block_size != 1:
                raise ValueError(f"kv_layout=slot has pages of one cell, not of {block_size}")
            cells = SlotPool(num_blocks)
            return cells, Residents(cells) if prefix_key else NoReuse(cells)
        case "static":
            ranges = StaticPool(num_blocks, block_size)
            return ranges, NoReuse(ranges)
    raise ValueError(f"kv_layout is {name!r}, allowed: block, slot, static")
