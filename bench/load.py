"""Loads a running server, and perhaps a second one, and tells rates and waits.

`millrace bench`, or `python -m bench.load`: keeps `--streams` requests in flight until `--requests`
are done and prints tokens per second, time to first token and the gaps between arrivals. With
`--vs` the same load, same seeds, goes to a second server right after the first, so that the figures
are a ratio from one run.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from typing import Any

from bench.sse_client import Outcome, stream
from common.settings import inherited
from millrace.arguments import count
from millrace.errors import CommandError
from millrace.http import Server
from millrace.speech import harmless

PROMPTS = (
    "What is {a} + {b}?",
    "Count from {a} to {b}.",
    "Repeat: the mill turns {a} times",
    "What is Millrace?",
    "Hello, my name is Ada{a}.",
)


def percentile(values: list[float], part: float) -> float:
    """Return the `part` (0..1) quantile of `values` by nearest rank; NaN when empty."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(part * len(ranked)) - 1)] if ranked else math.nan


def first_model(url: str, key: str) -> str:
    """Return the first served model's id; raise CommandError when there is none."""
    return str(Server(url, key).models()[0]["id"])


def chat(model: str, number: int, max_tokens: int, exact: bool) -> dict[str, Any]:
    """Return request `number` of the load; equal on every run."""
    text = PROMPTS[number % len(PROMPTS)].format(a=number % 89 + 1, b=number % 97 + 3)
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "seed": number,
    }
    return {**body, "ignore_eos": True} if exact else body


async def run(args: argparse.Namespace, url: str) -> dict[str, float]:
    """Send the load to one server and return its figures."""
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith("http://"):
        raise CommandError("a load goes to http:// addresses alone")
    model = args.model or first_model(url, args.key)
    places = asyncio.Semaphore(args.streams)

    async def one(number: int) -> Outcome:
        async with places:
            body = chat(model, number, args.max_tokens, not args.natural)
            return await stream(f"{url}/v1/chat/completions", body, args.key)

    started = time.monotonic()
    outcomes = await asyncio.gather(*(one(number) for number in range(args.requests)))
    wall_s = time.monotonic() - started
    good = [o for o in outcomes if o.ok]
    if bad := [o for o in outcomes if not o.ok]:
        said = harmless(failure(bad[0]))
        print(f"millrace bench: {url}: first failure: {said}", file=sys.stderr)
    gaps = [b - a for o in good for a, b in zip(o.arrivals, o.arrivals[1:], strict=False)]
    ttft = [o.ttft_s for o in good]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "tokens_per_s": sum(o.num_tokens for o in good) / wall_s,
        "ttft_p50_ms": percentile(ttft, 0.5) * 1e3,
        "ttft_p95_ms": percentile(ttft, 0.95) * 1e3,
        "gap_p50_ms": percentile(gaps, 0.5) * 1e3,
        "gap_p99_ms": percentile(gaps, 0.99) * 1e3,
    }


def failure(outcome: Outcome) -> str:
    """Say how a stream failed."""
    said = outcome.tail.decode(errors="replace").strip()
    if outcome.status == 0:
        return "the connection ended before there was a reply"
    if outcome.status == 200 and '{"error":' not in said:
        return "the connection ended in the middle of a reply"
    return f"status {outcome.status} {said}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 1 when any request failed."""
    parser = argparse.ArgumentParser(prog="millrace bench", description=__doc__.split("\n")[0])
    url = "http://127.0.0.1:8000"
    parser.add_argument("--url", default=url, help=f"a server (default: {url})")
    parser.add_argument("--vs", help="a second server, measured right after with the same load")
    parser.add_argument("--model", help="served name (default: the first the server lists)")
    key = inherited({}).get("OPENAI_API_KEY", "")
    parser.add_argument("--key", "--api-key", default=key, help="default: $OPENAI_API_KEY")
    parser.add_argument("--streams", type=count, default=32, help="requests in flight")
    parser.add_argument("--requests", type=count, default=128)
    parser.add_argument("--max-tokens", type=count, default=48)
    parser.add_argument("--natural", action="store_true", help="let answers end by themselves")
    args = parser.parse_args(argv)
    reports = []  # a list: a server beside itself tells how far figures of one run differ
    for url in (args.url, args.vs) if args.vs else (args.url,):
        try:
            reports.append(asyncio.run(run(args, url)))
        except (OSError, ValueError, CommandError) as error:
            why = harmless(str(error))  # a server may have worded it
            print(f"millrace bench: no load for {url}: {why}", file=sys.stderr)
            return 2
    for name in reports[0]:
        values = [report[name] for report in reports]
        ratio = f"   ratio {values[0] / values[1]:.2f}" if len(values) > 1 and values[1] else ""
        print(f"{name:>14}  " + "  ".join(f"{value:12.1f}" for value in values) + ratio)
    return int(any(report["failed"] for report in reports))


if __name__ == "__main__":
    sys.exit(main())
