"""Models by name, from a small hub on this machine; its cache serves again without it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millrace.commands.doctor import model as look_at
from millrace.hub import is_name
from millrace.in_process import open_in_process
from tests.support.stack import eventually
from tests.support.tiny_model import write_tiny_model
from tokenizer_service.model_folder import folder_name

REVISION = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """Serves the repositories of `repositories`: name → file → bytes."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str]
    refuses: bool
    hangs_at: str
    """End of the path of a file that stops half way, which `hung` tells, until `go_on`."""
    hung: threading.Event
    go_on: threading.Event

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if self.refuses:
            return self.reply(401, b"", ("X-Error-Message", "Invalid credentials in header"))
        for name, files in self.repositories.items():
            if path.startswith(f"/api/models/{name}/"):
                listed = [
                    {"rfilename": file, "path": file, "type": "file", "size": len(data), "oid": "0"}
                    for file, data in files.items()
                ]
                known = {"id": name, "sha": REVISION, "siblings": listed}
                return self.reply(200, json.dumps(listed if "/tree/" in path else known).encode())
            if path.startswith(f"/{name}/resolve/"):
                return self.reply(200, files[path.rpartition("/")[2]])
        return self.reply(404, b"", ("X-Error-Code", "RepoNotFound"))

    do_HEAD = do_GET

    def reply(self, status: int, data: bytes, *headers: tuple[str, str]) -> None:
        etag = hashlib.sha1(data).hexdigest()
        self.send_response(status)
        for name, value in (("ETag", f'"{etag}"'), ("X-Repo-Commit", REVISION), *headers):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET" and self.hangs_at and self.path.endswith(self.hangs_at):
            self.wfile.write(data[: len(data) // 2])
            self.hung.set()
            self.go_on.wait(60)
        elif self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    folder = write_tiny_model(tmp_path / "tiny")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = files["config.json"].replace(b"Qwen2", b"Nobody")
    Hub.repositories = {
        "org/tiny": files | {"pytorch_model.bin": b"not asked for"},
        "org/other": {"config.json": other, "model.safetensors": b"not asked for"},
    }
    Hub.asked, Hub.refuses, Hub.hangs_at = [], False, ""
    Hub.hung, Hub.go_on = threading.Event(), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        yield Hub
        Hub.go_on.set()
        server.shutdown()


def doctor(model: str, home: Path, **environment: str) -> str:
    """Return what `millrace doctor` finds out about a model, which asks the hub in a process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HOME": str(home), **environment}.items():
            patch.setenv(name, value)
        level, _, text = look_at(model)
    return f"{level} {text}"


def test_a_model_comes_from_the_hub_once(hub: type[Hub], tmp_path: Path) -> None:
    found = doctor("org/tiny", tmp_path / "home")
    assert found.startswith("ok") and "Qwen2ForCausalLM" in found
    assert not any("pytorch_model.bin" in path for path in hub.asked)
    (snapshot,) = (tmp_path / "home").rglob(REVISION)
    assert folder_name(snapshot) == "org/tiny"
    num_asked = len(hub.asked)
    assert doctor("org/tiny", tmp_path / "home", HF_HUB_OFFLINE="1") == found
    assert len(hub.asked) == num_asked


def test_weights_of_a_model_that_is_not_served_are_left_there(
    hub: type[Hub], tmp_path: Path
) -> None:
    assert "architectures is 'NobodyForCausalLM'" in doctor("org/other", tmp_path)
    assert not any("safetensors" in path for path in hub.asked)


def test_a_name_that_is_nothing_is_told(hub: type[Hub], tmp_path: Path) -> None:
    assert "no model folder at org/none; the Hugging Face hub has no" in doctor(
        "org/none", tmp_path
    )
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    assert "hub did not give it: " in doctor("org/none", tmp_path, **nobody)
    assert hub.asked


def test_a_refused_token_is_told(hub: type[Hub], tmp_path: Path) -> None:
    hub.refuses = True
    assert "401 Unauthorized" in (found := doctor("org/tiny", tmp_path, HF_TOKEN="hf_old"))
    assert found.endswith("look at HF_TOKEN")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_for_no_download(hub: type[Hub], tmp_path: Path, stop: signal.Signals) -> None:
    hub.hangs_at = "/model.safetensors"
    command = [sys.executable, "-m", "millrace.cli", "generate", "--model", "org/tiny", "a"]
    env = os.environ | {"HF_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        assert hub.hung.wait(60)
        process.send_signal(stop)
        # whoever downloads holds the other end, too
        said = process.communicate(timeout=30)[1]
    assert process.returncode and b"Traceback" not in said


async def test_who_gives_up_an_open_ends_its_download(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub.hangs_at = "/model.safetensors"
    opening = asyncio.create_task(open_in_process("org/tiny", {}))
    assert await asyncio.to_thread(hub.hung.wait, 60)
    (downloading,) = children()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.to_thread(eventually, lambda: downloading not in children())


def children() -> list[str]:
    """Return the pids of the processes of this one that ask the hub."""
    return [
        pid.name for pid in Path("/proc").iterdir() if pid.name.isdecimal() and is_download(pid)
    ]


def is_download(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:  # ended meanwhile
        return False
    return b"millrace.hub" in words and parent == str(os.getpid())


def test_folders_and_paths_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert is_name("Qwen/Qwen2.5-0.5B-Instruct")
    for path in ("a/b", "./x/y", "../x", "~/x", "/x/y", "x", "x/y/z", "x/.y", "x/ y", ""):
        assert not is_name(path), path
