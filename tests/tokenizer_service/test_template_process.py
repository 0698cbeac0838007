"""A template that overruns its limits harms one request; the next one is rendered."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidRequest, Unavailable, Unprocessable
from tokenizer_service import sandbox
from tokenizer_service.template_process import MAX_ERROR_CHARS, TemplateProcess

GOOD = "{% if messages[0].bad %}{BAD}{% endif %}{{ bos_token }}{{ messages[0].content }}"
USER = [{"role": "user", "content": "é<b>"}]
BAD = [{"role": "user", "bad": True}]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@asynccontextmanager
async def process(bad: str = "", timeout_s: float = 20.0) -> AsyncIterator[TemplateProcess]:
    source = GOOD.replace("{BAD}", bad)
    child = TemplateProcess({"default": source}, {"bos_token": "<s>"}, timeout_s, 100_000)
    try:
        yield child
    finally:
        await child.close()


async def refusal(child: TemplateProcess, messages: list[Any]) -> Exception:
    with pytest.raises((InvalidRequest, Unprocessable)) as caught:
        await child.render(messages)
    assert caught.value.param == "messages"
    return caught.value


async def test_renders() -> None:
    async with process() as child:
        assert await child.render(USER) == "<s>é<b>"


async def test_a_look_ends_whatever_a_template_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is constant in a template is computed when it is compiled."""
    monkeypatch.setattr(sandbox, "LEAST_SHARE", 0.0)  # on a busy machine it may have less
    for source, timeout_s, wanted in (
        (GOOD, 20.0, ""),
        ("{% if %}", 20.0, "default: Expected an expression"),
        ("{{ 7**(7**9) }}", 0.2, "longer than 0.2 s"),
    ):
        child = TemplateProcess({"default": source}, {}, timeout_s)
        assert wanted in (told := await child.fault()) and bool(told) == bool(wanted)
        await child.close()


async def test_files_of_the_current_folder_are_no_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('ran')")
    monkeypatch.setattr(sys, "path", [place or os.getcwd() for place in sys.path])
    monkeypatch.chdir(tmp_path)
    async with process() as child:
        assert await child.render(USER) == "<s>é<b>"


async def test_an_endless_loop_is_killed_and_the_next_render_works() -> None:
    async with process(ENDLESS, timeout_s=2.0) as child:
        error = await refusal(child, BAD)
        assert isinstance(error, Unprocessable) and "2 s" in str(error)
        assert await child.render(USER) == "<s>é<b>"


@pytest.mark.parametrize(
    "bad",
    [
        "{{ 'a' * 10**9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{% for i in range(9999) %}{{ 'a' * 10000 }}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ],
)
async def test_too_much_memory_text_or_depth_is_refused(bad: str) -> None:
    async with process(bad) as child:
        assert isinstance(await refusal(child, BAD), Unprocessable)
        assert await child.render(USER) == "<s>é<b>"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{{ raise_exception('no é') }}", "no é"),
        ("{{ messages[3].x.y }}", "no element 3"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
    ],
)
async def test_template_errors_are_the_users(bad: str, words: str) -> None:
    async with process(bad) as child:
        error = await refusal(child, BAD)
        assert isinstance(error, InvalidRequest) and words in str(error)
        assert await child.render(USER) == "<s>é<b>"


async def test_the_words_of_a_template_have_an_end() -> None:
    """They go to the client, through a pipe that carries no message of any length."""
    async with process("{{ raise_exception('no ' * 10**6) }}") as child:
        error = await refusal(child, BAD)
        assert isinstance(error, InvalidRequest) and "no no" in str(error)
        assert len(str(error)) < MAX_ERROR_CHARS + 50


async def test_a_cancelled_render_leaves_the_answers_in_order() -> None:
    async with process() as child:
        await child.render(USER)
        first = asyncio.create_task(child.render([{"content": "first"}]))
        second = asyncio.create_task(child.render([{"content": "second"}]))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "<s>second"
        assert await child.render([{"content": "third"}]) == "<s>third"


@pytest.mark.parametrize("is_noticed", [False, True])
async def test_a_child_that_died_idle_is_replaced_and_nobody_is_blamed(is_noticed: bool) -> None:
    async with process() as child:
        await child.render(USER)
        dead = child.sandbox._process
        assert dead is not None
        os.kill(dead.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # asyncio has read its status, and not told yet
            os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        if is_noticed:
            await dead.wait()
        assert await child.render(USER) == "<s>é<b>"
        assert child.sandbox._process is not dead


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_child_that_others_end_or_stop_at_work_is_replaced(
    end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what is asked may be the cause of it."""
    exchange, num_disturbed = sandbox.exchange, 0

    async def disturbed(child: Process, message: bytes) -> bytes:
        nonlocal num_disturbed
        if message != child_process.sandbox._setup and num_disturbed:
            num_disturbed -= 1
            os.kill(child.pid, end)
        return await exchange(child, message)

    monkeypatch.setattr(sandbox, "exchange", disturbed)
    async with process(timeout_s=1.0) as child_process:
        num_disturbed = 1
        assert await child_process.render(USER) == "<s>é<b>"
        num_disturbed = 2
        with pytest.raises(Unavailable, match="twice"):
            await child_process.render(USER)
        assert await child_process.render(USER) == "<s>é<b>"


async def test_a_child_that_dies_while_it_starts_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Process] = []
    exchange = sandbox.exchange

    async def killing(child: Process, message: bytes) -> bytes:
        if child not in started:
            started.append(child)
            if len(started) == 1:
                child.kill()
        return await exchange(child, message)

    monkeypatch.setattr(sandbox, "exchange", killing)
    async with process() as child:
        assert await child.render(USER) == "<s>é<b>"
    assert len(started) == 2


@pytest.mark.parametrize("is_at_start", [False, True])
async def test_a_failure_that_nobody_foresaw_harms_one_request(
    is_at_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = sandbox.exchange

    async def failing(child: Process, message: bytes) -> bytes:
        monkeypatch.setattr(sandbox, "exchange", exchange)
        assert child.stdin is not None
        child.stdin.write(sandbox.LENGTH.pack(len(message)) + message)
        raise MemoryError

    async with process() as child:
        if not is_at_start:
            await child.render(USER)
        monkeypatch.setattr(sandbox, "exchange", failing)
        with pytest.raises(MemoryError):
            await child.render([{"content": "another"}])
        assert await child.render(USER) == "<s>é<b>"


def test_a_child_whose_parent_was_killed_says_nothing() -> None:
    """It wrote tracebacks to the terminal of who had run out of memory."""
    source = "from tokenizer_service.sandbox import serve; serve(lambda setup: lambda text: text)"
    reading, writing = os.pipe()
    os.close(reading)  # as a killed parent leaves it
    child = subprocess.run(
        [sys.executable, "-c", source, "5"],
        input=sandbox.LENGTH.pack(2) + b"{}", stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (child.returncode, child.stderr) == (1, b"")


async def test_closing_ends_what_waits() -> None:
    async with process(ENDLESS) as child:
        waiting = asyncio.create_task(child.render(BAD))
        await asyncio.sleep(0)
        await child.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
