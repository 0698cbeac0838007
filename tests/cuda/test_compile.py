"""Every instance compiles for every target, within its budget, to the instructions meant."""

from __future__ import annotations

import re
import site
import subprocess
from pathlib import Path

import pytest

from tests.cuda import budget
from worker.kernels import nvrtc
from worker.kernels.instances import instances, stems
from worker.kernels.nvrtc import TARGETS, CompileError, compile_stem

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]
WANTED = {
    "ceilings": {"HMMA"},
    "linear": {"HMMA", "LDGSTS"},
    "linear_int8": {"HMMA", "LDGSTS"},
    "paged_attention": {"HMMA", "LDGSTS", "LDSM"},
}
"""Tensor cores, copies behind the back, matrix loads."""
FORBIDDEN = {"LDL", "STL"}
"""Local memory: registers that did not do."""
PREFETCHING = tuple(f"linear{w}_{form}" for w in ("", "_int8") for form in ("decode", "prefill"))
"""Weights are nobody's result: they are on their way while the kernel before still runs."""
SLOW = {"linear_int8": {"I2F", "I2FP", "I2I"}}
"""Conversions at a fraction of the speed of masks and sums."""


def listing(cubin: bytes, path: Path) -> str:
    """Return a cubin's instructions, one a line, kernel after kernel."""
    path.write_bytes(cubin)
    tool = next(
        p for folder in site.getsitepackages() for p in Path(folder).glob("nvidia/**/bin/nvdisasm")
    )
    done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True)
    return done.stdout


def instructions(text: str) -> set[str]:
    """Return the opcodes in a listing."""
    return set(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", text, re.M))


def under_way_before_the_wait(text: str, name: str) -> int:
    """Return how many 16-byte loads a kernel begins before it waits for its predecessor."""
    body = text[text.index(f".text.{name}:") :]
    return len(re.findall(r"LDG\.E\.NA\.128|LDGSTS\.E\.BYPASS\.128", body[: body.index("ACQBULK")]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stem", stems())
def test_within_the_budget(stem: str, target: str, tmp_path: Path) -> None:
    compiled = compile_stem(stem, target)
    allowed = budget.read()[target]
    used = budget.usage(compiled)
    assert used.keys() == {i.symbol for i in instances() if i.stem == stem}
    for symbol, usage in used.items():
        assert usage.spill_bytes == usage.stack_bytes == 0, symbol
        registers, shared_bytes = allowed[symbol]
        assert usage.registers <= registers, symbol
        assert usage.shared_bytes <= shared_bytes, symbol
    text = listing(compiled.code, tmp_path / "kernels.cubin")
    found = instructions(text)
    assert "EXIT" in found
    for symbol, name in compiled.names.items() if target == "sm_90a" else ():
        if symbol.startswith(PREFETCHING):
            assert under_way_before_the_wait(text, name) >= 3, symbol
    assert WANTED.get(stem, set()) <= found
    assert ("HGMMA" in found) == ((stem, target) == ("ceilings", "sm_90a"))
    assert not (FORBIDDEN | SLOW.get(stem, set())) & found


def test_a_spill_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check bites: with too few registers the same source spills, and the report says so."""
    for path in nvrtc.SOURCES.glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    source = tmp_path / "paged_attention.cu"
    tight = source.read_text().replace("__launch_bounds__(32, 1)", "__launch_bounds__(32, 32)")
    source.write_text(tight)
    monkeypatch.setattr(nvrtc, "SOURCES", tmp_path)
    compiled = compile_stem("paged_attention", "sm_90a")
    assert any(usage.spill_bytes for usage in budget.usage(compiled).values())
    assert FORBIDDEN & instructions(listing(compiled.code, tmp_path / "kernels.cubin"))


def test_a_mistake_is_reported() -> None:
    with pytest.raises(CompileError, match="silu_mul.cu for sm_80"):
        compile_stem("silu_mul", "sm_80", ["-DALL_LANES=("])


def test_an_unknown_target_is_reported() -> None:
    with pytest.raises(CompileError):
        compile_stem("silu_mul", "sm_12345")
