"""AMX: its kernels on tiles in software, to the bits of the other levels; and the tile set-up.

The levels that this machine has go through the same sweeps.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.operators import levels, library
from worker.kernels.compile import SOURCES, compile_library, find_compiler
from worker.kernels.library import default_cache_dir

EMULATED = ("-DMILLRACE_EMULATE_TILES", "-O0")


def sweep(operator: str, *words: str) -> None:
    """Compare levels of libraries, which are given as level and path by turns.

    On a small stack: threads have what `ulimit -s` says, and a worker would end without a word.
    """
    command = shlex.join([sys.executable, "-m", f"tests.support.{operator}_sweep", *words])
    small = ["bash", "-c", f"ulimit -s 1024 && exec {command}"]
    done = subprocess.run(small, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


@pytest.mark.parametrize("operator", ["linear", "attention"])
def test_the_kernels_on_emulated_tiles_give_the_bits_of_the_other_levels(operator: str) -> None:
    emulated = compile_library(default_cache_dir() / "tests", flags=EMULATED)
    sweep(operator, "PORTABLE", str(library().path), "AMX", str(emulated))


@pytest.mark.parametrize("operator", ["linear", "attention"])
def test_so_do_all_levels_of_this_machine(operator: str) -> None:
    path = str(library().path)
    sweep(operator, *(word for level in levels() for word in (level.name, path)))


@pytest.mark.slow
def test_every_operator_is_there_at_the_level_of_tiles() -> None:
    """Few machines have tiles, and there a level that an operator lacks ends the process."""
    library = compile_library(default_cache_dir() / "tests", flags=EMULATED)
    code = f"""
import sys
from pathlib import Path
import pytest
from tests.support import operators
from worker.kernels.library import Library
operators.library = lambda: Library(Path({str(library)!r}))
suite = "tests/worker/kernels/test_operators_compiled.py"
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", suite]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_trial_at_start_trusts_right_tiles() -> None:
    library = compile_library(default_cache_dir() / "tests", flags=EMULATED)
    code = f"""
from pathlib import Path
from worker.backends.trial import trusted_level
from worker.kernels.library import Library
print(trusted_level(Library(Path({str(library)!r}))).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("AMX\n", "", 0)


def run_cpp(folder: Path, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile and run a program that may include the kernels' headers."""
    source, program = folder / "program.cpp", folder / "program"
    source.write_text(code)
    command = [*find_compiler(), "-std=c++17", f"-I{SOURCES}", *flags]
    subprocess.run([*command, str(source), "-o", str(program)], check=True, capture_output=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        ("FullTiles tiles; tile_product_bf16<0, 1, 2>();", ""),
        ("LowTiles tiles(3); tile_product_bf16<0, 4, 5>();", ""),
        ("LowTiles tiles(3); tile_product_bf16<0, 1, 2>();", "the factors do not meet"),
        ("LowTiles tiles(3); tile_product_bf16<0, 5, 6>();", "rows of the sum and of the left"),
        ("tile_zero<0>();", "used before they are configured"),
        ("{ FullTiles tiles; } tile_zero<0>();", "used before they are configured"),
        ("config.rows[1] = 8; go();", "rows of the sum and of the left factor differ"),
        ("config.row_bytes[1] = 32; go();", "the factors do not meet"),
        ("config.row_bytes[2] = 48; go();", "widths of the sum and the right factor differ"),
        ("config.rows[2] = 0; go();", "its configuration is empty"),
        ("config.rows[9] = 1; go();", "a size is out of range"),
        ("config.reserved[3] = 1; go();", "a reserved byte is set"),
        ("config.palette = 0; go();", "palette or start row is wrong"),
    ],
)
def test_a_wrong_set_up_stops_the_emulator(tmp_path: Path, use: str, complaint: str) -> None:
    code = f"""
      #include "tiles.h"
      using namespace millrace;
      TileConfig config = FULL_TILES;
      void go() {{ tiles_configure(config); tile_product_bf16<0, 1, 2>(); }}
      int main() {{ {use} return 0; }}
    """
    done = run_cpp(tmp_path, code, "-DMILLRACE_EMULATE_TILES")
    assert complaint in done.stderr
    assert (done.returncode == 0) is (complaint == "")


SET_UP = """
  #include "tiles.h"
  using namespace millrace;
  #define COPY "movups %0, %%xmm0; movups %%xmm0, seen(%%rip);" \\
    "movups 16+%0, %%xmm0; movups %%xmm0, 16+seen(%%rip);" \\
    "movups 32+%0, %%xmm0; movups %%xmm0, 32+seen(%%rip);" \\
    "movups 48+%0, %%xmm0; movups %%xmm0, 48+seen(%%rip);"
  extern "C" { alignas(64) unsigned char seen[64]; }
  void narrow(const TileConfig& config) {  // as the intrinsic of gcc 12.2
    asm volatile(COPY : : "m"(*((const void**)&config)) : "xmm0");
  }
  __attribute__((noinline)) void set_up(int rows) {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; i++) config.rows[i] = rows, config.row_bytes[i] = 64;
    CONFIGURE(config);
  }
  int main(int count, char**) {
    set_up(15 + count);
    return memcmp(seen, &FULL_TILES, 64) ? 1 : 0;
  }
"""


@pytest.mark.skipif("__import__('platform').machine() != 'x86_64'", reason="needs x86-64")
@pytest.mark.parametrize("configure", ["tiles_configure", "narrow"])
def test_no_store_is_lost_before_the_configuration_is_read(tmp_path: Path, configure: str) -> None:
    """An instruction that copies stands in for ldtilecfg: it must see all 64 bytes."""
    copy = SET_UP.split("#define COPY ")[1].split("\n  extern")[0].replace("\\\n", "")
    define = copy.replace("\n", " ")
    code = f"#define MILLRACE_LDTILECFG {define}\n" + SET_UP.replace("CONFIGURE", configure)
    done = run_cpp(tmp_path, code, "-O3", "-Wno-multichar")
    if configure == "tiles_configure":
        assert done.returncode == 0
    elif "g++" in find_compiler()[0]:
        assert done.returncode == 1, "the planted fault is no longer a fault"
