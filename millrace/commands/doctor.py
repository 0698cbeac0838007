"""`millrace doctor`: what this machine has and lacks, one line each."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from common.model_folder import ModelFolderError
from common.settings import inherited
from millrace.arguments import port as port_number
from millrace.errors import CommandError
from millrace.processes import NO_PROC, identify, is_listening, listener
from millrace.project import DEMO_MODEL, model_folder, project
from millrace.project import add_arguments as add_project_arguments
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.template_process import TemplateProcess
from tokenizer_service.tokenizer import load_tokenizer
from worker.backends.trial import trusted_level
from worker.build import describe_folder
from worker.kernels.compile import CompileError, find_compiler
from worker.kernels.crew import available_cores
from worker.kernels.library import Level as Instructions
from worker.kernels.library import load_library
from worker.memory import free_bytes

Level = Literal["ok", "warn", "fail"]
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX",
}
NEEDED = ("msgspec", "grpcio", "protobuf", "pyzmq", "numpy", "tokenizers", "jinja2", "uvicorn",
          "uvloop", "httptools", "orjson", "llguidance", "prometheus-client", "pyyaml")  # fmt: skip
MIN_MEMORY_GIB = 1.0


class Finding(NamedTuple):
    level: Level
    subject: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`."""
    parser.add_argument("--model", default=DEMO_MODEL, metavar="DIR")
    parser.add_argument("--port", type=port_number, default=8000)
    add_project_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print all findings; return 1 when one of them is a failure."""
    findings = [*machine(), *software(), *gpu(), model(args.model), port(args)]
    findings.append(writable(project(args).state.folder))
    for finding in findings:
        print(f"{finding.level:<5} {finding.subject:<10} {finding.text}")
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def machine() -> Iterator[Finding]:
    """Look at the system, cores, memory and instruction sets."""
    linux = sys.platform == "linux"
    yield Finding("ok" if linux else "fail", "system", sys.platform)
    yield Finding("ok", "cores", f"{available_cores()} usable of {os.cpu_count()}")
    if not linux:
        return
    if identify(os.getpid()) is None:
        yield Finding("fail", "proc", NO_PROC)
        return
    memory = (free_bytes() or 0) / 2**30
    level: Level = "ok" if memory >= MIN_MEMORY_GIB else "warn"
    yield Finding(level, "memory", f"{memory:.1f} GiB available")
    flags = _processor_flags()
    have = [name for flag, name in INSTRUCTIONS.items() if flag in flags]
    yield Finding("ok" if have else "warn", "cpu", ", ".join(have) or "no AVX2: slow")


def _processor_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split())
    return set()


def software() -> Iterator[Finding]:
    """Look at Python, the packages of all tiers, and a compiler."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok" if sys.version_info >= (3, 11) else "fail", "python", version)
    found = {name: _version(name) for name in NEEDED}
    missing = [name for name, have in found.items() if have is None]
    if missing:
        yield Finding(
            "fail", "packages", f"missing: {', '.join(missing)}; run: pip install 'millrace[all]'"
        )
    else:
        yield Finding("ok", "packages", ", ".join(f"{n} {v}" for n, v in found.items()))
    yield compiler()
    yield kernels()
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    yield Finding("ok", "millrace", f"{_version('millrace')}, Python headers: {headers}")


def compiler() -> Finding:
    """Look for what would compile the CPU kernels, should they have to be."""
    try:
        command = find_compiler(inherited({}).get("CXX", ""))
    except CompileError as error:
        return Finding("warn", "compiler", str(error))
    return Finding("ok", "compiler", " ".join(command))


def kernels() -> Finding:
    """Say which instructions the CPU kernels would use, and what decides it."""
    library = load_library()
    if library is None:
        return Finding("warn", "kernels", "reference (NumPy, slow): kernels could not be compiled")
    level, where = trusted_level(library), library.path
    if level < library.highest_level:
        reason = f"{library.highest_level.name} is here and gives wrong bits"
        return Finding("warn", "kernels", f"{level.name.lower()}: {reason}; {where}")
    if level is Instructions.AMX:
        reason = "the highest there is"
    else:
        reason = f"this machine, or its system, lacks {Instructions(level + 1).name}"
    return Finding("ok", "kernels", f"{level.name.lower()}: {reason}; {where}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu() -> Iterator[Finding]:
    """Look for an NVIDIA GPU and for CuPy; neither is needed on the CPU."""
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    cupy = importlib.util.find_spec("cupy") is not None
    if not devices:
        yield Finding("ok", "gpu", f"none; CuPy {'is' if cupy else 'is not'} installed")
        return
    level: Level = "ok" if cupy else "warn"
    hint = "" if cupy else "; CuPy is missing: pip install 'millrace[gpu]'"
    yield Finding(level, "gpu", f"{len(devices)} NVIDIA device(s){hint}")


def model(told: str | Path) -> Finding:
    """Look at the files of a model folder."""
    try:
        folder = model_folder(told)
    except CommandError as error:
        return Finding("fail", "model", str(error))
    try:
        what = f"{folder} ({describe_folder(folder)})"
        text = read_model_folder(folder)
        tokenizer = load_tokenizer(text)
    except ModelFolderError as error:
        return Finding("fail", "model", str(error))
    if tokenizer is None:
        lacks = "no tokenizer.json, and no vocab.json with merges.txt: token ids only"
        return Finding("warn", "model", f"{what} has {lacks}")
    if not text.templates:
        return Finding("warn", "model", f"{what} has no chat template: completions only")
    if why := asyncio.run(template_fault(text.templates)):
        return Finding("warn", "model", f"{what}: no chats, its chat template is wrong: {why}")
    return Finding("ok", "model", what)


async def template_fault(templates: Mapping[str, str]) -> str:
    """Return why a template cannot be read.

    It is a program of others, so it is compiled where the server does so, within the same limits.
    """
    process = TemplateProcess(templates, {})
    try:
        return await process.fault()
    finally:
        await process.close()


def port(args: argparse.Namespace) -> Finding:
    """Look whether the API's port is free, or ours."""
    if not is_listening("127.0.0.1", args.port):
        return Finding("ok", "port", f"{args.port} is free")
    owner = listener(args.port)
    by = f" by pid {owner[0]} ({owner[1]})" if owner else ""
    try:
        run = project(args).state.running()
    except CommandError:  # another user's: `writable` says so
        run = None
    ours = run is not None and run.url.endswith(f":{args.port}")
    return Finding("ok" if ours else "warn", "port", f"{args.port} is in use{by}")


def writable(folder: Path) -> Finding:
    """Try to write where the runner keeps its state."""
    try:
        place = next(p for p in (folder, *folder.parents) if p.exists())
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))  # a full disk still takes an empty file
            file.flush()
            return Finding("ok", "state", f"{folder} can be written")
    except OSError as error:
        return Finding("fail", "state", f"{folder} cannot be written: {error.strerror}")
