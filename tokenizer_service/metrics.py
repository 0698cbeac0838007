"""Series of this tier: `millrace_tokenizer_*`. Each is owned by one tokenizer process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class TokenizerMetrics:
    """Constants of one registry; tests bring their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "millrace_tokenizer_requests",
            "Choices that ended, by finish reason",
            ["reason"],
            registry=registry,
        )
        self.encode_seconds = Histogram(
            "millrace_tokenizer_encode_seconds",
            "Time from text to token ids, waiting for a thread included",
            buckets=SECONDS,
            registry=registry,
        )
        self.template_seconds = Histogram(
            "millrace_tokenizer_template_seconds",
            "Time to render a chat template, waiting for the sandbox included",
            buckets=SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "millrace_tokenizer_prompt_tokens", "Prompt tokens sent to engines", registry=registry
        )
        self.output_tokens = Counter(
            "millrace_tokenizer_output_tokens", "Output tokens turned into text", registry=registry
        )
        self.detokenize_seconds = Counter(
            "millrace_tokenizer_detokenize_seconds",
            "Time spent turning engine steps into text",
            registry=registry,
        )
        self.replays = Counter(
            "millrace_tokenizer_replays",
            "Choices whose engine was lost while it computed them",
            registry=registry,
        )
        self.pending = Gauge(
            "millrace_tokenizer_pending_requests",
            "Requests being encoded or waiting for an engine",
            registry=registry,
        )
        self.live_streams = Gauge(
            "millrace_tokenizer_live_streams", "Choices in an engine", registry=registry
        )
        self.replaying_streams = Gauge(
            "millrace_tokenizer_replaying_streams",
            "Choices whose engine was lost, waiting for one that takes them",
            registry=registry,
        )
        self.held_streams = Gauge(
            "millrace_tokenizer_held_streams",
            "Choices whose last characters may become a stop string",
            registry=registry,
        )
        self.ready_engines = Gauge(
            "millrace_tokenizer_ready_engines", "Engines that take requests", registry=registry
        )

    def watch(
        self,
        pending: Callable[[], int],
        live: Callable[[], int],
        replaying: Callable[[], int],
        held: Callable[[], int],
        ready: Callable[[], int],
    ) -> None:
        """Read the gauges from these at each scrape."""
        self.pending.set_function(pending)
        self.live_streams.set_function(live)
        self.replaying_streams.set_function(replaying)
        self.held_streams.set_function(held)
        self.ready_engines.set_function(ready)
