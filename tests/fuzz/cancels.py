"""`python -m tests.fuzz.cancels --requests 10000`: streams ended at random states, all tiers.

Each is read to its end, left after some events, cancelled by id, or cut by its deadline. At the end
no tier may hold a stream, a choice, a sequence or a page.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from millrace.project import DEMO_MODEL
from tests.fuzz.hostile import MODEL
from tests.support.online import Online
from tests.support.stack import eventually

NUM_CLIENTS = 64
ENDS = ("read", "leave", "cancel", "deadline")
WORDS = "one two three four five six seven eight nine ten ".split()
GAUGES = {
    ("api-gateway", 8001): ("millrace_gateway_active_streams",),
    ("tokenizer-service", 7101): (
        "millrace_tokenizer_pending_requests",
        "millrace_tokenizer_live_streams",
        "millrace_tokenizer_replaying_streams",
        "millrace_tokenizer_held_streams",
    ),
    ("engine-core", 7201): (
        "millrace_num_requests_running",
        "millrace_num_requests_waiting",
        "millrace_num_requests_paused",
        "millrace_kv_cache_usage_perc",
    ),
}


def make(rng: random.Random) -> tuple[str, int, dict[str, Any]]:
    """Return how a request ends, after how many events, and its body."""
    end, most = rng.choice(ENDS), rng.choice((1, 8, 40, 200))
    sent = {
        "model": MODEL,
        "prompt": " ".join(rng.choices(WORDS, k=rng.choice((1, 10, 100)))),
        "max_tokens": most,
        "ignore_eos": True,
        "n": rng.choice((1, 1, 2)),
        "stream": True,
        "seed": rng.randrange(2**32),
    }
    if end == "deadline":
        sent["timeout_ms"] = rng.choice((1, 20, 100))
    return end, rng.randrange(most + 1), sent


async def run(http: httpx.AsyncClient, rng: random.Random, seen: Counter[str]) -> None:
    end, events, sent = make(rng)
    async with http.stream("POST", "/v1/completions", json=sent) as reply:
        seen[f"{end} {reply.status_code}"] += 1
        request_id = reply.headers.get("x-request-id")
        count = 0
        async for line in reply.aiter_lines():
            count += line.startswith("data: ")
            if count > events and end == "leave":
                return
            if count > events and end == "cancel":
                await http.post(f"/v1/requests/{request_id}/cancel")
                events = 1 << 30


async def throw(url: str, seed: int, count: int) -> Counter[str]:
    """Run `count` requests, NUM_CLIENTS at a time; return ends and statuses."""
    seen: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=2 * NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:

        async def client(number: int) -> None:
            rng = random.Random(seed * NUM_CLIENTS + number)
            for _ in range(count // NUM_CLIENTS):
                await run(http, rng, seen)

        await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))
    return seen


def held(stack: Online) -> dict[str, float]:
    """Return every gauge of things held that is not zero."""
    found: dict[str, float] = {}
    for (service, port), names in GAUGES.items():
        for line in stack.metrics(service, port):
            name, _, value = line.rpartition(" ")
            if name.partition("{")[0] in names and float(value):
                found[f"{service} {name}"] = float(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = Online(Path(folder), DEMO_MODEL, "--served-model-name", MODEL)
        try:
            seen = asyncio.run(throw(stack.url, asked.seed, asked.requests))
            sys.stdout.write(f"{seen.total()} requests: {dict(sorted(seen.items()))}\n")
            eventually(lambda: not held(stack))
            # A worker forgets rows with the next plan: after one more request, that one's at most.
            httpx.post(f"{stack.url}/v1/completions", json={"model": MODEL, "prompt": "a"})
            eventually(lambda: not held(stack))
            rows = [line for line in stack.metrics("worker", 7301)
                    if line.startswith("millrace_worker_sequences ")]  # fmt: skip
            assert rows and float(rows[0].split()[1]) <= 1, rows
        finally:
            stack.close()
    sys.stdout.write("no tier holds a stream, a choice, a sequence or a page\n")


if __name__ == "__main__":
    main()
