"""A worker without arithmetic: every step takes the same time and every row gets a token.

Stands where a ModelRunner stands, so that all tiers above it are the real ones. It measures what an
accelerator would suffer: the gap between handing back one step's result and getting the next plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer

from protos import worker as wire
from worker.flights import Flight
from worker.memory import host_memory
from worker.models.config import read_config

SAMPLE = (
    "The mill turns while the river runs, and every wheel that drives a stone is driven by water "
    "that never knows which stone it drives. Four wheels, one river, no waiting: 12 + 30 = 42. "
)
PAUSE_S = 0.5
"""A longer gap is a pause between loads, not one between steps."""
Entry = wire.SequenceStart | wire.SequenceStep


class PacedRunner:
    """Executes plans in `step_s` seconds each; has what the server asks of a ModelRunner."""

    num_blocks = 1 << 16
    block_size = 16
    memory: ClassVar[dict[str, int]] = {}
    host_tier = None

    def __init__(self, token_ids: Sequence[int], step_s: float) -> None:
        self._token_ids = token_ids
        self._step_s = step_s
        self._left: dict[int, int] = {}  # seq_id → known tokens that are not computed yet
        self._drawn: dict[int, int] = {}
        self._answered_at = 0.0
        self.gaps_s: list[float] = []
        self.num_tokens = 0

    @property
    def num_sequences(self) -> int:
        return len(self._left)

    def begin(self, plan: wire.ExecutePlan, land_earlier: Callable[[], None]) -> Flight:
        """Execute the step at once."""
        result = self.execute(plan)
        return Flight(plan.step_id, None, lambda: result)

    def execute(self, plan: wire.ExecutePlan) -> wire.StepResult:
        """Wait for `step_s`, then return one token for every row that reaches its end."""
        begin = time.monotonic()
        if begin - self._answered_at < PAUSE_S:
            self.gaps_s.append(begin - self._answered_at)
        for seq_id in plan.finished:
            self._left.pop(seq_id, None)
            self._drawn.pop(seq_id, None)
        for start in plan.starts:
            self._left[start.seq_id] = len(start.token_ids) // 4 - start.num_computed
            self._drawn[start.seq_id] = start.seq_id * 7
        entries: tuple[Entry, ...] = (*plan.starts, *plan.steps)
        rows = [row for row in entries if self._ends(row)]
        tokens = tuple(self._draw(row.seq_id) for row in rows)
        time.sleep(max(0.0, begin + self._step_s - time.monotonic()))
        self.num_tokens += len(tokens)
        self._answered_at = time.monotonic()
        ids = tuple(row.seq_id for row in rows)
        return wire.StepResult(plan.step_id, ids, (1,) * len(ids), tokens)

    def _ends(self, row: Entry) -> bool:
        left = self._left[row.seq_id] - row.num_tokens
        self._left[row.seq_id] = left if left else 1  # the token it draws is the next to compute
        return not left

    def _draw(self, seq_id: int) -> int:
        place = self._drawn[seq_id] = self._drawn[seq_id] + 1
        return self._token_ids[place % len(self._token_ids)]


class NoGrammars:
    """Grammars are accepted, and none is kept to."""

    def warm_up(self) -> None:
        """Nothing is slow the first time."""

    def prepare(self, sampling: bytes) -> str:
        return ""


class PacedModel:
    """Has what the server and the offline face ask of a LoadedModel."""

    grammars = NoGrammars()
    device = host_memory()
    load_seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, folder: Path, step_s: float) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._vocab_size = read_config(folder).vocab_size
        self._runner = PacedRunner(tokenizer.encode(SAMPLE * 4).ids, step_s)

    def facts(self, kv_cache_bytes: int) -> wire.ModelFacts:
        return wire.ModelFacts(
            self._vocab_size, 1 << 15, "paced", "paced", PacedRunner.block_size, 1 << 16
        )

    def written_file(self) -> Path | None:
        return None

    def runner(self, num_blocks: int = 0) -> PacedRunner:
        return self._runner
