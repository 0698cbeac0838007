"""`millrace chat`: a conversation in the terminal. Ctrl-C stops an answer, /exit leaves."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from typing import Any

import msgspec

from millrace.arguments import amount
from millrace.console import is_dumb
from millrace.errors import CommandError
from millrace.http import Server
from millrace.project import add_server_arguments, server
from millrace.speech import Speech, harmless, typed

HELP = "/exit leaves, /clear forgets the conversation, Ctrl-C stops an answer"
CUT_OFF = " [cut off: the limit of tokens, or the context, is reached]"


class Delta(msgspec.Struct):
    """What a chunk adds, as far as it is shown here."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, of any server."""

    choices: list[Choice] = []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `chat`."""
    option = parser.add_argument
    option("--model", metavar="NAME", help="served name (default: the first one)")
    option("--system", metavar="TEXT", help="instructions that stand first")
    option("--max-tokens", type=int, metavar="N")
    option("--temperature", type=amount)
    option("--seed", type=int)
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until /exit or the end of the input; return the exit status."""
    there = server(args)
    body = _options(args, there)
    history: list[dict[str, str]] = []
    status = 0
    if sys.stdin.isatty():
        edit_lines()
        print(harmless(f"{body['model']} at {there.url}; {HELP}"))
    while (line := _question()) not in (None, "/exit", "/quit"):
        if line == "/clear":
            history.clear()
        elif line:
            history.append({"role": "user", "content": line})
            if not _answer(there, body, args.system, history):
                status = 1
                with contextlib.suppress(CommandError):  # it may be another model by now
                    body = _options(args, there)
    return 0 if sys.stdin.isatty() else status


def edit_lines() -> None:
    """Have arrow keys move in what is typed, and among what was; else they are sent to the model.

    `input` does so where this module was imported; not every Python has it. Lines that are pasted
    are one question, which Python turns off; where libedit stands in, each stays one.
    """
    with contextlib.suppress(ImportError):
        readline = importlib.import_module("readline")
        if "GNU" in (readline.__doc__ or "") and not is_dumb():
            readline.parse_and_bind("set enable-bracketed-paste on")


def _options(args: argparse.Namespace, there: Server) -> dict[str, Any]:
    given = {name: getattr(args, name) for name in ("max_tokens", "temperature", "seed")}
    model = args.model or there.models()[0]["id"]
    return {"model": model, "stream": True, **{k: v for k, v in given.items() if v is not None}}


def _question() -> str | None:
    try:
        return typed(lambda: input("> " if sys.stdin.isatty() else "")).strip()
    except EOFError:
        return None


def _answer(
    there: Server, body: dict[str, Any], system: str | None, history: list[dict[str, str]]
) -> bool:
    """Stream one answer to the terminal and add it to `history`, as far as it came.

    A question without an answer is taken back: who asks again asks once. Returns False on an error.
    """
    first = [{"role": "system", "content": system}] if system else []
    events = there.events("/v1/chat/completions", {**body, "messages": [*first, *history]})
    speech, end, failure = Speech(), "", ""
    try:
        for event in events:
            for choice in _chunk(there, event).choices:
                delta = choice.delta or Delta()
                speech.add(delta.reasoning_content or delta.reasoning or "", delta.content or "")
                if choice.finish_reason == "length":
                    end = CUT_OFF if sys.stdin.isatty() else ""  # a pipe gets the answer alone
    except KeyboardInterrupt:
        end = " [stopped]"
    except CommandError as error:
        failure = harmless(str(error))
        if "context length" in failure:
            failure += "; /clear forgets the conversation"
    finally:
        events.close()  # ends the connection, and with it the request
        speech.close()
    if failure and not sys.stdin.isatty():
        print(end="\n" if speech.said else "", flush=True)  # the next answer has a line of its own
        print(failure, file=sys.stderr)
    else:
        print(f"\n[{failure}]" if failure else end)
    if speech.said:
        history.append({"role": "assistant", "content": speech.said})
    else:
        history.pop()
    return not failure


def _chunk(there: Server, event: dict[str, Any]) -> Chunk:
    try:
        return msgspec.convert(event, Chunk)
    except msgspec.ValidationError as error:
        raise CommandError(f"{there.url}: no event of a chat: {error}") from error
