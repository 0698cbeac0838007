"""Trace: the survivors after each stage of one draw, as JSON.

{"index": output index, "token_id": drawn, "stages": [{"stage": name, "count": survivors,
"top": [[token_id, probability], …]}, …]}; the first is "logits", then "grammar" if one acts; `top`
holds the likeliest of what is left, and their probabilities among it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from worker.sampling.candidates import Candidates

TOP = 20


class Trace:
    """Collects one entry per stage."""

    def __init__(self) -> None:
        self._stages: list[dict[str, Any]] = []

    def note(self, stage: str, candidates: Candidates) -> None:
        """Add what `stage` has left, at least one token that is not forbidden."""
        left = candidates.possible()
        weights = np.exp(left.logits - left.logits.max())
        count = min(TOP, len(weights))
        lowest = np.partition(weights, len(weights) - count)[len(weights) - count]
        likely = np.flatnonzero(weights >= lowest)
        likely = likely[np.argsort(-weights[likely], kind="stable")][:count]
        masses = (weights[likely] / weights.sum()).tolist()
        top = [
            [i, float(f"{p:.6g}")] for i, p in zip(left.ids[likely].tolist(), masses, strict=True)
        ]
        self._stages.append({"stage": stage, "count": len(weights), "top": top})

    def to_json(self, index: int, token_id: int) -> bytes:
        return json.dumps(
            {"index": index, "token_id": token_id, "stages": self._stages}, separators=(",", ":")
        ).encode()
