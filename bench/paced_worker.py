"""The worker's server over a paced runner; `bench.tier_budget` and `bench.fairness` run it.

Prints one JSON line at its end: tokens, and the gaps between steps.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

import zmq

from bench.load import percentile
from bench.paced import PacedModel, PacedRunner
from common.metrics import new_registry
from protos import worker as wire
from worker.metrics import WorkerMetrics
from worker.server import WorkerServer


def gap_report(runner: PacedRunner, name: str) -> dict[str, float | str]:
    """Return tokens and gaps between steps in milliseconds."""
    gaps = runner.gaps_s[20:]  # the first ones belong to the filling of the batch
    return {
        "name": name,
        "tokens": runner.num_tokens,
        "gap_p50_ms": percentile(gaps, 0.5) * 1e3,
        "gap_p99_ms": percentile(gaps, 0.99) * 1e3,
        "gap_max_ms": max(gaps, default=0.0) * 1e3,
    }


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="host:port of the registry")
    parser.add_argument("folder", type=Path)
    parser.add_argument("step_ms", type=float)
    args = parser.parse_args()
    model = PacedModel(args.folder, args.step_ms / 1e3)
    server = WorkerServer(
        context=zmq.Context.instance(),
        engine=args.engine,
        hello=wire.Hello("bench", "paced", "paced", "bench"),
        load=lambda: model,  # type: ignore[arg-type, return-value]
        kv_cache_bytes=lambda _: 1 << 30,
        metrics=WorkerMetrics(new_registry()),
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    server.run()
    print(json.dumps(gap_report(model.runner(), "tiers")), flush=True)


if __name__ == "__main__":
    main()
