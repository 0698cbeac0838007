"""`millrace compare`: computes one prompt twice and says where the two part, layer by layer.

A side is a list of `key=value`: model, dtype, kernel_level, quantization, kv_cache_dtype. What is
left out is as a server would choose it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from common import logs
from common.model_folder import ModelFolderError
from millrace.errors import CommandError
from millrace.project import DEMO_MODEL, model_folder
from protos.columns import unpack
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.tokenizer import load_tokenizer
from worker.build import LoadedModel, load_model
from worker.compare import Difference, differences, note_all

KEYS = ("model", "dtype", "kernel_level", "quantization", "kv_cache_dtype")
REFERENCE = "kernel_level=reference,dtype=float32"
PROMPT = "The mill turns as long as the river runs, and the river runs all year."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    option = parser.add_argument
    option("--model", default=DEMO_MODEL, metavar="DIR", help="(default: the demo)")
    option("--left", default=REFERENCE, metavar="SIDE", help=f"(default: {REFERENCE})")
    option("--right", default="", metavar="SIDE", help="(default: as a server would compute)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--prompt", default=PROMPT, metavar="TEXT")
    either.add_argument("--token-ids", metavar="IDS", help="comma list, instead of a prompt")
    option("--all", action="store_true", help="show every tensor, not only each layer's worst")
    option(
        "--tolerance", type=float, default=0.05, metavar="T",
        help="largest error over largest size that is allowed (default: 0.05)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print a table; return 1 when any tensor is further off than the tolerance."""
    logs.setup("millrace", "error")
    if not args.tolerance >= 0:
        raise CommandError(f"--tolerance is {args.tolerance:g}, it must be 0 or more")
    try:
        left, right = load(args.model, args.left), load(args.model, args.right)
        check_vocabularies(left, right)
        token_ids = ids_of(args)
        found = list(differences(note_all(left, token_ids), note_all(right, token_ids)))
    except (ModelFolderError, ValueError, OSError, MemoryError) as error:
        raise CommandError(str(error)) from error
    print(f"left   {left.backend.fingerprint}\nright  {right.backend.fingerprint}")
    print(f"tokens {len(token_ids)}\n")
    print(table(found if args.all else worst_of_layers(found), args.tolerance))
    if wild := next((one for one in found if not one.is_finite), None):
        print(f"\nnot all numbers are finite, first in {place(wild)}")
    parted = next((one for one in found if not one.max_rel <= args.tolerance), None)
    if parted is None:
        print(f"\nthey agree within {args.tolerance:g}")
        return 0
    print(f"\nthey part at {place(parted)}: {parted.max_rel:.3g} against {args.tolerance:g}")
    return 1


def load(model: str | Path, side: str) -> LoadedModel:
    """Load one side; raise ValueError for a key that is not there, or twice."""
    pairs = [part.partition("=")[::2] for part in side.split(",") if part]
    for key, _ in pairs:
        if key not in KEYS:
            raise ValueError(f"{key!r} of {side!r} is unknown, allowed: {', '.join(KEYS)}")
    if len(wanted := dict(pairs)) < len(pairs):
        raise ValueError(f"a key stands twice in {side!r}")
    folder = model_folder(wanted.pop("model", model))
    return load_model(folder, **wanted)  # type: ignore[arg-type]  # the keys are those of strings


def check_vocabularies(left: LoadedModel, right: LoadedModel) -> None:
    """Raise ValueError for models that have no ids, and no logits, in common."""
    sizes = left.config.vocab_size, right.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the left model has a vocabulary of {sizes[0]} tokens, the right one of {sizes[1]}: "
            "the same ids say other things to them"
        )


def ids_of(args: argparse.Namespace) -> list[int]:
    """Return the token ids of the command line; raise ValueError."""
    if args.token_ids is not None:
        try:
            return [int(part) for part in args.token_ids.split(",")]
        except ValueError as error:
            raise ValueError(f"--token-ids {args.token_ids!r} is no comma list of ids") from error
    tokenizer = load_tokenizer(read_model_folder(model_folder(args.model)))
    if tokenizer is None:
        raise ValueError(f"{args.model} has no tokenizer: give --token-ids")
    return unpack(tokenizer.encode(args.prompt, add_special_tokens=True)).tolist()


def worst_of_layers(found: Sequence[Difference]) -> list[Difference]:
    """Return the largest difference of each layer, and of what stands before and after them."""
    return [max(group, key=lambda one: one.max_rel) for _, group in groupby(found, _layer)]


def _layer(one: Difference) -> int:
    return one.layer


def table(rows: Sequence[Difference], tolerance: float) -> str:
    """Return one line a row; those beyond the tolerance are marked."""
    lines = [f"  {'layer':<6} {'name':<12} {'max abs':>10} {'max rel':>10} {'cosine':>12}"]
    for one in rows:
        mark = " " if one.max_rel <= tolerance else "*"
        layer = "-" if one.layer < 0 else str(one.layer)
        lines.append(
            f"{mark} {layer:<6} {one.name:<12} {one.max_abs:>10.3g} {one.max_rel:>10.3g} "
            f"{one.cosine:>12.9f}"
        )
    return "\n".join(lines)


def place(one: Difference) -> str:
    return one.name if one.layer < 0 else f"{one.name} of layer {one.layer}"
