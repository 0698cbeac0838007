"""What was asked: immutable, checked, without any state of its execution.

Knows the engine's share of a request. Does not know sequences, blocks, or what sampling means.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

from protos.worker import Limits


class FinishReason(IntEnum):
    """The numbers of `common.proto` FinishReason."""

    UNFINISHED = 0
    STOPPED = 1
    LENGTH = 2
    ABORTED = 3
    DEADLINE = 4
    IGNORED = 5
    ERROR = 6


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused or broken off; `kind` is a class of `common/errors.py`."""

    kind: str
    message: str
    param: str = ""
    code: str = ""
    retry_after_s: float = 0.0
    reason: FinishReason = FinishReason.IGNORED


class Refused(Exception):
    """A request may not enter; it ends with `problem` before it has run."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One `Add`, decoded and checked: `limits.n` sequences will come of it."""

    session: int
    slot: int
    request_id: str
    prompt: array[int]
    resumed: tuple[array[int], ...]
    """Output already delivered, per choice; empty when the request is new."""
    limits: Limits
    stop_ids: frozenset[int]
    sampling: bytes
    attempt: int
    arrival: float
    deadline: float | None
    """On the clock of `arrival`."""
