"""The host's part of a decode step, on a device that does nothing."""

from __future__ import annotations

from bench.host_steps import CHAINS, measure


def test_every_batch_and_chain_is_measured() -> None:
    rows = measure([1, 3], num_steps=6)
    assert [(row["batch"], row["chain"]) for row in rows] == [
        (batch, chain) for batch in (1, 3) for chain in CHAINS
    ]
    assert all(row["us"] > 0 for row in rows)
