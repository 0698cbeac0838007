"""`millrace models`: what the running server serves, else what is embedded here."""

from __future__ import annotations

import argparse

from millrace.project import DEMO_MODEL, DEMO_NAME, add_server_arguments, project, server
from millrace.speech import harmless


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `models`."""
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print one model a line; return the exit status."""
    if args.url is None and project(args).state.running() is None:
        present = (DEMO_MODEL / "config.json").exists()
        print(f"{DEMO_NAME}  {DEMO_MODEL if present else 'absent'}  (embedded; nothing is running)")
        return 0
    for model in server(args).models():
        length = model.get("max_model_len")
        print(harmless(model["id"] + (f"  {length} tokens" if length else "")))
    return 0
