"""Renders chat templates in a child process that may be killed: a template is a program.

Parent and child speak JSON with a four-byte length in front, one request at a time. The child
limits its own memory and processor time; the parent limits the time on the wall and starts a
fresh child after any overrun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import orjson

from common.errors import Internal, InvalidRequest, ServiceError, Unprocessable
from tokenizer_service.chat_template import ChatTemplate, TooLong

log = logging.getLogger(__name__)
LENGTH = struct.Struct("<I")
MEMORY_BYTES = 512 * 2**20
START_TIMEOUT_S = 30.0


class TemplateProcess:
    """The parent's end. Starts the child at first need; belongs to one event loop."""

    def __init__(
        self,
        sources: Mapping[str, str],
        variables: Mapping[str, str],
        timeout_s: float,
        max_chars: int,
    ) -> None:
        self._setup = orjson.dumps(
            {
                "sources": dict(sources),
                "variables": dict(variables),
                "max_chars": max_chars,
                "cpu_s": int(timeout_s) + 1,
            }
        )
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._pending: asyncio.Queue[tuple[bytes, asyncio.Future[str]]] = asyncio.Queue()
        self._loop: asyncio.Task[None] | None = None

    async def render(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt.

        Raises InvalidRequest with the template's own message when it refuses the input, and
        Unprocessable when it takes too long, too much memory or makes too much text.
        """
        if self._loop is None:
            self._loop = asyncio.create_task(self._serve())
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        request = orjson.dumps([messages, tools, add_generation_prompt, dict(kwargs or {})])
        self._pending.put_nowait((request, answer))
        return await answer

    async def close(self) -> None:
        """End the child; renders that wait are cancelled."""
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None
        while not self._pending.empty():
            self._pending.get_nowait()[1].cancel()
        await self._kill()

    async def _serve(self) -> None:
        """Render one after the other; the caller's cancellation never cuts an exchange."""
        while True:
            request, answer = await self._pending.get()
            if answer.done():
                continue
            try:
                text = await self._render(request)
            except ServiceError as error:
                if not answer.done():
                    answer.set_exception(error)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            else:
                if not answer.done():
                    answer.set_result(text)

    async def _render(self, request: bytes) -> str:
        try:
            child = await self._child()
            async with asyncio.timeout(self._timeout_s):
                reply = orjson.loads(await exchange(child, request))
        except TimeoutError:
            await self._kill()
            raise Unprocessable(
                f"the chat template took longer than {self._timeout_s:g} s",
                param="messages",
                code="template_limit",
            ) from None
        except (EOFError, OSError):
            await self._kill()
            raise Unprocessable(
                "the chat template used more memory or processor time than it may",
                param="messages",
                code="template_limit",
            ) from None
        return text_of(reply)

    async def _child(self) -> Process:
        if self._process is not None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", __name__),
            stdin=PIPE,
            stdout=PIPE,
            env={"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))},
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await exchange(self._process, self._setup)
        except (TimeoutError, EOFError, OSError) as error:
            await self._kill()
            raise Internal(f"the template process does not start: {error!r}") from error
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        code = await process.wait()
        log.info("template process ended", extra={"exit_code": code})


def text_of(reply: Mapping[str, Any]) -> str:
    """Return the text of a reply, or raise what it says."""
    if "text" in reply:
        return str(reply["text"])
    if reply["kind"] == "limit":
        raise Unprocessable(reply["error"], param="messages", code="template_limit")
    raise InvalidRequest(reply["error"], param="messages", code="template_error")


async def exchange(child: Process, message: bytes) -> bytes:
    """Send one message and return the answer; raise EOFError when the child ends."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(LENGTH.pack(len(message)) + message)
    await child.stdin.drain()
    (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
    return await child.stdout.readexactly(length)


# ── the child ────────────────────────────────────────────────────────────────────────────────


def child_main(source: BinaryIO, target: BinaryIO) -> None:
    """Answer requests until the parent closes the pipe."""
    setup = orjson.loads(read_message(source) or b"{}")
    template = ChatTemplate(setup["sources"], setup["variables"], setup["max_chars"])
    confine()
    write_message(target, b"{}")
    while (request := read_message(source)) is not None:
        allow_cpu(setup["cpu_s"])
        write_message(target, answer(template, request))


def answer(template: ChatTemplate, request: bytes) -> bytes:
    """Render one request; everything a template can raise becomes words."""
    try:
        messages, tools, add_generation_prompt, kwargs = orjson.loads(request)
        text = template.render(messages, tools, add_generation_prompt, kwargs)
        return orjson.dumps({"text": text})
    except TooLong as error:
        return orjson.dumps({"kind": "limit", "error": str(error)})
    except (MemoryError, RecursionError, OverflowError) as error:
        words = f"the chat template is too large to render ({type(error).__name__})"
        return orjson.dumps({"kind": "limit", "error": words})
    except Exception as error:  # a template may cause any error at all
        words = str(error).encode(errors="replace").decode()
        return orjson.dumps({"kind": "template", "error": f"chat template: {words}"})


def confine() -> None:
    """Give up memory, files and cores for the rest of this process's life."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow_cpu(seconds: int) -> None:
    """Let the kernel end this process `seconds` of processor time from now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


def read_message(source: BinaryIO) -> bytes | None:
    """Return the next message, or None at the end of the pipe."""
    header = source.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(header)[0])


def write_message(target: BinaryIO, message: bytes) -> None:
    target.write(LENGTH.pack(len(message)) + message)
    target.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    child_main(sys.stdin.buffer, sys.stdout.buffer)
