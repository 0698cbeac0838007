"""Sequences that wait until the workers have compiled their grammar.

What a grammar means, and whether it is one, only the workers know. Compiling takes up to seconds
and runs beside the steps; the choices of a request share it.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine_core.scheduling.errands import Errands
from engine_core.scheduling.request import Problem
from engine_core.scheduling.roster import Roster
from engine_core.scheduling.sequence import Sequence, Status
from protos.worker import CompileGrammar, ErrandDone


class Compiling:
    """Puts sequences on hold and lets them go on, or ends them, when the answer comes."""

    def __init__(self, roster: Roster, errands: Errands) -> None:
        self._roster = roster
        self._errands = errands

    def begin(self, choices: Iterable[Sequence]) -> None:
        """Have the grammar of one request compiled; those of `choices` that wait are held back."""
        held = [row for row in choices if row.status is Status.WAITING]
        if not held:
            return
        for row in held:
            self._roster.hold(row, Status.WAITING_FOR_GRAMMAR)
        sampling = held[0].request.sampling

        def then(answer: ErrandDone, now: float) -> None:
            self._end(held, answer, now)

        self._errands.ask(lambda errand_id: CompileGrammar(errand_id, sampling), then)

    def _end(self, held: list[Sequence], answer: ErrandDone, now: float) -> None:
        for row in held:
            if row.status is not Status.WAITING_FOR_GRAMMAR:
                continue  # it has ended meanwhile
            if answer.error:
                problem = Problem("InvalidRequest", answer.error, code="invalid_grammar")
                self._roster.end(row, problem.reason, now, problem=problem)
            else:
                self._roster.release(row)
