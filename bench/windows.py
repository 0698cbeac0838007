"""Which of the measured times count. Standard library only: peers' interpreters import it."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 8
"""Steps of which the fastest run in a row is taken."""


def fastest_window(times: Sequence[float]) -> float:
    """Return the mean of the fastest window: on a shared machine the one that was disturbed least.

    Raises ValueError without a step.
    """
    if not times:
        raise ValueError("no step was measured")
    size = min(WINDOW, len(times))
    return min(sum(times[first : first + size]) for first in range(len(times) - size + 1)) / size
