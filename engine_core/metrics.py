"""The engine's series: what schedulers report, and how long each request took in each phase.

The label `engine` is the number of the replica, as in vLLM, whose names are shown as aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from common.metrics import Aliases
from engine_core.replica import Fleet, Replica
from protos.worker import ITERATION_BUCKETS, Finished, SchedulerState

PHASE_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20,
    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
ALIASED = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions",
    "iteration_tokens_total", "cache_config_info", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "prefix_cache_queries",
    "prefix_cache_hits", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
)  # fmt: skip
ALIASES = {f"millrace_{name}": f"vllm:{name}" for name in ALIASED}
LABELS = ("engine",)


class PhaseTimes:
    """Histograms of the seconds that each request spent waiting, in prefill, in decode."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._phases = [
            Histogram(
                f"millrace_request_{phase}_time_seconds",
                f"Seconds of a request in {phase}",
                LABELS,
                buckets=PHASE_BUCKETS,
                registry=registry,
            )
            for phase in ("queue", "prefill", "decode")
        ]

    def observe(self, replica: Replica, row: Finished) -> None:
        """Count one end; requests that computed nothing have no phases."""
        if row.prefill_s == 0:
            return
        label = str(replica.number)
        seconds = (row.queue_s, row.prefill_s, row.decode_s)
        for histogram, value in zip(self._phases, seconds, strict=True):
            histogram.labels(label).observe(value)

    def forget(self, replica: Replica) -> None:
        """Drop the series of a lost replica: its number never comes again, new ones always do."""
        for histogram in self._phases:
            with suppress(KeyError):  # it may have ended no request
                histogram.remove(str(replica.number))


class FleetCollector(Collector):
    """Reads the schedulers' last heartbeats when it is scraped."""

    def __init__(self, fleet: Fleet, num_held: Callable[[], int]) -> None:
        self._fleet = fleet
        self._num_held = num_held

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        up = [(str(r.number), r, r.state) for r in self._fleet.ready() if r.state is not None]
        states = [(label, state) for label, _, state in up]
        yield from gauges(states, self._num_held())
        yield from counters(states)
        yield iteration_tokens(states)
        yield blocks(states)
        yield cache_config([(label, replica) for label, replica, _ in up])
        heartbeat = _gauge("engine_heartbeat_age_seconds", "Seconds since the scheduler reported")
        for label, replica, _ in up:
            heartbeat.add_metric([label], self._fleet.clock() - replica.heard_at)
        yield heartbeat
        replicas = GaugeMetricFamily("millrace_engine_replicas", "Replicas that are up")
        replicas.add_metric([], len(up))
        yield replicas


States = list[tuple[str, SchedulerState]]


def gauges(states: States, num_held: int) -> Iterator[Metric]:
    running = _gauge("num_requests_running", "Sequences that run")
    waiting = _gauge("num_requests_waiting", "Sequences that wait")
    paused = _gauge("num_requests_paused", "Sequences held back for slow readers")
    usage = _gauge("kv_cache_usage_perc", "Share of KV blocks in use, 1 = all")
    step_age = _gauge("engine_step_age_seconds", "Age of the step in flight, 0 = none")
    for label, state in states:
        running.add_metric([label], state.num_running)
        waiting.add_metric([label], state.num_waiting)
        paused.add_metric([label], state.num_paused)
        used = state.num_blocks - state.num_free_blocks
        usage.add_metric([label], used / state.num_blocks if state.num_blocks else 0.0)
        step_age.add_metric([label], state.step_age_s)
    if num_held:
        waiting.add_metric([""], num_held)  # of no replica: they wait for one
    yield from (running, waiting, paused, usage, step_age)


def counters(states: States) -> Iterator[Metric]:
    sources = {
        "num_preemptions": ("num_preemptions", "Sequences that gave up their blocks"),
        "engine_steps": ("num_steps", "Steps planned"),
        "engine_schedule_seconds": ("schedule_s", "Seconds spent planning and applying"),
        "engine_execute_seconds": ("execute_s", "Seconds spent waiting for workers"),
        "engine_prefill_tokens": ("num_prefill_tokens", "Known tokens computed"),
        "prefix_cache_queries": ("num_prefix_queries", "Tokens looked up in the prefix cache"),
        "prefix_cache_hits": ("num_prefix_hits", "Tokens found in the prefix cache"),
        "host_cache_hits": ("num_host_hits", "Tokens brought back from host memory"),
        "host_cache_losses": ("num_host_losses", "Tokens that host memory has lost"),
        "spec_decode_num_draft_tokens": ("num_guesses", "Tokens guessed"),
        "spec_decode_num_accepted_tokens": ("num_right_guesses", "Tokens guessed right"),
        "engine_decode_tokens": ("num_decode_tokens", "Tokens computed one at a time"),
    }
    for name, (field, text) in sources.items():
        family = CounterMetricFamily(f"millrace_{name}", text, labels=LABELS)
        for label, state in states:
            family.add_metric([label], getattr(state, field))
        yield family


def iteration_tokens(states: States) -> Metric:
    family = HistogramMetricFamily(
        "millrace_iteration_tokens_total", "Tokens of a step", labels=LABELS
    )
    bounds = [*(str(float(bucket)) for bucket in ITERATION_BUCKETS), "+Inf"]
    for label, state in states:
        total, rows = 0, []
        for bound, count in zip(bounds, state.iteration_tokens, strict=True):
            total += count
            rows.append((bound, total))
        family.add_metric([label], rows, state.num_prefill_tokens + state.num_decode_tokens)
    return family


def blocks(states: States) -> Metric:
    family = GaugeMetricFamily(
        "millrace_engine_kv_blocks", "KV blocks by state", labels=(*LABELS, "state")
    )
    for label, state in states:
        family.add_metric([label, "free"], state.num_free_blocks - state.num_cached_blocks)
        family.add_metric([label, "cached"], state.num_cached_blocks)
        family.add_metric([label, "used"], state.num_blocks - state.num_free_blocks)
    return family


def cache_config(replicas: list[tuple[str, Replica]]) -> Metric:
    labels = (*LABELS, "block_size", "num_gpu_blocks")
    family = GaugeMetricFamily(
        "millrace_cache_config_info", "Layout of the KV cache", labels=labels
    )
    for label, replica in replicas:
        if replica.facts is not None:
            size, count = replica.facts.facts.block_size, replica.facts.num_blocks
            family.add_metric([label, str(size), str(count)], 1)
    return family


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"millrace_{name}", text, labels=LABELS)


def register(
    registry: CollectorRegistry, fleet: Fleet, num_held: Callable[[], int] = lambda: 0
) -> None:
    """Put the fleet's series, and vLLM's names for them, into `registry`.

    `num_held`: the choices that wait for a replica.
    """
    registry.register(FleetCollector(fleet, num_held))
    registry.register(Aliases(registry, ALIASES))
