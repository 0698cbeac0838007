"""A talk in the terminal: answers as they come, thoughts apart from what is said; what is typed."""

from __future__ import annotations

from collections.abc import Callable

from millrace.console import has_colours, is_terminal
from millrace.errors import CommandError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MARK = "[thinks] "
"""Stands before thoughts where no colours show."""
_CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})
"""What a terminal obeys: at another's word it would change its title, its clipboard, its lines."""


def harmless(text: str) -> str:
    """Return what a model or a server has said, without what a terminal would obey."""
    return text.translate(_CONTROLS)


class Speech:
    """Prints one answer to standard output; keeps what was said."""

    def __init__(self) -> None:
        self.said = ""
        self._is_shown = is_terminal()
        self._begin, self._end = (DIM, f"{PLAIN}\n\n") if has_colours() else (MARK, "\n\n")
        self._is_thinking = False

    def add(self, thoughts: str, text: str) -> None:
        """Print what one step has brought; thoughts stand before the text."""
        if thoughts:
            if not self._is_thinking:
                self._write(self._begin)
            self._is_thinking = True
            self._tell(thoughts)
        if text:
            self.close()
            self._tell(text)
            self.said += text

    def close(self) -> None:
        """End the thoughts, if they are what came last."""
        if self._is_thinking:
            self._write(self._end)
        self._is_thinking = False

    def _tell(self, text: str) -> None:
        """Print a model's words; a pipe gets them as they are."""
        self._write(harmless(text) if self._is_shown else text)

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)


def typed(read: Callable[[], str]) -> str:
    """Return what standard input holds; raise CommandError for what is no text."""
    try:
        text = read()
        text.encode()  # bytes that are no text come as lone surrogates in some locales
    except UnicodeError as error:
        raise CommandError("standard input is not UTF-8 text") from error
    return text
