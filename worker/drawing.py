"""Drawing: what one step's logits become, row by row: a token, several with guesses, or a fault.
Rows that are pooled draw nothing: the end of their prompt brings an embedding.

A row with k guesses has computed k + 1 positions. The target's token is drawn at each in turn, from
a history that ends with the token drawn before, with the noise of its own output index: what would
have been drawn without guesses. The first that is not the next guess is the last that counts.

All rows are drawn in rounds, one position each, so that a sampler sees many rows at a time. Logits
may come in several passes; the positions of a row come in order.

A device may draw while nobody waits. Then its rows have the promise of a token, and `land` enters
what was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from protos import worker as wire
from worker.errors import RowError
from worker.gather import Work
from worker.kernels.checks import Floats
from worker.rows import Row
from worker.sampler import Drawn, Launched


class Draws(Protocol):
    """Draws a token for each of some rows: on the host, or on the device that has the logits."""

    def draws_later(self, rows: Sequence[Row]) -> bool:
        """Return whether draws of these rows, as they are known now, need not be waited for."""
        ...

    def launch(self, logits: Any, rows: Sequence[Row]) -> Launched: ...

    def logprobs(
        self, logits: Any, token_id: int, count: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return ids and log-probabilities, of the token and of the `count` likeliest."""
        ...


def fault_of(seq_id: int, error: RowError) -> wire.SequenceFault:
    """Return what the scheduler is told of a row that cannot go on."""
    return wire.SequenceFault(seq_id, str(error), error.code)


@dataclass(slots=True)
class Outcome:
    """What a row has got in this step."""

    row: Row
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.Logprobs] = field(default_factory=list)
    bulks: list[wire.Bulk] = field(default_factory=list)
    error: RowError | None = None
    is_open: bool = True
    """False when the logits that are left follow a token which did not come true."""

    def take(self, drawn: Drawn) -> None:
        """Enter a draw. One that fails behind good ones is left to the next step, to fail alone.

        A row that has failed since the draw began is left alone: that is reported already.
        """
        if self.row.has_failed:
            return
        if drawn.error is not None:
            self.is_open = False
            if not self.token_ids:
                self.error = drawn.error
            return
        self.is_open = self.row.append(drawn.token_id)
        self.token_ids.append(drawn.token_id)
        if drawn.logprobs is not None:
            self.logprobs.append(drawn.logprobs)
        if drawn.trace:
            self.bulks.append(wire.Bulk(self.row.seq_id, trace=drawn.trace))


class Drawing:
    """The draws of one step."""

    def __init__(self, sampler: Draws, is_later: bool) -> None:
        """`is_later`: draws are not waited for until `land`."""
        self._sampler = sampler
        self._is_later = is_later
        self._launched: list[tuple[list[Outcome], Launched]] = []
        self.outcomes: dict[int, Outcome] = {}
        """By seq_id, in the order of the plan."""
        self._bulks: list[wire.Bulk] = []
        self._not_pooled: list[tuple[Row, RowError]] = []

    def expect(self, work: Sequence[Work]) -> None:
        """Have the masks of grammars computed while the logits are."""
        for item in work:
            if (grammar := item.row.draw.grammar) is not None and item.num_logits:
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
            launched = self._sampler.launch(chosen, rows)
            if self._is_later:
                return self._promise([outcome for outcome, _ in turn], launched)
            for (outcome, _), drawn in zip(turn, launched.drawn(), strict=True):
                outcome.take(drawn)
            turn = [
                (outcome, range(places.start + 1, places.stop))
                for outcome, places in turn
                if outcome.is_open and len(places) > 1
            ]

    def _promise(self, outcomes: list[Outcome], launched: Launched) -> None:
        self._launched.append((outcomes, launched))
        for outcome, place in zip(outcomes, launched.places, strict=True):
            outcome.row.promise(place)

    @property
    def wait(self) -> Callable[[], None] | None:
        """What returns when all that was launched is done; None = nothing is left to wait for."""
        return self._launched[-1][1].wait if self._launched else None

    def land(self) -> tuple[float, float]:
        """Wait for what was launched and enter it; return what passes and draws took, in s."""
        forward_s = sample_s = 0.0
        for outcomes, launched in self._launched:
            for outcome, drawn in zip(outcomes, launched.drawn(), strict=True):
                outcome.take(drawn)
            if launched.seconds is not None:
                some, more = launched.seconds()
                forward_s, sample_s = forward_s + some, sample_s + more
        return forward_s, sample_s

    def _tell_prompts(self, work: Sequence[Work], logits: Any) -> None:
        """Report how likely the prompts were, of rows that ask: a part for what is computed now."""
        if all(item.row.prompt_logprobs is None for item in work):
            return
        stop = 0
        for item in work:
            start, stop = stop, stop + item.num_logits
            row, count = item.row, item.row.prompt_logprobs
            if count is None or not row.tells_prompt:
                continue
            first = max(row.num_computed, row.logits_from) + 1  # logits tell of the token after
            told = [
                wire.Logprobs(
                    row.seq_id, i, *self._sampler.logprobs(one, int(row.tokens[i]), count)
                )
                for i, one in enumerate(logits[start:stop], first)
                if i < row.num_prompt_tokens
            ]
            if told:
                self._bulks.append(wire.Bulk(row.seq_id, prompt_logprobs=tuple(told)))

    def pool(self, work: Sequence[Work], states: Floats) -> None:
        """Enter float32 states [S, H]: the last `num_states` positions of each of `work`."""
        stop = 0
        for item in work:
            if (pool := item.row.pool) is None:
                continue
            start, stop = stop, stop + item.num_states
            try:
                bulk = pool.take(item.num_tokens, states[start:stop])
            except RowError as error:
                self._not_pooled.append((item.row, error))
                continue
            if bulk is not None:
                self._bulks.append(bulk)

    def _turns(self, work: Sequence[Work]) -> list[tuple[Outcome, range]]:
        """Return the rows that draw and the places of their logits, the first one's first."""
        turns, stop = [], 0
        for item in work:
            count, row = item.num_logits, item.row
            if not count:
                continue
            start, stop = stop, stop + count
            first = max(row.num_computed, row.logits_from)
            places = range(start + row.num_tokens - 1 - first, stop)
            if not places:
                continue  # it ends within the known tokens
            outcome = self.outcomes.get(row.seq_id)
            if outcome is None:
                outcome = self.outcomes[row.seq_id] = Outcome(row)
            if outcome.is_open:
                turns.append((outcome, places))
        return turns

    def failed(self) -> list[tuple[Row, RowError]]:
        """Return the rows that have failed, and why."""
        drawn = [(one.row, one.error) for one in self.outcomes.values() if one.error is not None]
        return [*drawn, *self._not_pooled]

    def result(
        self,
        step_id: int,
        faults: Sequence[wire.SequenceFault],
        forward_s: float,
        sample_s: float,
    ) -> wire.StepResult:
        """Return the message; `faults` are those of rows that never drew."""
        good = [one for one in self.outcomes.values() if one.token_ids]
        return wire.StepResult(
            step_id=step_id,
            seq_ids=tuple([one.row.seq_id for one in good]),
            counts=tuple([len(one.token_ids) for one in good]),
            token_ids=tuple([token_id for one in good for token_id in one.token_ids]),
            logprobs=tuple([row for one in good for row in one.logprobs]),
            faults=(*faults, *[fault_of(row.seq_id, error) for row, error in self.failed()]),
            bulks=(*self._bulks, *[bulk for one in good for bulk in one.bulks]),
            forward_s=forward_s,
            sample_s=sample_s,
        )
