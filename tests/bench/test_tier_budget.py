"""The measurement of the tiers still runs against today's tiers, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench import tier_budget
from bench.tier_budget import measure
from bench.tiers import Stack, one_process, tiers
from tests.support.stack import eventually
from tests.support.tiny_model import write_tiny_model

STREAMS, TOKENS, STEP_MS = 2, 24, 1.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tier_budget, "SETTLE_S", 0.0)
    return write_tiny_model(tmp_path / "tiny")


def is_left(stack: Stack) -> bool:
    """Tell whether any process of any group lives; ended ones may wait to be reaped."""
    groups = {process.pid for process in stack.processes.values()}
    return any(group in groups and state != "Z" for state, group in states())


def states() -> Iterator[tuple[str, int]]:
    """Yield the state and the group of every process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            yield fields[0], int(fields[2])


@pytest.mark.timeout(90)
def test_both_ways_to_run_are_measured(folder: Path) -> None:
    with tiers(folder, STEP_MS, STREAMS) as stack:
        assert is_left(stack)
        spent_us, figures = measure(stack, STREAMS, TOKENS)
    eventually(lambda: not is_left(stack))
    assert set(spent_us) == {"front", "scheduler", "tokenizer", "gateway"}
    with one_process(folder, STEP_MS) as stack:
        spent_us, alone = measure(stack, STREAMS, TOKENS)
    eventually(lambda: not is_left(stack))
    assert set(spent_us) == {"one process"}
    assert set(figures) == set(alone) and figures["tokens_per_s"] > 0 < alone["tokens_per_s"]


def test_a_measurement_that_fails_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails when the front has its scheduler: a child that nobody here has started."""
    stacks: list[Stack] = []
    start = Stack.start

    def noted(stack: Stack, role: str, *command: str, **env: str) -> None:
        stacks.append(stack)
        start(stack, role, *command, **env)

    def fails(url: str) -> bool:
        front = stacks[0].processes["front"].pid
        if Path(f"/proc/{front}/task/{front}/children").read_text():
            raise ZeroDivisionError
        return False

    monkeypatch.setattr(Stack, "start", noted)
    monkeypatch.setattr("bench.tiers.is_ready", fails)
    with pytest.raises(ZeroDivisionError), tiers(folder, STEP_MS, STREAMS):
        pytest.fail("it does not serve yet")
    eventually(lambda: not is_left(stacks[0]))


def test_a_process_that_does_not_start_is_named() -> None:
    stack = Stack("http://127.0.0.1:1")
    stack.start("worker", "json.tool", "--no-such-option")
    with pytest.raises(RuntimeError, match="worker ended with exit status 2"):
        stack.wait_until(lambda: False)
    stack.kill()
