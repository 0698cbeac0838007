"""The shape of the tree as assertions: imports, sizes, environment, where CuPy may live."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("api_gateway", "tokenizer_service", "engine_core", "worker")
EVERYTHING = {*SERVICES, "protos", "common", "millrace", "bench", "tools"}
ALLOWED = {
    "protos": set(),
    "common": set(),
    **{service: {"protos", "common"} for service in SERVICES},
    "millrace": EVERYTHING - {"bench", "tools"},
    "bench": EVERYTHING - {"tools"},
    "tools": EVERYTHING - {"bench"},
    "setup.py": {"worker"},  # compiles the kernels at install
}
FORBIDDEN = {  # folder -> modules that must not be imported there
    "engine_core/scheduling": {"asyncio", "grpc", "zmq", "time", "threading", "numpy", "socket"},
    "engine_core/scheduler_process.py": {"grpc"},
    "engine_core/loop.py": {"grpc", "asyncio"},
    "worker/models": {"cupy", "numpy"},
    "api_gateway": {"cupy", "numpy"},
    "engine_core": {"cupy", "numpy"},
    "tokenizer_service": {"cupy"},
}
CUPY_HOMES = re.compile(r"worker/backends/cuda_device\.py")
RUN_TIME = (*SERVICES, "protos", "common", "millrace")
NEVER_AT_RUN_TIME = {"torch", "transformers", "pickle", "cloudpickle", "marshal"}
BANNED_NAMES = re.compile(r"Manager|Handler|Helper|Utils|Mixin|Impl$|^Base|Base$")
BANNED_FILES = {"utils.py", "helpers.py", "misc.py", "util.py"}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS, MAX_COMMON_LINES = 400, 60, 8, 1080


@cache
def ours() -> tuple[tuple[str, ast.Module, str], ...]:
    """Return path, tree and text of every source but tests and what is generated."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", ":!tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    names = [n for n in listed if "_pb2" not in n and (ROOT / n).exists()]
    texts = [(name, (ROOT / name).read_text()) for name in names]
    return tuple((name, ast.parse(text), text) for name, text in texts)


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def roots(tree: ast.AST) -> set[str]:
    return {name.split(".")[0] for name in imported(tree)}


def test_packages_import_only_what_they_may() -> None:
    for name, tree, _ in ours():
        package = name.split("/")[0]
        crossed = (roots(tree) & EVERYTHING) - ALLOWED[package] - {package}
        assert not crossed, f"{name} imports {crossed}"


def test_the_scheduler_is_pure() -> None:
    for name, tree, _ in ours():
        if name.startswith("engine_core/scheduling/"):
            mine = {m for m in imported(tree) if m.split(".")[0] in EVERYTHING}
            allowed = ("engine_core.scheduling.", "protos.worker.", "protos.limits.")
            outside = {m for m in mine if not m.startswith(allowed)}
            assert not outside, f"{name} imports {outside}"


@pytest.mark.parametrize("place", FORBIDDEN)
def test_forbidden_modules(place: str) -> None:
    for name, tree, _ in ours():
        if name == place or name.startswith(place + "/"):
            assert not roots(tree) & FORBIDDEN[place], name


def test_cupy_and_the_environment_have_their_homes() -> None:
    for name, tree, text in ours():
        assert CUPY_HOMES.match(name) or "cupy" not in roots(tree), name
        if name.split("/")[0] in RUN_TIME and name != "common/settings.py":
            assert not re.search(r"\bos\.(environ|getenv)\b", text), f"{name} reads the environment"


def test_no_torch_and_no_pickle_at_run_time() -> None:
    for name, tree, _ in ours():
        if name.split("/")[0] in RUN_TIME:
            assert not roots(tree) & NEVER_AT_RUN_TIME, name


def test_no_error_is_wrapped_on_the_oldest_pythons() -> None:
    """What is raised inside an `except*` comes out in a group there, before Python 3.11.4."""
    found = [n for n, tree, _ in ours() if any(isinstance(x, ast.TryStar) for x in ast.walk(tree))]
    assert found == []


def test_sizes() -> None:
    for name, tree, text in ours():
        assert text.count("\n") <= MAX_FILE_LINES, name
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{name}::{node.name} has {lines} lines"
            if node.name == "__init__" and not name.startswith("tools/"):
                count = len(node.args.args) + len(node.args.kwonlyargs) - 1
                assert count <= MAX_PARAMETERS, f"{name}::{node.lineno} takes {count} parameters"
    common = sum(text.count("\n") for name, _, text in ours() if name.startswith("common/"))
    assert common <= MAX_COMMON_LINES, f"common/ has {common} lines"


def test_names() -> None:
    for name, tree, _ in ours():
        assert Path(name).name not in BANNED_FILES, name
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assert not BANNED_NAMES.search(node.name), f"{name}::{node.name}"
                assert len(node.bases) <= 2, f"{name}::{node.name}: composition, not inheritance"


def test_every_module_says_what_it_knows() -> None:
    for name, tree, text in ours():
        assert not text or ast.get_docstring(tree), f"{name} has no docstring"


def test_every_module_imports_with_a_blank_environment() -> None:
    modules = [
        n.removesuffix(".py").replace("/", ".")
        for n, _, text in ours()
        if n.split("/")[0] in RUN_TIME and text and not n.endswith("__main__.py")
    ]
    code = "import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_architecture_names_exist() -> None:
    """ARCHITECTURE.md tells the life of a request by `path::name`; none may be gone."""
    anchors = re.findall(
        r"`([\w/]+\.(?:py|proto))::([\w.]+)`", (ROOT / "ARCHITECTURE.md").read_text()
    )
    assert len(anchors) >= 10
    for path, name in anchors:
        assert (ROOT / path).exists(), path
        text = (ROOT / path).read_text()
        for part in name.split("."):
            found = re.search(rf"\b(class|def|service|rpc|message) {part}\b", text)
            assert found, f"{path}::{name} is gone"


def test_no_pointer_to_a_place_outside() -> None:
    """Documents speak of this project alone."""
    for path in [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "docker-compose.yml"]:
        assert not re.search(r"/work/|/tmp/|\.\./shared", path.read_text()), path.name
