"""What ends a command with one line instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """Something the user can put right; the message says what and how."""
