"""Golden stories: `make golden` rewrites what the scheduler prints; read the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_core.scheduling.scenario import Scenario

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


def replay(text: str) -> str:
    """Return `text` with every block after ---- replaced by what the scenario prints now."""
    scenario, out = Scenario(), []
    for case in text.strip().split("\n\n"):
        head = case.split("\n----")[0]
        directives = [line for line in head.splitlines() if line and not line.startswith("#")]
        printed = "\n".join(scenario.run(line) for line in directives)
        out.append(f"{head}\n----\n{printed}")
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, pytestconfig: pytest.Config) -> None:
    told = replay(path.read_text())
    if pytestconfig.getoption("--golden-rewrite"):
        path.write_text(told)
    assert told == path.read_text()


def test_there_are_stories() -> None:
    assert len(STORIES) >= 13
