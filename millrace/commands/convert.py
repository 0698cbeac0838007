"""`millrace convert`: makes a model folder of a GGUF file."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.model_folder import ModelFolderError
from millrace.errors import CommandError
from millrace.from_gguf.folder import make_folder
from millrace.from_gguf.tensors import DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `convert`."""
    option = parser.add_argument
    option("file", type=Path, metavar="FILE.gguf", help="the file, or any part of a split one")
    option("folder", type=Path, metavar="FOLDER", help="the folder to make")
    option(
        "--dtype", choices=("auto", *DTYPES), default="auto",
        help="of the weights (default: the file's, bfloat16 where it is quantised)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all; return the exit status."""
    folder = args.folder.absolute()
    _refuse_old(args.folder)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        with _held(partial):
            _refuse_old(args.folder)  # another run may have made it just now
            num_bytes = make_folder(args.file, partial, args.dtype)
            partial.rename(folder)
    except ModelFolderError as error:
        raise CommandError(str(error).replace(f"{partial}", f"{folder}")) from error
    except OSError as error:
        raise CommandError(f"{error.filename or folder}: {error.strerror}") from error
    serve = f"millrace up --model {shlex.quote(str(folder))}"
    print(f"{args.folder}: {num_bytes / 1e9:.2f} GB of weights; {serve}")
    return 0


def _refuse_old(folder: Path) -> None:
    if folder.exists():
        raise CommandError(f"{folder} is there already: name a new folder")


@contextmanager
def _held(partial: Path) -> Iterator[None]:
    """Make a folder that is empty and that no other run writes to; leave nothing of it.

    The lock ends with its run, however that ends. Where the file system has none, none is held.
    """
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not (_locks(descriptor) and _is_at(partial, descriptor)):
            raise CommandError(f"another run writes to {partial}: wait, or name another folder")
        try:
            for left in partial.iterdir():  # by a run that was killed
                left.unlink()
            yield
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Tell whether it is still there: who had the lock has moved or removed what it locked."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
