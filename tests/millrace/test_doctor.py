"""The doctor's findings on folders and ports that are known."""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import main
from millrace.commands import doctor, up
from millrace.processes import free_port
from tests.support.model_folders import write_folder
from tests.support.tiny_model import write_tokenizer
from tokenizer_service import sandbox


def arguments(folder: Path, port: int) -> argparse.Namespace:
    return argparse.Namespace(file=folder / "compose.yml", state=folder, port=port)


def test_model_folders(tmp_path: Path) -> None:
    assert doctor.model(tmp_path / "none")[0] == "fail"
    assert "no config.json" in doctor.model(tmp_path)[2]
    folder = write_folder(
        tmp_path / "m", architectures=["Qwen3ForCausalLM"], torch_dtype="bfloat16", head_dim=8,
        layer_types=["full_attention", "sliding_attention"], sliding_window=8,
        use_sliding_window=True,
    )  # fmt: skip
    what = "(Qwen3ForCausalLM, 0.0 M parameters, bfloat16, 1 of 2 layers slide)"
    assert doctor.model(folder)[::2] == (
        "warn",
        f"{folder} {what} has no tokenizer.json, and no vocab.json with merges.txt: token ids only",
    )
    (folder / "tokenizer.json").touch()
    assert "does not load" in doctor.model(folder)[2]
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"top_p": 7}')
    assert "top_p is 7, allowed: a number from 0 to 1" in doctor.model(folder)[2]
    (folder / "generation_config.json").unlink()
    assert doctor.model(folder)[::2] == ("ok", f"{folder} {what}")
    for template, why in (("{% if %}", "Expected an expression"), ("{{ a|nein }}", "'nein'")):
        (folder / "chat_template.jinja").write_text(template)
        level, _, told = doctor.model(folder)
        assert level == "warn" and "no chats, its chat template is wrong: default: " in told
        assert why in told
    (folder / "chat_template.jinja").unlink()
    config = folder / "config.json"
    config.write_text(config.read_text().replace("Qwen3ForCausalLM", "GPT2LMHeadModel"))
    assert doctor.model(folder)[0] == "fail"
    assert "allowed: LlamaForCausalLM, MistralForCausalLM" in doctor.model(folder)[2]
    (folder / "model.safetensors").unlink()
    assert doctor.model(folder)[0] == "fail"


def test_a_template_that_computes_for_ever_ends_the_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "LEAST_SHARE", 0.0)  # on a busy machine it may have less
    folder = write_folder(tmp_path / "m")
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{{ 7**(7**9) }}")
    level, _, told = doctor.model(folder)
    assert level == "warn"
    assert "no chats, its chat template is wrong: it took longer than 2 s" in told


def test_ports(tmp_path: Path) -> None:
    port = free_port()
    assert doctor.port(arguments(tmp_path, port))[0] == "ok"
    with socket.create_server(("127.0.0.1", port)):
        finding = doctor.port(arguments(tmp_path, port))
    assert finding.level == "warn"
    assert f"in use by pid {os.getpid()}" in finding.text


def test_a_compiler_that_fails_is_not_called_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "load_library", lambda: None)
    finding = doctor.kernels()
    assert finding.level == "warn"
    assert "could not be compiled" in finding.text and "no compiler" not in finding.text


def test_a_failure_is_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--state", str(tmp_path), "--port", str(free_port())]
    assert main(["doctor", "--model", str(tmp_path / "none"), *options]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn", "fail"}
    subjects = {line.split()[1] for line in lines}
    assert subjects >= {"cores", "memory", "cpu", "python", "packages", "compiler", "gpu", "port"}


def test_a_machine_that_lacks_nothing_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A little memory is none, either."""
    flags = "processor\t: 0\nflags\t\t: fpu avx2 avx512f\n"
    monkeypatch.setattr(doctor, "free_bytes", lambda: None)
    read = Path.read_text

    def told_flags(path: Path, *args: Any, **more: Any) -> str:
        return flags if path.name == "cpuinfo" else read(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", told_flags)
    monkeypatch.setattr(doctor, "gpu", lambda: [])
    monkeypatch.setattr(doctor, "kernels", lambda: doctor.Finding("ok", "kernels", "here"))
    write_tokenizer(folder := write_folder(tmp_path / "m"))
    state = tmp_path / "not" / "yet"
    options = ["--model", str(folder), "--state", str(state), "--port", str(free_port())]
    assert main(["doctor", *options]) == 0
    told = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert told["memory"].split() == ["warn", "memory", "0.0", "GiB", "available"]
    assert told["cpu"].split(None, 2) == ["ok", "cpu", "AVX2, AVX512"]
    assert told["packages"].startswith("ok") and "msgspec " in told["packages"]
    assert told["state"].split(None, 2) == ["ok", "state", f"{state} can be written"]


def test_a_machine_without_proc_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a chroot; both ended with a traceback."""
    monkeypatch.setattr(doctor, "identify", lambda pid: None)
    monkeypatch.setattr(up, "identify", lambda pid: None)
    assert list(doctor.machine())[-1][:2] == ("fail", "proc")
    assert main(["up", "--state", str(tmp_path / "run")]) == 1
    assert "mount -t proc proc /proc" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_no_place_for_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes an empty file, so the doctor said yes where `up` could not start."""
    assert doctor.writable(tmp_path)[0] == "ok"
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb"))
    level, _, told = doctor.writable(tmp_path)
    assert level == "fail" and "No space left on device" in told


def test_a_state_that_cannot_be_read_hides_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another user's; the doctor said that and nothing else."""
    (tmp_path / "state.json").mkdir()  # root may read all files
    with socket.create_server(("127.0.0.1", 0)) as other:
        finding = doctor.port(arguments(tmp_path, other.getsockname()[1]))
    assert finding.level == "warn" and f"in use by pid {os.getpid()}" in finding.text
    options = ["--state", str(tmp_path / ("x" * 300)), "--port", str(free_port())]
    assert main(["doctor", "--model", str(tmp_path / "none"), *options]) == 1
    told = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert told["state"].startswith("fail") and "File name too long" in told["state"]
    assert told["python"].startswith("ok")
