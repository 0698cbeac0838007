"""The file of tenants' limits: what it says, and which line is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.settings import SettingsError
from engine_core.scheduling.bounds import Bounds, TenantLimits
from engine_core.tenant_file import parse, read_tenants
from protos.limits import fair_part


def test_lines_comments_and_all_others(tmp_path: Path) -> None:
    file = tmp_path / "tenants"
    file.write_text(
        "\ufeffteam-b seqs=2\n# who\nteam-a seqs=8 blocks=400  # two\n\n"
        "* context=4096 priority=-5\nfree\n"
    )
    tenants = read_tenants(str(file))
    bounds = Bounds(8, 64, 8, tenants)
    assert bounds.of("team-a") == TenantLimits(seqs=8, blocks=400)
    assert bounds.of("team-b").seqs == 2
    assert bounds.of("somebody") == TenantLimits(context=4096, priority=-5)
    assert bounds.of("free") == TenantLimits()
    assert read_tenants("") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a seqs=2\na blocks=3", "line 2: a has a line already"),
        ("a seqs=2 seqs=3", "line 1: a key stands there twice"),
        ("\na seats=2", "line 2: expected key=number with a key of context, .*, got 'seats=2'"),
        ("a seqs", "line 1: expected key=number"),
        ("a seqs=0", "line 1: seqs must be a number of at least 1, got '0'"),
        ("a priority=high", "line 1: priority must be a number of -1000 to 1000, got 'high'"),
        ("a priority=-1001", "line 1: priority must be a number of -1000 to 1000"),
        ("a seqs=many", "line 1: seqs must be a number of at least 1, got 'many'"),
    ],
)
def test_a_wrong_line_is_named(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"tenant_limits: {why}"):
        parse(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tenant_limits: .*nowhere"):
        read_tenants(str(tmp_path / "nowhere"))


def test_fair_parts() -> None:
    assert fair_part(100, "a", ["a"]) == 100
    assert fair_part(100, "b", ["a", "b"]) == fair_part(100, "b", ["a"]) == 50
