"""What a token costs in each tier: `python -m bench.tier_budget [--streams 256] [--step-ms 10]`.

The real gateway, tokenizer service, engine front and scheduler over a paced worker (one token a
stream and step, no arithmetic). CPU time is what the kernel counted for each process between two
looks, over the tokens the client received in between. Then the same load in one threaded process,
for the gaps between steps. Cores are shared: CPU µs compare between machines, wall times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import time
from pathlib import Path

from bench.load import chat, first_model, percentile
from bench.sse_client import Outcome, stream
from bench.tiers import Stack, end_on_sigterm, one_process, tiers
from millrace.project import DEMO_MODEL

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
AIMS_US = {"front": 2.8, "tokenizer": 10.0, "gateway": 15.0}
SETTLE_S = 2.0
CHUNK_BYTES = 290
FLOOR_STEPS = 200


def cpu_s(pid: int) -> float:
    """Return user and system seconds of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def child_of(pid: int) -> int:
    """Return the one child process of `pid`: the front's scheduler."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def served_model(stack: Stack) -> str:
    """Return the name that requests must carry."""
    return first_model(stack.url, "") if "gateway" in stack.processes else "bench"


def processor_s(stack: Stack) -> dict[str, float]:
    """Return the CPU seconds of every role but the worker's."""
    pids = {role: process.pid for role, process in stack.processes.items() if role != "worker"}
    if "front" in pids:
        pids["scheduler"] = child_of(pids["front"])
    return {role: cpu_s(pid) for role, pid in pids.items()}


async def load(url: str, model: str, streams: int, tokens: int) -> list[Outcome]:
    """Run the streams, all at once."""
    bodies = [chat(model, number, tokens, exact=True) for number in range(streams)]
    return await asyncio.gather(*(stream(f"{url}/v1/chat/completions", b) for b in bodies))


def measure(stack: Stack, streams: int, tokens: int) -> tuple[dict[str, float], dict[str, float]]:
    """Warm up, measure, stop; return CPU µs per token by role, and the figures of the run."""
    model = served_model(stack)
    asyncio.run(load(stack.url, model, streams, 20))
    time.sleep(SETTLE_S)
    before = processor_s(stack)
    outcomes = asyncio.run(load(stack.url, model, streams, tokens))
    spent_s = {role: s - before[role] for role, s in processor_s(stack).items()}
    printed = stack.stop()
    received = sum(o.num_tokens for o in outcomes)
    if any(not o.ok for o in outcomes):
        raise RuntimeError(f"{sum(not o.ok for o in outcomes)} of {streams} streams failed")
    first = min(o.arrivals[0] for o in outcomes)
    wall_s = max(o.arrivals[-1] for o in outcomes) - first
    figures = {"tokens_per_s": received / wall_s}
    figures |= {k: v for k, v in json.loads(printed).items() if k.startswith("gap")}
    figures["ttft_p50_ms"] = percentile([o.ttft_s for o in outcomes], 0.5) * 1e3
    return {role: s / received * 1e6 for role, s in spent_s.items()}, figures


def write_floor_us(streams: int, step_s: float) -> float:
    """Return CPU µs of one bare socket write of a chunk, paced like the load: the gateway's floor.

    It buys nothing but the system call, and differs by a factor of two between machines.
    """
    door = socket.create_server(("127.0.0.1", 0), backlog=streams)
    pairs = [
        (socket.create_connection(door.getsockname()), door.accept()[0]) for _ in range(streams)
    ]
    spent_s, due = 0.0, time.monotonic()
    for _ in range(FLOOR_STEPS):
        begin = time.process_time()
        for writer, _ in pairs:
            writer.send(b"x" * CHUNK_BYTES)
        spent_s += time.process_time() - begin
        for _, reader in pairs:
            reader.recv(1 << 16)
        due += step_s
        time.sleep(max(0.0, due - time.monotonic()))
    for pair in pairs:
        for end in pair:
            end.close()
    door.close()
    return spent_s / (FLOOR_STEPS * streams) * 1e6


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    args = parser.parse_args()
    end_on_sigterm()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{args.streams} streams, 1 token per {args.step_ms:g} ms, {args.tokens} tokens each\n"
    )
    with tiers(args.model, args.step_ms, args.streams) as stack:
        apart, with_tiers = measure(stack, args.streams, args.tokens)
    with one_process(args.model, args.step_ms) as stack:
        together, alone = measure(stack, args.streams, args.tokens)
    print("| process | CPU µs per token | aim |\n|---|---|---|")
    for role, cost_us in {**apart, **together}.items():
        print(f"| {role} | {cost_us:.1f} | {AIMS_US.get(role, '')} |")
    floor_us = write_floor_us(args.streams, args.step_ms / 1e3)
    print(f"| one bare socket write a token (the gateway's floor here) | {floor_us:.1f} | |")
    print("\n| | four tiers | one threaded process |\n|---|---|---|")
    for name, value in with_tiers.items():
        print(f"| {name} | {value:.2f} | {alone[name]:.2f} |")


if __name__ == "__main__":
    main()
