"""tests/clients/run.sh leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from millrace.project import HOME

PYTHON = """#!/bin/sh
case "$*" in
  *socket*) echo 25999 ;;
  *venv*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *millrace.cli*) echo "$3" >>"$TOLD" ;;
  *urllib*) echo model ;;
  *openai_python.py*) echo asking >>"$TOLD"; read -r _ <"$HOLD" ;;
esac
"""
"""Plays pip, millrace and the clients: tells what is started, and lets the first client wait."""


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_interrupted_stops_its_stack(tmp_path: Path, ended_by: int) -> None:
    shutil.copytree(HOME / "tests/clients", tmp_path / "tests/clients")
    python, npm, told, hold = (tmp_path / name for name in ("python", "npm", "told", "hold"))
    python.write_text(PYTHON)
    npm.write_text("#!/bin/sh\n")
    for program in (python, npm):
        program.chmod(0o755)
    os.mkfifo(told)
    os.mkfifo(hold)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PY": python, "TOLD": told, "HOLD": hold}
    keep_open = os.open(told, os.O_RDWR)
    script = subprocess.Popen(
        ["sh", tmp_path / "tests/clients/run.sh"], env=environment, start_new_session=True
    )
    with os.fdopen(keep_open, "r") as lines:
        assert [lines.readline(), lines.readline()] == ["up\n", "asking\n"]
        os.killpg(script.pid, ended_by)
        assert script.wait() != 0
        os.write(lines.fileno(), b"end\n")
        assert lines.readline() == "down\n"
