"""The gateway's series, the engine's gauges as the gateway hears them, and vLLM's names for both.

Label sets are closed: models are those served, routes those of the table, the rest is `other`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from api_gateway.clients import TextClients
from api_gateway.link import FORGET_ENGINE_AFTER_S
from common.metrics import Aliases, new_registry
from protos.common_pb2 import (
    ABORTED,
    DEADLINE,
    ERROR,
    IGNORED,
    LENGTH,
    STOPPED,
    EngineState,
    FinishReason,
)
from protos.words import NO_ENGINE

# fmt: off
TTFT_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
          160, 640, 2560)
ITL_S = (.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .05, .06, .075, .08, .1, .15,
         .2, .3, .4, .5, .6, .75, .8, 1, 2, 2.5, 4, 5, 6, 7.5, 8, 10, 20, 40, 80)
PHASE_S = (.001, .002, .005, .01, .02, .05, .1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30,
           40, 50, 60, 120, 240, 480, 960, 1920, 7680)
E2E_S = (.05, .1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480,
         960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000,
          200_000, 500_000, 1_000_000)
LAG_S = (.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2.5, 5)
# fmt: on
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REASONS: dict[FinishReason, str] = {
    STOPPED: "stop", LENGTH: "length", ABORTED: "abort", DEADLINE: "deadline",
    IGNORED: "ignored", ERROR: "error",
}  # fmt: skip
ENGINE_GAUGES: dict[str, tuple[str, Callable[[EngineState], float]]] = {
    "num_requests_waiting": ("sequences waiting in the engine", lambda s: s.num_waiting),
    "num_requests_running": ("sequences running in the engine", lambda s: s.num_running),
    "kv_cache_usage_perc": ("used part of the KV cache, 0 to 1", lambda s: s.kv_usage),
}
ALIASED = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_prompt_tokens", "request_generation_tokens", "prompt_tokens", "generation_tokens",
    "prompt_tokens_cached", "request_success", *ENGINE_GAUGES,
)  # fmt: skip


class LineSeries(Collector):
    """Shows replays, and what engines last said of themselves; long silent ones are left out."""

    def __init__(self, line: TextClients) -> None:
        self._line = line

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now, models, states = time.monotonic(), self._line.models(), self._line.states()
        model = models[0].id if models else ""
        known = (told for engine, told in states.items() if engine != NO_ENGINE)
        heard = [state for state, at in known if now - at < FORGET_ENGINE_AFTER_S]
        for name, (text, value) in ENGINE_GAUGES.items():
            family = GaugeMetricFamily(f"millrace_{name}", text, labels=["model_name", "engine"])
            for state in heard:
                family.add_metric([model, state.engine], value(state))
            yield family
        name, count = "millrace_gateway_replays", self._line.num_replays
        yield CounterMetricFamily(name, "choices whose tokenizer was lost", value=count)


class FastHistogram(Collector):
    """A histogram by model for the one observation made per token: no lock, a bisection.

    The event loop alone observes; a scrape in another thread may see a sum one value ahead.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._tallies: dict[str, Tally] = {}

    def of(self, model: str) -> Tally:
        if model not in self._tallies:
            self._tallies[model] = Tally(self._bounds)
        return self._tallies[model]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        for model, tally in list(self._tallies.items()):
            family.add_metric([model], tally.buckets(), tally.total)
        yield family


class Tally:
    """Counts of one histogram; `counts[i]` are the values in (bounds[i-1], bounds[i]]."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts as the exposition wants them."""
        names = [floatToGoString(b) for b in (*self.bounds, math.inf)]  # type: ignore[no-untyped-call]
        return list(zip(names, accumulate(self.counts), strict=True))


class GatewayMetrics:
    """Every series of this tier, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = new_registry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"millrace_{name}", text, ["model_name"], buckets=buckets, registry=registry
            )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"millrace_{name}", text, labels, registry=registry)

        self.ttft = histogram("time_to_first_token_seconds", "arrival to first token", TTFT_S)
        name = "millrace_inter_token_latency_seconds"
        self.itl = FastHistogram(name, "between arrivals of tokens", ITL_S)
        registry.register(self.itl)
        self.e2e = histogram("e2e_request_latency_seconds", "arrival to last token", E2E_S)
        self.queue = histogram("request_queue_time_seconds", "waiting in the engine", PHASE_S)
        self.prefill = histogram("request_prefill_time_seconds", "prompt processing", PHASE_S)
        self.decode = histogram("request_decode_time_seconds", "first to last token", PHASE_S)
        self.request_prompt = histogram("request_prompt_tokens", "prompt length", TOKENS)
        self.request_output = histogram("request_generation_tokens", "output length", TOKENS)
        self.prompt_tokens = counter(
            "prompt_tokens", "of prompts that were not refused, at their end", "model_name"
        )
        self.cached_tokens = counter("prompt_tokens_cached", "found in the cache", "model_name")
        self.output_tokens = counter(
            "generation_tokens", "tokens generated, at the end of their request", "model_name"
        )
        self.success = counter(
            "request_success", "choices that ended, by how", "model_name", "finished_reason"
        )
        self.http = counter("gateway_http_requests", "HTTP calls", "route", "method", "status")
        self.rejections = counter("gateway_rejections", "calls refused, by kind of error", "reason")
        self.sse_bytes = counter("gateway_sse_bytes", "bytes of streams sent")
        self.streams = Gauge("millrace_gateway_active_streams", "open streams", registry=registry)
        self.sessions = Gauge("millrace_gateway_sessions", "tokenizers", registry=registry)
        self.lag = Histogram(
            "millrace_gateway_event_loop_lag_seconds", "lateness of a tick",
            buckets=LAG_S, registry=registry,
        )  # fmt: skip

    def watch_line(self, line: TextClients) -> None:
        """Show the engine's gauges as well, and the number of tokenizers."""
        self.registry.register(LineSeries(line))
        self.sessions.set_function(lambda: len(line.links()))

    def add_vllm_names(self) -> None:
        """Show the series under vLLM's names too, for dashboards and scalers that know those."""
        names = {f"millrace_{name}": f"vllm:{name}" for name in ALIASED}
        self.registry.register(Aliases(self.registry, names))

    def note_call(self, route: str, method: str, status: int) -> None:
        method = method if method in METHODS else "other"
        self.http.labels(route, method, str(status)).inc()
