"""`millrace <command>`: a table of commands, each a module with `add_arguments` and `run`.

A program of its own has `main` instead. A command's module is imported only when it is called:
`millrace down` needs no NumPy.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys

from millrace.errors import CommandError
from millrace.speech import harmless

COMMANDS = {  # name: (module, what it does)
    "up": ("millrace.commands.up", "start the stack on this machine"),
    "down": ("millrace.commands.down", "stop it and leave nothing behind"),
    "status": ("millrace.commands.status", "show what runs"),
    "logs": ("millrace.commands.logs", "show what it writes"),
    "chat": ("millrace.commands.chat", "talk to the running model in the terminal"),
    "generate": ("millrace.commands.generate", "complete one prompt, without a server"),
    "models": ("millrace.commands.models", "list the models that are served"),
    "convert": ("millrace.commands.convert", "make a model folder of a GGUF file"),
    "compare": ("millrace.commands.compare", "say where two backends, dtypes or levels part"),
    "doctor": ("millrace.commands.doctor", "check this machine"),
    "bench": ("bench.load", "measure a running server under load"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    _open_standard_streams()
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else "--help"
    if name not in (*COMMANDS, "-h", "--help", "help", "--version"):
        print(f"millrace: unknown command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    return _run(name, argv[1:])


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: millrace <command> [options]", "", *lines])


def _run(name: str, argv: list[str]) -> int:
    try:
        status = _status(name, argv)
        sys.stdout.flush()  # here, where a full disk is one line
        return status
    except CommandError as error:
        print(harmless(f"millrace: {error}"), file=sys.stderr)  # a server may have worded it
        return 1
    except ModuleNotFoundError as error:  # installed without extras, or with those of one tier
        print(f"millrace {name}: {error}: pip install 'millrace[all]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at exit
        return 141
    except PermissionError as error:  # another user's files
        print(f"millrace: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"millrace: {error.strerror}: the output is cut", file=sys.stderr)
        return 1


def _status(name: str, argv: list[str]) -> int:
    if name == "--version":
        print(importlib.import_module("importlib.metadata").version("millrace"))
        return 0
    if name not in COMMANDS:
        print(usage())
        return 0
    path, what = COMMANDS[name]
    module = importlib.import_module(path)  # a Ctrl-C may come as early as this
    if hasattr(module, "main"):
        return int(module.main(argv))
    parser = argparse.ArgumentParser(prog=f"millrace {name}", description=what)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(argv)))


def _open_standard_streams() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next file opened would take its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:  # over the descriptor, which a fork may turn elsewhere
            setattr(sys, name, open(descriptor, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # models write what not every terminal can


if __name__ == "__main__":
    sys.exit(main())
