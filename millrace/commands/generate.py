"""`millrace generate`: completes one prompt in this process, streaming it to standard output."""

from __future__ import annotations

import argparse
import sys

from common import logs
from common.errors import ServiceError
from millrace import loading
from millrace.arguments import amount
from millrace.errors import CommandError
from millrace.llm import LLM
from millrace.params import SamplingParams
from millrace.prompts import Prompt
from millrace.speech import Speech, typed

MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `generate`."""
    option = parser.add_argument
    option("prompt", help="the text to go on with; - reads standard input")
    option("--chat", action="store_true", help="the prompt is a message, not a beginning")
    option("--model", metavar="DIR", help="folder, or Hugging Face name (default: the demo model)")
    loading.add_arguments(parser)
    option("--max-tokens", type=int, metavar="N", help=f"default: {MAX_TOKENS}, or the context")
    option("--temperature", type=amount)
    option("--seed", type=int)
    option("--stop", action="append", default=[], metavar="TEXT")


def run(args: argparse.Namespace) -> int:
    """Print the answer as it comes; return the exit status."""
    logs.setup("millrace", "warning")  # what is wrong, or slow
    text = typed(sys.stdin.read) if args.prompt == "-" else args.prompt
    speech = Speech()
    prompt: Prompt = {"messages": [{"role": "user", "content": text}]} if args.chat else text
    options, most = loading.options_of(args), args.max_tokens
    if most is None:  # who asked for nothing has not asked for too much
        most = min(MAX_TOKENS, options.get("max_model_len") or MAX_TOKENS)
    try:
        params = SamplingParams(
            max_tokens=most,
            temperature=args.temperature,
            seed=args.seed,
            stop=args.stop,
        )
        with LLM(args.model, **options) as llm:
            for delta in llm.stream(prompt, params):
                speech.add(delta.outputs[0].reasoning, delta.outputs[0].text)
    except ServiceError as error:
        raise CommandError(error.message) from error
    finally:
        speech.close()
    print()
    return 0
