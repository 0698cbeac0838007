"""What the operator allows one replica: seats, budget, queue, and a tenant's part of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

OTHERS = "*"
"""Stands for every tenant that has no limits of its own."""


class TenantLimits(msgspec.Struct, frozen=True):
    """What one tenant may have; 0 = as much as anybody."""

    context: int = 0
    """Tokens of one request, prompt and output."""
    new_tokens: int = 0
    """Output tokens of one choice."""
    seqs: int = 0
    """Sequences that run at a time; more of them wait."""
    blocks: int = 0
    """KV blocks held at a time; a block that several sequences share counts for each."""
    waiting: int = 0
    """Requests in the queue, every choice one; more are refused."""
    priority: int | None = None
    """The lowest that may be asked, that is the first in turn; None = any."""


class Bounds(NamedTuple):
    """What a scheduler may do: its settings, and what its workers can."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """At least max_num_seqs: every running sequence needs one."""
    max_waiting: int
    tenants: Mapping[str, TenantLimits] = {}
    """By name; `OTHERS` for those that are not named."""
    host_blocks: int = 0
    """Evicted blocks that the workers keep in host memory."""
    has_head: bool = True
    """Without one a model embeds and writes no text."""

    def of(self, tenant: str) -> TenantLimits:
        """Return what `tenant` may have."""
        return self.tenants.get(tenant) or self.tenants.get(OTHERS) or _UNLIMITED


_UNLIMITED = TenantLimits()
