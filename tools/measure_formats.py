"""What each weight format costs in accuracy: exact answers of the demo model, logits of a folder.

python -m tools.measure_formats --cases 20 [--golden DIR]

Exact answers are counted on held-out questions, the same for every format. Of a folder with a
golden.json the last logits of every prompt are compared with those of the float32 kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from millrace import LLM, SamplingParams
from tools.demo_conversations import EXAMINATION_SEED, questions
from worker.build import load_model
from worker.compare import note_all

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, keys float32": {"dtype": "bfloat16", "kv_cache_dtype": "float32"},
    "float16": {"dtype": "float16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}


def main() -> None:
    """Print one line per format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20, help="questions per domain and language")
    parser.add_argument("--golden", type=Path, action="append", default=[], metavar="DIR")
    args = parser.parse_args()
    cases = [(told, answer) for _, _, told, answer in questions(args.cases, EXAMINATION_SEED)]
    sys.stdout.write(f"demo model: exact answers of {len(cases)}\n")
    for name, options in FORMATS.items():
        sys.stdout.write(f"  {name:24} {exact_answers(cases, options)}\n")
    for folder in args.golden:
        sys.stdout.write(f"{folder.name}: rms of the logits' error over their spread; same first\n")
        exact = last_logits(folder, FORMATS["float32"])
        for name, options in FORMATS.items():
            found = last_logits(folder, options)
            error = np.sqrt(((found - exact) ** 2).mean()) / exact.std()
            same = (found.argmax(axis=1) == exact.argmax(axis=1)).sum()
            sys.stdout.write(f"  {name:24} {error:.5f}  {same}/{len(exact)}\n")


def exact_answers(cases: list[tuple[list[Any], str]], options: dict[str, Any]) -> int:
    """Ask the demo model everything, greedily; return how many answers are the expected ones."""
    greedy = SamplingParams(temperature=0, max_tokens=128)
    with LLM(**options) as llm:
        outputs = llm.chat([messages for messages, _ in cases], greedy)
    given = [output.outputs[0].text for output in outputs]
    return sum(text == expected for text, (_, expected) in zip(given, cases, strict=True))


def last_logits(folder: Path, options: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits [prompts, V] after every prompt of golden.json."""
    loaded = load_model(folder, **options)
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    return np.stack([note_all(loaded, prompt["ids"])["logits", -1][-1] for prompt in prompts])


if __name__ == "__main__":
    main()
