"""What the operator allows one replica: seats, budget, queue, and a tenant's part of them."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """Settings of a scheduler that are the same for every model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    max_tenant_seqs: int = 0
    """Sequences of one tenant that run at a time; 0 = no limit of its own."""
    max_tenant_blocks: int = 0
    """A tenant that holds this many blocks starts nothing more; its only sequence always may."""
