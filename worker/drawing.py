"""Drawing: what one step's logits become, row by row: a token, several with guesses, or a fault.
Rows that are pooled draw nothing: the end of their prompt brings an embedding.

A row with k guesses has computed k + 1 positions. The target's token is drawn at each in turn, from
a history that ends with the token drawn before, with the noise of its own output index: what would
have been drawn without guesses. The first that is not the next guess is the last that counts.

All rows are drawn in rounds, one position each, so that a sampler sees many rows at a time. Logits
may come in several passes; the positions of a row come in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from protos import worker as wire
from worker.errors import RowError
from worker.gather import Work
from worker.kernels.checks import Floats
from worker.logprobs import with_alternatives
from worker.rows import Row
from worker.sampler import Drawn


class Draws(Protocol):
    """Draws a token for each of some rows: on the host, or on the device that has the logits."""

    def sample(self, logits: Any, rows: Sequence[Row]) -> list[Drawn]: ...


@dataclass(slots=True)
class Outcome:
    """What a row has got in this step."""

    row: Row
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.Logprobs] = field(default_factory=list)
    bulks: list[wire.Bulk] = field(default_factory=list)
    fault: str = ""
    is_open: bool = True
    """False when the logits that are left follow a token which did not come true."""

    def take(self, drawn: Drawn) -> None:
        """Enter a draw. One that fails behind good ones is left to the next step, to fail alone."""
        if drawn.fault:
            self.is_open = False
            self.fault = "" if self.token_ids else drawn.fault
            return
        self.is_open = self.row.append(drawn.token_id)
        self.token_ids.append(drawn.token_id)
        if drawn.logprobs is not None:
            self.logprobs.append(drawn.logprobs)
        if drawn.trace:
            self.bulks.append(wire.Bulk(self.row.seq_id, trace=drawn.trace))


class Drawing:
    """The draws of one step."""

    def __init__(self, sampler: Draws) -> None:
        self._sampler = sampler
        self.outcomes: dict[int, Outcome] = {}
        """By seq_id, in the order of the plan."""
        self._bulks: list[wire.Bulk] = []
        self._faults: list[wire.SequenceFault] = []

    def expect(self, work: Sequence[Work]) -> None:
        """Have the masks of grammars computed while the logits are."""
        for item in work:
            if item.num_logits and (grammar := item.row.draw.grammar) is not None:
                grammar.prefetch(item.row.history.output_ids)

    def take(self, work: Sequence[Work], logits: Any) -> None:
        """Draw from float32 logits [R, V]: the last `num_logits` positions of each of `work`.

        They are an array of the host, or what stands for one on a device.

        The rows of `work` are not yet advanced.
        """
        self._tell_prompts(work, logits)
        turn = self._turns(work)
        while turn:
            rows = [outcome.row for outcome, _ in turn]
            places = [places.start for _, places in turn]
            chosen = logits if len(places) == len(logits) else logits[places]
            for (outcome, _), drawn in zip(turn, self._sampler.sample(chosen, rows), strict=True):
                outcome.take(drawn)
            turn = [
                (outcome, range(places.start + 1, places.stop))
                for outcome, places in turn
                if outcome.is_open and len(places) > 1
            ]

    def _tell_prompts(self, work: Sequence[Work], logits: Any) -> None:
        """Report how likely the prompts were, of rows that ask: a part for what is computed now."""
        stop = 0
        for item in work:
            start, stop = stop, stop + item.num_logits
            row, count = item.row, item.row.prompt_logprobs
            if count is None:
                continue
            first = max(row.num_computed, row.logits_from) + 1  # logits tell of the token after
            told = [
                wire.Logprobs(row.seq_id, i, *with_alternatives(one, int(row.tokens[i]), count))
                for i, one in enumerate(logits[start:stop], first)
                if i < row.num_prompt_tokens
            ]
            if told:
                self._bulks.append(wire.Bulk(row.seq_id, prompt_logprobs=tuple(told)))

    def pool(self, work: Sequence[Work], states: Floats) -> None:
        """Enter float32 states [S, H]: the last `num_states` positions of each of `work`."""
        stop = 0
        for item in work:
            start, stop = stop, stop + item.num_states
            if item.row.pool is None:
                continue
            try:
                bulk = item.row.pool.take(item.num_tokens, states[start:stop])
            except RowError as error:
                self._faults.append(wire.SequenceFault(item.row.seq_id, str(error)))
                continue
            if bulk is not None:
                self._bulks.append(bulk)

    def _turns(self, work: Sequence[Work]) -> list[tuple[Outcome, range]]:
        """Return the rows that draw and the places of their logits, the first one's first."""
        turns, stop = [], 0
        for item in work:
            count, row = item.num_logits, item.row
            start, stop = stop, stop + count
            if not count:
                continue
            first = max(row.num_computed, row.logits_from)
            places = range(start + row.num_tokens - 1 - first, stop)
            if not places:
                continue  # it ends within the known tokens
            outcome = self.outcomes.setdefault(row.seq_id, Outcome(row))
            if outcome.is_open:
                turns.append((outcome, places))
        return turns

    def result(self, step_id: int, faults: Sequence[wire.SequenceFault]) -> wire.StepResult:
        """Return the message; `faults` are those of rows that never drew."""
        outcomes = self.outcomes.values()
        good = [one for one in outcomes if one.token_ids]
        failed = [wire.SequenceFault(one.row.seq_id, one.fault) for one in outcomes if one.fault]
        return wire.StepResult(
            step_id=step_id,
            seq_ids=tuple([one.row.seq_id for one in good]),
            counts=tuple([len(one.token_ids) for one in good]),
            token_ids=tuple([token_id for one in good for token_id in one.token_ids]),
            logprobs=tuple([row for one in good for row in one.logprobs]),
            faults=(*faults, *failed, *self._faults),
            bulks=(*self._bulks, *[bulk for one in good for bulk in one.bulks]),
        )
