"""`millrace convert`: makes a model folder of a GGUF file."""

from __future__ import annotations

import argparse
import shlex
import shutil
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
    if folder.exists():
        raise CommandError(f"{args.folder} is there already: name a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        partial.mkdir(parents=True)
        num_bytes = make_folder(args.file, partial, args.dtype)
        partial.rename(folder)
    except ModelFolderError as error:
        raise CommandError(str(error).replace(f"{partial}", f"{folder}")) from error
    except OSError as error:
        raise CommandError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    serve = f"millrace up --model {shlex.quote(str(folder))}"
    print(f"{args.folder}: {num_bytes / 1e9:.2f} GB of weights; {serve}")
    return 0
