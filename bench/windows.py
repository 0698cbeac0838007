"""Which of the measured times count. Standard library only: peers' interpreters import it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WINDOW = 8
"""Steps of which the fastest run in a row is taken."""


class StepTimes(NamedTuple):
    """Seconds per step."""

    best: float
    """The mean of the fastest window: on a shared machine the one that was disturbed least."""
    median: float


def fastest_window(times: Sequence[float]) -> StepTimes:
    """Return the fastest window and the median of the steps; raise ValueError without a step."""
    if not times:
        raise ValueError("no step was measured")
    size = min(WINDOW, len(times))
    sums = (sum(times[first : first + size]) for first in range(len(times) - size + 1))
    return StepTimes(min(sums) / size, median(times))
