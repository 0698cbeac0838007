"""What a flood of one tenant does to another's wait: `python -m bench.fairness [--seconds 60]`.

The real tiers over a paced worker. Tenant b sends a short request every second, first without a, in
a batch of the same size: b itself keeps as many long rows running as there are seats beside its
short one, and none that wait. Then beside 64 long requests that tenant a keeps alive. Prints b's
time to first token.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load import first_model, percentile
from bench.sse_client import Outcome, stream
from bench.tiers import end_on_sigterm, tiers
from millrace.project import DEMO_MODEL

SEATS = 32
FLOOD = 64
LONG_TOKENS, SHORT_TOKENS = 300, 8
WARM_UP_S = 5.0
AIM = 2.0
LONG_PROMPT = "Tell me again, from the beginning, what the mill said to the river. " * 20


def request(model: str, text: str, max_tokens: int, seed: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{seed} {text}"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "seed": seed,
    }


@dataclass
class Load:
    """One run: who keeps how many long requests alive while b sends short ones."""

    url: str
    model: str
    seconds: float
    shorts: list[Outcome] = field(default_factory=list)
    num_long_tokens: int = 0
    num_failed: int = 0

    async def run(self, key: str, num_long: int) -> None:
        """Keep `num_long` requests of `key` alive; send b's short ones; wait for those."""
        floods = [asyncio.create_task(self._keep_alive(key, i)) for i in range(num_long)]
        await asyncio.sleep(WARM_UP_S)
        began = time.monotonic()
        sent = []
        for number in range(int(self.seconds)):
            await asyncio.sleep(max(0.0, began + number - time.monotonic()))
            sent.append(asyncio.create_task(self._short(number)))
        await asyncio.gather(*sent)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)

    async def _keep_alive(self, key: str, lane: int) -> None:
        number = 0
        while True:
            body = request(self.model, LONG_PROMPT, LONG_TOKENS, lane * 1000 + number)
            outcome = await stream(f"{self.url}/v1/chat/completions", body, key)
            self.num_failed += not outcome.ok
            self.num_long_tokens += outcome.num_tokens
            number += 1

    async def _short(self, number: int) -> None:
        body = request(self.model, "Hello", SHORT_TOKENS, 10**6 + number)
        outcome = await stream(f"{self.url}/v1/chat/completions", body, "key-b")
        self.num_failed += not outcome.ok
        self.shorts.append(outcome)


def key_file(folder: Path) -> Path:
    """Write the digests of both tenants' keys."""
    path = folder / "keys"
    digests = [(hashlib.sha256(f"key-{t}".encode()).hexdigest(), t) for t in ("a", "b")]
    path.write_text("".join(f"{digest} {tenant}\n" for digest, tenant in digests))
    return path


def run(model: Path, step_ms: float, seconds: float, key: str, num_long: int) -> Load:
    """Start the tiers, measure one load, stop them."""
    with tempfile.TemporaryDirectory() as folder:
        keys = key_file(Path(folder))
        with tiers(model, step_ms, SEATS, API_KEY_FILE=keys) as stack:
            load = Load(stack.url, first_model(stack.url, key), seconds)
            asyncio.run(load.run(key, num_long))
    if load.num_failed:
        raise RuntimeError(f"{load.num_failed} requests failed")
    return load


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    args = parser.parse_args()
    end_on_sigterm()
    print(f"{SEATS} seats, {args.step_ms:g} ms a step, a short request a second\n")
    print("| b's short requests beside | p50 ms | p95 ms | long tokens/s |\n|---|---|---|---|")
    tails = []
    for name, key, num_long in (
        (f"{SEATS - 1} long rows of its own, none waits", "key-b", SEATS - 1),
        (f"{FLOOD} long requests of a", "key-a", FLOOD),
    ):
        load = run(args.model, args.step_ms, args.seconds, key, num_long)
        waits_s = [outcome.ttft_s for outcome in load.shorts]
        tails.append(percentile(waits_s, 0.95))
        rate = load.num_long_tokens / (args.seconds + WARM_UP_S)
        p50, p95 = percentile(waits_s, 0.5) * 1e3, tails[-1] * 1e3
        print(f"| {name} | {p50:.0f} | {p95:.0f} | {rate:.0f} |", flush=True)
    print(f"\np95 beside the flood over p95 without: {tails[1] / tails[0]:.2f} (aim: ≤ {AIM:g})")


if __name__ == "__main__":
    main()
