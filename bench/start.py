"""From the start of a process to its first token, and what it then holds of memory.

`python -m bench.start --shape qwen2-1.5b --quantization int8 [--json]`. A first process packs the
weights if nobody has; the second one is measured: interpreter, imports, mapping and checking the
weights, warm-up, one prompt of 16 tokens. Memory is what the kernel says is resident after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.random_model import SHAPES, write_random_model
from bench.random_tokenizer import write_random_tokenizer
from bench.rows import line
from worker.kernels.library import default_cache_dir

CODE = """
import sys, time
from millrace import LLM, SamplingParams
imported = time.time()
with LLM(sys.argv[1], quantization=sys.argv[2], kv_cache_memory="256MiB") as llm:
    opened = time.time()
    params = SamplingParams(max_tokens=16, ignore_eos=True, seed=1)
    stream = llm.stream({"prompt_token_ids": list(range(16))}, params)
    next(stream)
    first = time.time()
    for _ in stream:
        pass
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    kib = [int(status[name].split()[0]) for name in ("VmRSS", "RssAnon", "RssFile")]
print(imported, opened, first, *kib)
"""
"""What a user would write, and two looks at the clock and one at the memory."""


def main() -> None:
    """Print one row, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-1.5b")
    parser.add_argument("--folder", type=Path, help="where the random model is, or goes")
    parser.add_argument("--quantization", choices=["none", "int8", "int4"], default="none")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = args.folder or default_cache_dir() / "bench" / args.shape
    write_random_tokenizer(write_random_model(folder, args.shape))
    first = one_start(folder, args.quantization)
    facts = {"shape": args.shape, "quantization": args.quantization}
    row = facts | {"first_start_s": first["first_token_s"]} | one_start(folder, args.quantization)
    print(json.dumps(row) if args.json else line(row))


def one_start(folder: Path, quantization: str) -> dict[str, Any]:
    """Start a process, wait for its end; return seconds since its start and MiB."""
    began = time.time()
    command = [sys.executable, "-c", CODE, str(folder), quantization]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    imported, opened, first, *kib = (float(word) for word in done.stdout.split()[-6:])
    names = ("resident_mib", "own_mib", "file_mib")
    return {
        "imports_s": round(imported - began, 2),
        "open_s": round(opened - imported, 2),
        "first_token_s": round(first - began, 2),
        **{name: round(size / 1024) for name, size in zip(names, kib, strict=True)},
    }


if __name__ == "__main__":
    main()
