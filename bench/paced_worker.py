"""`python -m bench.paced_worker ENGINE FOLDER STEP_MS`: the worker's server over a paced runner.

Prints one JSON line at its end: tokens, and the gaps between steps.
"""

from __future__ import annotations

import json
import signal
import sys
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
    engine, folder, step_ms = sys.argv[1:4]
    model = PacedModel(Path(folder), float(step_ms) / 1e3)
    server = WorkerServer(
        context=zmq.Context.instance(),
        engine=engine,
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
