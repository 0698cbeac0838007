"""Whether the system has threads for a tier, asked before its libraries need them.

gRPC, OpenBLAS and our own kernels end the process without a word, or wait for ever, where they get
none.
"""

from __future__ import annotations

import sys
import threading

NEEDED = 16
"""What the largest tier has besides its compute threads; a scheduler's and a sandbox's as well."""


class TooFewThreads(OSError):
    """The system lets this process start fewer threads than it needs."""


def check() -> None:
    """Start NEEDED threads at once and end them again; raise TooFewThreads."""
    over = threading.Event()
    begun: list[threading.Thread] = []
    try:
        while len(begun) < NEEDED:
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError as error:
        raise TooFewThreads(
            f"only {len(begun)} of {NEEDED} threads can be started: raise the limit on processes "
            "(`ulimit -u`, TasksMax of systemd, --pids-limit of Docker) or memory (`ulimit -v`)"
        ) from error
    finally:
        over.set()
        for thread in begun:
            thread.join()


def check_or_exit(service: str) -> None:
    """As `check`, for `__main__`: too few threads end the process with one clear line."""
    try:
        check()
    except TooFewThreads as error:
        sys.exit(f"{service}: {error}")
