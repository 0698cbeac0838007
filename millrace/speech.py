"""An answer in the terminal as it comes: thoughts apart from what is said."""

from __future__ import annotations

from millrace.console import is_terminal

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MARK = "[thinks] "
"""Stands before thoughts where no colours show."""


class Speech:
    """Prints one answer to standard output; keeps what was said."""

    def __init__(self) -> None:
        self.said = ""
        self._begin, self._end = (DIM, f"{PLAIN}\n\n") if is_terminal() else (MARK, "\n\n")
        self._is_thinking = False

    def add(self, thoughts: str, text: str) -> None:
        """Print what one step has brought; thoughts stand before the text."""
        if thoughts:
            self._write(thoughts if self._is_thinking else self._begin + thoughts)
            self._is_thinking = True
        if text:
            self.close()
            self._write(text)
            self.said += text

    def close(self) -> None:
        """End the thoughts, if they are what came last."""
        if self._is_thinking:
            self._write(self._end)
        self._is_thinking = False

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)
