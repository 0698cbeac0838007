"""Which stack a command is about: the compose file, and the folder that remembers its run."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from millrace.errors import CommandError
from millrace.http import Server
from millrace.hub import fetched, is_name
from millrace.state import RunState, StateFolder
from worker.models.config import ADAPTER, ADAPTER_ALONE, read_config

HOME = Path(__file__).resolve().parent.parent
DEMO_MODEL = HOME / "millrace" / "demo_model"
DEMO_NAME = "millrace-demo"


@dataclass(frozen=True)
class Project:
    file: Path
    state: StateFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which stack is meant."""
    parser.add_argument(
        "--file", type=Path, default=HOME / "docker-compose.yml", help="compose file of the stack"
    )
    parser.add_argument(
        "--state", type=Path, help="folder of run state and logs (default: .millrace beside FILE)"
    )


def project(args: argparse.Namespace) -> Project:
    """Return the project that the parsed arguments name; raise CommandError when there is none.

    A run that `--state` names may have outlived its file.
    """
    if args.state is None and not args.file.is_file():
        raise CommandError(f"--file {args.file} is no file; --state FOLDER names a run without one")
    folder = args.state or args.file.resolve().parent / ".millrace"
    return Project(file=args.file, state=StateFolder(folder.resolve()))


def stop_command(args: argparse.Namespace) -> str:
    """Return what stops the stack that the parsed arguments name."""
    given = [
        f" {option} {shlex.quote(str(value))}"
        for option, value, usual in (
            ("--file", args.file, HOME / "docker-compose.yml"),
            ("--state", args.state, None),
        )
        if value != usual
    ]
    return "".join(["millrace down", *given])


def running(args: argparse.Namespace) -> RunState:
    """Return the state of the running stack; raise CommandError when none runs."""
    folder = project(args).state
    state = folder.running()
    if state is None:
        folder.check_in_sight()
        folder.check_told()
        raise CommandError("nothing is running here; start it with: millrace up")
    return state


def check_model_folder(folder: Path) -> None:
    """Raise CommandError unless `folder` looks like a model folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ValueError) as error:  # ValueError: a NUL cannot be in a path
        raise CommandError(f"no model folder at {folder}") from error
    except NotADirectoryError as error:
        why = "a model is a folder, of safetensors and config.json as on the Hugging Face hub"
        if folder.suffix == ".gguf":
            why = f"make a folder of it with: millrace convert {folder} FOLDER"
        raise CommandError(f"{folder} is a file: {why}") from error
    except OSError as error:
        raise CommandError(f"{folder} cannot be read: {error.strerror}") from error
    if "config.json" not in names:
        why = "is not a model folder: it has no config.json"
        raise CommandError(f"{folder} {ADAPTER_ALONE if ADAPTER in names else why}")


def model_folder(model: str | Path, given_up: Event | None = None) -> Path:
    """Return the folder of a model that is told by its path, or by its name on the hub.

    Raises CommandError unless it looks like a model folder. `given_up` ends a download.
    """
    folder = fetched(str(model), given_up) if is_name(str(model)) else Path(model)
    check_model_folder(folder)
    return folder


def check_length(asked: int, folder: Path) -> None:
    """Raise CommandError when a model has fewer positions than the sequences that are asked for.

    Raises ModelFolderError for a config that cannot be served.
    """
    positions = read_config(folder).max_position_embeddings
    if asked > positions:
        raise CommandError(
            f"max_model_len is {asked}, the model has {positions} positions "
            f"({folder}/config.json): ask for fewer, or leave it out"
        )


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which server is meant."""
    parser.add_argument("--url", help="a server (default: the stack that `millrace up` started)")
    parser.add_argument("--api-key", metavar="KEY", help="default: $OPENAI_API_KEY")
    add_arguments(parser)


def server(args: argparse.Namespace) -> Server:
    """Return the server that the parsed arguments name."""
    return Server(args.url or running(args).url, args.api_key)
