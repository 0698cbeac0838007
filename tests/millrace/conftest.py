"""Fixtures of the runner's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import FAKE_FILE, MakeStack, Stack


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[MakeStack]:
    stacks: list[Stack] = []

    def make(**variables: str) -> Stack:
        stacks.append(Stack(tmp_path, FAKE_FILE, **variables))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.close()
