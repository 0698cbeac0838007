"""`python -m tests.fuzz --requests 20000`: hostile requests over all routes at a live stack.

Nothing may answer 5xx, a good request must work all along, no tier may die, and at the end no
sequence and no page may be held. Memory of every process is printed; growth is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from millrace.project import DEMO_MODEL
from tests.fuzz.hostile import MODEL, SAID, Request, make
from tests.support.online import Online

NUM_CLIENTS = 16
GROWTH_MIB = 64
GOOD = {"model": MODEL, "messages": SAID, "max_tokens": 8, "temperature": 0}


def resident_mib(stack: Online) -> dict[str, float]:
    """Return the resident memory of every process of the stack, its children with it."""
    found: dict[str, float] = {}
    for replica in stack.state().replicas:
        if replica.process is not None:
            found[replica.name] = family_kib(replica.process.pid) / 1024
    return found


def family_kib(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    own = next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(family_kib(int(child)) for child in children)


async def send(http: httpx.AsyncClient, request: Request) -> tuple[int, str]:
    """Return status and text; 0 when the connection was closed without a reply."""
    try:
        async with http.stream(
            request.method, request.path, content=request.content, headers=request.headers
        ) as reply:
            if request.leaves:
                async for _ in reply.aiter_bytes():
                    break
                return reply.status_code, ""
            return reply.status_code, (await reply.aread()).decode("utf-8", "replace")
    except httpx.RemoteProtocolError:
        return 0, ""


async def work(url: str, requests: list[Request], seen: Counter[int], bad: list[str]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for number, request in enumerate(requests):
            status, text = await send(http, request)
            seen[status] += 1
            if status >= 500 or "event: error" in text and '"internal"' in text:
                bad.append(f"{status} {request.method} {request.path} {request.content[:2000]!r}"
                           f" {request.headers} -> {text[:600]}")  # fmt: skip
            if number % 50 == 0:
                reply = await http.post("/v1/chat/completions", json=GOOD)
                if reply.status_code != 200:
                    bad.append(f"a good request: {reply.status_code} {reply.text[:600]}")


async def throw(url: str, rng: random.Random, count: int) -> tuple[Counter[int], list[str]]:
    """Send `count` requests over a few connections; return statuses and what was wrong."""
    requests = [make(rng) for _ in range(count)]
    seen: Counter[int] = Counter()
    bad: list[str] = []
    parts = [requests[k::NUM_CLIENTS] for k in range(NUM_CLIENTS)]
    await asyncio.gather(*(work(url, part, seen, bad) for part in parts))
    return seen, bad


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as folder:
        stack = Online(Path(folder), DEMO_MODEL, "--served-model-name", MODEL)
        try:
            rng, pids = random.Random(asked.seed), processes(stack)
            seen, bad = asyncio.run(throw(stack.url, rng, asked.requests // 5))
            before, began = resident_mib(stack), time.monotonic()
            more, worse = asyncio.run(throw(stack.url, rng, asked.requests - asked.requests // 5))
            took_s = time.monotonic() - began
            stack.wait_until_idle()
            after = resident_mib(stack)
            seen, bad = seen + more, bad + worse
            say(f"{seen.total()} requests, {more.total() / took_s:.0f} a second: ")
            say(f"{dict(sorted(seen.items()))}\n")
            for name in before:
                say(f"{name:24} {before[name]:7.1f} MiB -> {after[name]:7.1f} MiB\n")
                if after[name] - before[name] > GROWTH_MIB:
                    bad.append(f"{name} has grown by {after[name] - before[name]:.0f} MiB")
            if processes(stack) != pids:
                bad.append("a process has died")
        finally:
            stack.close()
    say("".join(f"BAD {line}\n" for line in bad[:20]) or "nothing bad\n")
    sys.exit(1 if bad else 0)


def processes(stack: Online) -> dict[str, int]:
    return {r.name: r.process.pid for r in stack.state().replicas if r.process is not None}


if __name__ == "__main__":
    main()
