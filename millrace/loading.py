"""How a model is loaded: one list for the keywords of `LLM` and for the options of the commands.

Knows names and their words on the command line. What they mean is said by the worker's settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import cast

from millrace.arguments import count, whole
from millrace.options import ModelOptions
from worker.kernels.library import LEVEL_NAMES
from worker.memory import parse_size

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
VARIABLES = {  # option: variable of docker-compose.yml
    "device": "DEVICE",
    "dtype": "DTYPE",
    "quantization": "QUANTIZATION",
    "kernel_level": "KERNEL_LEVEL",
    "threads": "THREADS",
    "max_model_len": "MAX_MODEL_LEN",
    "kv_cache_dtype": "KV_CACHE_DTYPE",
    "kv_cache_memory": "KV_CACHE_MEMORY",
    "host_kv_memory": "HOST_KV_MEMORY",
    "kv_layout": "KV_LAYOUT",
    "num_guesses": "NUM_GUESSES",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each keyword; what is left out stays None."""
    option = parser.add_argument
    option("--device", choices=["cpu", "cuda"], help="where the model runs (default: cpu)")
    option("--dtype", type=dtype, help="weights: auto, bf16, f16, f32 (default: auto)")
    option(
        "--quantization", choices=["none", "int8", "int4"], help="of the linears (default: none)"
    )
    option(
        "--kernel-level",
        choices=LEVEL_NAMES,
        help="instructions on the CPU (default: the best there are)",
    )
    option("--threads", type=count, metavar="N", help="that compute (default: one a core)")
    option("--max-model-len", type=count, metavar="L", help="longest sequence in tokens")
    option("--kv-cache-dtype", type=kv_dtype, help="auto, bf16, f32 (default: auto)")
    option("--kv-cache-memory", type=size, metavar="SIZE", help="of one worker, e.g. 2GiB "
           "(default: 1/4 of the free memory, at most 4GiB)")  # fmt: skip
    option("--host-kv-memory", type=size, metavar="SIZE", help="host memory for evicted KV "
           "(default: none)")  # fmt: skip
    option("--kv-layout", choices=["block", "slot", "static"], help="(default: block)")
    option("--num-guesses", type=whole, metavar="N", help="tokens guessed a step from what a text "
           "said before, and verified (default: none)")  # fmt: skip
    option("--deterministic", action="store_true", help="the same bits however prompts are cut and "
           "rows are batched: always so, taken for those who ask")  # fmt: skip


def options_of(args: argparse.Namespace) -> ModelOptions:
    """Return the keywords that were given."""
    given = {name: getattr(args, name) for name in VARIABLES}
    return cast(ModelOptions, {name: value for name, value in given.items() if value is not None})


def dtype(text: str) -> str:
    """Return the long name of a type of weights; raise ArgumentTypeError for anything else."""
    return _long_name(text, DTYPES)


def kv_dtype(text: str) -> str:
    """Return the long name of a type of keys and values, likewise."""
    return _long_name(text, {"bf16": "bfloat16", "f32": "float32"})


def _long_name(text: str, names: Mapping[str, str]) -> str:
    if text not in ("auto", *names, *names.values()):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(['auto', *names])}")
    return names.get(text, text)


def size(text: str) -> str:
    """Return a number of bytes as it was given; raise ArgumentTypeError for anything else."""
    try:
        parse_size("size", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
