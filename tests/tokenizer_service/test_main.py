"""The process as an operator runs it: it serves without an engine, and stops when told to."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from common import rpc
from common.errors import CANNOT_WORK
from protos.tokenizer_pb2_grpc import TokenizerStub

ROOT = Path(__file__).resolve().parents[2]


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tokenizer_service", "--port=0", "--metrics_port=0", *arguments),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


async def line_saying(process: asyncio.subprocess.Process, words: str) -> dict[str, Any]:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said: dict[str, Any] = json.loads(line)
        if said["message"] == words:
            return said
    raise AssertionError(f"the process ended without saying {words!r}")


async def test_serves_and_stops_cleanly(tiny_folder: Path) -> None:
    process = await start(f"--model={tiny_folder}", "--engines=127.0.0.1:1")
    serving = await line_saying(process, "serving")
    async with rpc.channel(f"127.0.0.1:{serving['port']}") as channel:
        call = TokenizerStub(channel).Session()  # type: ignore[no-untyped-call]
        opened = (await call.read()).opened
        assert opened.models[0].id == tiny_folder.name
        state = (await call.read()).state
        assert state.reasons == ["no engine connected (127.0.0.1:1)"]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        call.cancel()


async def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    process = await start(f"--model={tmp_path / 'nowhere'}")
    _, said = await process.communicate()
    assert process.returncode == CANNOT_WORK
    assert said.decode().strip() == f"tokenizer: no model folder at {tmp_path / 'nowhere'}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "default_chat_template_kwargs: Input data was truncated"),
        ('{"a": []}', "default_chat_template_kwargs: Expected `bool | int"),
        ('{"tools": null}', "default_chat_template_kwargs may not set tools"),
    ],
)
async def test_values_for_templates_that_are_none_are_one_clear_line(
    tiny_folder: Path, value: str, said: str
) -> None:
    process = await start(f"--model={tiny_folder}", f"--default_chat_template_kwargs={value}")
    _, error = await process.communicate()
    assert process.returncode == CANNOT_WORK
    assert error.decode().startswith(f"tokenizer: {said}") and error.count(b"\n") == 1
