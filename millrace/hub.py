"""Models by their name on the Hugging Face hub: taken from its cache on this machine, else from it.

The library that knows the hub decides by its own variables where the cache is (HF_HOME), who asks
(HF_TOKEN) and whether the network may be used at all (HF_HUB_OFFLINE). Knows no weights.

It runs in a process of its own (`python -m millrace.hub NAME`): its threads would keep a Ctrl-C
waiting until the files under way are whole, gigabytes later.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

from common.model_folder import ModelFolderError
from common.settings import inherited
from millrace.child import tied
from millrace.errors import CommandError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
TEXTS = ["*.json", "*.jinja", "merges.txt"]
WEIGHTS = ["model*.safetensors"]
LOOK_S = 0.2
"""How often whoever waits for a download looks whether it is wanted still."""


def is_name(model: str) -> bool:
    """Return whether `model` is not here and could be a name there, such as Qwen/Qwen3-0.6B."""
    return NAME.fullmatch(model) is not None and not os.path.exists(model)


def fetched(name: str, given_up: Event | None = None) -> Path:
    """Return the folder of the hub's model `name`, with all of its files that are read here.

    Raises CommandError. An exception here, or `given_up` set, ends the download; the next one goes
    on where it was.
    """
    command = [sys.executable, "-P", "-m", "millrace.hub", name]
    if sys.platform == "linux":  # elsewhere a download outlives whoever is killed
        command = tied(command)
    path = os.pathsep.join([os.getcwd() if place == "" else place for place in sys.path])
    env = inherited({"PYTHONPATH": path})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            answer = _answer(process, given_up or Event())
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return Path(answer)
    ended = f"what downloads it ended with status {process.returncode}"
    raise CommandError(answer or _absent(name, ended))


def _answer(process: subprocess.Popen[str], given_up: Event) -> str:
    while True:
        try:
            return process.communicate(timeout=LOOK_S)[0].rstrip("\n")
        except subprocess.TimeoutExpired:
            if given_up.is_set():
                process.kill()


def main() -> int:
    """Print the folder of the model that is named, or what is wrong with it; return the status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no thread can keep this one waiting
    try:
        print(_download(sys.argv[1]))
    except CommandError as error:
        print(error)
        return 1
    return 0


def _download(name: str) -> Path:
    """Take texts first, and weights when it is a config that can be served."""
    try:  # not at the top: these are slow to import
        import huggingface_hub as hub

        from worker.models.config import read_config
    except ImportError as error:
        why = "to take it from the Hugging Face hub: pip install huggingface-hub"
        raise CommandError(_absent(name, why)) from error
    try:
        read_config(Path(hub.snapshot_download(name, allow_patterns=TEXTS)))
        return Path(hub.snapshot_download(name, allow_patterns=[*TEXTS, *WEIGHTS]))
    except hub.errors.RepositoryNotFoundError as error:
        why = "the Hugging Face hub has no such model, or not for you (HF_TOKEN)"
        raise CommandError(_absent(name, why)) from error
    except ModelFolderError as error:
        raise CommandError(str(error)) from error
    except Exception as error:  # the library's, its HTTP client's, the file system's
        lines = str(error).splitlines() or [type(error).__name__]
        token = "; look at HF_TOKEN" if _is_unauthorized(error) else ""
        why = f"the Hugging Face hub did not give it: {lines[0]}{token}"
        raise CommandError(_absent(name, why)) from error


def _is_unauthorized(error: Exception) -> bool:
    return getattr(getattr(error, "response", None), "status_code", 0) in (401, 403)


def _absent(name: str, why: str) -> str:
    return f"no model folder at {name}; {why}"


if __name__ == "__main__":
    sys.exit(main())
