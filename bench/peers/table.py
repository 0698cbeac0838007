"""The one table: figures, ratios and, where a peer is ahead, that it is and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.peers.asking import Answer, Task
from bench.peers.candidates import OURS, Candidate
from bench.peers.reasons import REASONS
from bench.peers.running import Outcome
from bench.windows import WINDOW

AIM_ONE, AIM_MANY = 1.10, 1.15
"""What a ratio should reach at batch 1, and at larger batches and in prefill."""
PREFILL = 0
"""Stands for the prefill where batches are listed."""


def document(title: str, facts: Sequence[str], outcomes: Sequence[Outcome], task: Task) -> str:
    """Return the whole page in Markdown."""
    columns = [*task.batches, *([PREFILL] if task.prompt else [])]
    parts = [
        f"# {title}", "\n".join(facts), "## Tokens per second", _figures(outcomes, columns, task),
        "## Millrace over each peer", _explained(task), _ratios(outcomes, columns),
        *_reasons(outcomes, columns), "## What ran", _systems(outcomes),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def rate(answer: Answer, column: int) -> float:
    """Return tokens per second, 0 where nothing was measured."""
    if column == PREFILL:
        return answer.prefill_tokens_per_s
    return answer.decode_tokens_per_s.get(column, 0.0)


def aim(column: int) -> float:
    """Return the least ratio that counts as ahead."""
    return AIM_ONE if column == 1 else AIM_MANY


def pairs(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Yield ours and theirs for every peer whose counterpart was measured too."""
    ours = {o.candidate.weights: o for o in outcomes if o.candidate.name == OURS}
    for outcome in outcomes:
        if outcome.candidate.name != OURS and outcome.candidate.against in ours:
            yield ours[outcome.candidate.against], outcome


def behind(outcomes: Sequence[Outcome], columns: Sequence[int]) -> list[tuple[Candidate, int]]:
    """Return where the aim is missed."""
    return [
        (theirs.candidate, column)
        for ours, theirs in pairs(outcomes)
        for column in columns
        if 0 < _ratio(ours, theirs, column) < aim(column)
    ]


def _ratio(ours: Outcome, theirs: Outcome, column: int) -> float:
    other = rate(theirs.answer, column)
    return rate(ours.answer, column) / other if other else 0.0


def _heads(columns: Sequence[int], prompt: str = "prefill") -> list[str]:
    return [prompt if column == PREFILL else f"batch {column}" for column in columns]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(outcomes: Sequence[Outcome], columns: Sequence[int], task: Task) -> str:
    head = ["", *_heads(columns, f"prefill of {task.prompt}"), "load s", "machine load", "problem"]
    rows = []
    for outcome in outcomes:
        answer = outcome.answer
        figures = [_figure(rate(answer, column)) for column in columns]
        row = [outcome.candidate.title, *figures, f"{answer.load_s:.1f}", f"{outcome.load:.1f}"]
        rows.append([*row, outcome.problem.replace("|", "\\|")])
    return _rows(head, rows)


def _figure(value: float) -> str:
    if not value:
        return "–"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _explained(task: Task) -> str:
    return (
        f"Decode: {task.context} tokens of context, {task.steps} greedy steps, the fastest"
        f" {WINDOW} in a row. Prefill: the fastest of {task.runs}. Aim: {AIM_ONE:.2f} at batch 1,"
        f" {AIM_MANY:.2f} elsewhere; ✗ marks what is below it."
    )


def _ratios(outcomes: Sequence[Outcome], columns: Sequence[int]) -> str:
    rows = []
    for ours, theirs in pairs(outcomes):
        ratios = [_marked(_ratio(ours, theirs, column), column) for column in columns]
        rows.append([f"{ours.candidate.weights} / {theirs.candidate.title}", *ratios])
    return _rows(["", *_heads(columns)], rows)


def _marked(ratio: float, column: int) -> str:
    if not ratio:
        return "–"
    return f"{ratio:.2f}" + (" ✗" if ratio < aim(column) else "")


def _reasons(outcomes: Sequence[Outcome], columns: Sequence[int]) -> Iterator[str]:
    """Yield a paragraph per peer that is not beaten somewhere."""
    missed: dict[Candidate, list[int]] = {}
    for candidate, column in behind(outcomes, columns):
        missed.setdefault(candidate, []).append(column)
    for candidate, where in missed.items():
        reason = REASONS.get((candidate.name, candidate.weights), "The reason is not known.")
        yield f"{candidate.title} at {', '.join(_heads(where))}: {reason}"


def _systems(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        told = [f"{name} {value}" for name, value in outcome.answer.versions.items()]
        told += [f"{name} {value}" for name, value in outcome.answer.facts.items()]
        lines.append(f"- {outcome.candidate.title}: {', '.join(told) or outcome.problem}")
    return "\n".join(lines)
