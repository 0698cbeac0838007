"""What the commands take as a value of an option; what is wrong is told in the option's name."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """Return a positive number; raise ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def whole(text: str) -> int:
    """Return a number, 0 or more; raise ArgumentTypeError for anything else."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def port(text: str) -> int:
    """Return the number of a port; raise ArgumentTypeError for anything else."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and 65535")
    return int(text)


def amount(text: str) -> float:
    """Return a finite number of 0 or more; raise ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return value


def served_name(text: str) -> str:
    """Return one name or a comma list as it was given; raise ArgumentTypeError when none is in it.

    An empty variable of the compose file means the default; an empty option means a mistake.
    """
    if not text.strip(", "):
        raise argparse.ArgumentTypeError(f"{text!r} names no model")
    return text
