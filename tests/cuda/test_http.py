"""The whole stack on a GPU over HTTP: streamed, and the tokens of the CPU's stack.

Runs with --cuda, alone: its worker claims the device, so no other test of the run may have it.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_folders import write_folder
from tests.support.online import Online
from tests.support.tiny_model import CONFIG, write_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
    "vocab_size": CONFIG["vocab_size"], "eos_token_id": CONFIG["eos_token_id"],
}  # fmt: skip
PROMPTS = ("The river", "Wheels and stones", "a")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A tiny tokenizer over weights of sizes that the CUDA kernels take."""
    if not pytestconfig.getoption("--cuda"):
        pytest.skip("runs with --cuda")
    folder = write_folder(tmp_path_factory.mktemp("models") / "tiny", **SIZES)
    write_tokenizer(folder)
    return folder


def stack_of(folder: Path, model: Path, device: str) -> Iterator[Online]:
    online = Online(folder, model, "--device", device, "--dtype", "float32")
    try:
        yield online
    finally:
        online.call("down")
        online.close()


def streamed(online: Online, prompt: str) -> tuple[str, int]:
    """Return the text of a streamed completion, and in how many events it came."""
    asked = {
        "model": online.model, "prompt": prompt, "max_tokens": 24, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{online.url}/v1/completions", json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in reply.read().decode().splitlines() if line.startswith("data: ")]
    assert lines.pop() == "data: [DONE]"
    pieces = [choice["text"] for line in lines for choice in json.loads(line[6:])["choices"]]
    return "".join(pieces), len(pieces)


def test_streams_of_a_gpu_are_those_of_the_cpu(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    answers = {}
    for device in ("cpu", "cuda"):
        for online in stack_of(tmp_path_factory.mktemp(device), model, device):
            answers[device] = [streamed(online, prompt) for prompt in PROMPTS]
            if device == "cuda":
                series = online.metrics("worker", 7301)
                assert any(row.startswith("millrace_worker_memory_bytes") for row in series)
    assert answers["cpu"] == answers["cuda"]
    assert all(count > 5 for _, count in answers["cuda"]), "token by token"
