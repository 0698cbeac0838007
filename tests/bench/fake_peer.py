"""A peer whose speed is known: the weights it is asked for say how it behaves."""

from __future__ import annotations

import os
import signal
import sys
import time

from bench.peers.asking import Task, serve

STEP_S = 0.5


class FakePeer:
    """Tells times without spending any."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._prefills = 0
        if task.weights == "stuck":
            time.sleep(600)

    def facts(self) -> dict[str, str]:
        """Return what it was given."""
        return {"threads": str(self._task.threads)}

    def decode(self, batch: int) -> list[float]:
        """Return steps of half a second."""
        if batch > 1 and self._task.weights == "broken":
            raise MemoryError(f"no room for {batch} rows | at all")
        if batch > 1 and self._task.weights == "shot":
            os.kill(os.getpid(), signal.SIGILL)
        return [STEP_S] * self._task.steps

    def prefill(self) -> float:
        """Return a slow one first, then one that takes a second."""
        self._prefills += 1
        return 9.0 if self._prefills == 1 else 1.0


if __name__ == "__main__":
    sys.stdout.write(f"process {os.getpid()} makes noise on standard output\n")
    sys.stdout.flush()
    sys.stderr.write("noise on standard error\n")
    serve(["no-such-package"] if '"absent"' in sys.argv[1] else ["numpy"], FakePeer)
