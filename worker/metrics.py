"""The worker's series, all under millrace_worker_."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protos import worker as wire
from worker.host_tier import HostTier
from worker.memory import DeviceMemory

STEP_BUCKETS = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
)  # fmt: skip
LOOK_EVERY_S = 1.0
"""Between two looks at the device's memory; a driver takes some microseconds for one."""


class WorkerMetrics:
    """One per process."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        name = "millrace_worker_{}".format
        self._forward = Histogram(
            name("forward_seconds"),
            "Forward pass of a step",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self._sample = Histogram(
            name("sample_seconds"), "Sampling of a step", buckets=STEP_BUCKETS, registry=registry
        )
        self._steps = Counter(name("steps"), "Steps executed", registry=registry)
        self._tokens = Counter(name("tokens"), "Tokens drawn", registry=registry)
        self._faults = Counter(name("sequence_faults"), "Rows that failed alone", registry=registry)
        self._sequences = Gauge(
            name("sequences"),
            "Rows kept since the last step; those that have ended go with the next",
            registry=registry,
        )
        self._memory = Gauge(
            name("memory_bytes"), "Memory by what it is for", ["purpose"], registry=registry
        )
        self._host_blocks = Counter(
            name("host_blocks"), "Blocks to and from host memory", ["event"], registry=registry
        )
        self._host_bytes = Gauge(
            name("host_used_bytes"), "Host memory that holds blocks", registry=registry
        )
        self._startup = Gauge(
            name("startup_seconds"), "Time to become ready", ["phase"], registry=registry
        )
        self._busy = Counter(
            name("busy_seconds"), "Time in which the device had a step", registry=registry
        )
        self._device = Gauge(
            name("device_info"), "What computes; always 1", ["name", "driver"], registry=registry
        )
        self._free = Gauge(
            name("device_free_bytes"), "Memory of the device that nobody has", registry=registry
        )
        self._total = Gauge(name("device_total_bytes"), "Memory of the device", registry=registry)
        self._clock = clock
        self._busy_until = self._next_look = clock()
        self._begun: dict[int, float] = {}
        self._memory_of: DeviceMemory | None = None

    def watch(self, device: DeviceMemory) -> None:
        """Tell of this device from now on."""
        self._device.clear()
        self._device.labels(device.name, device.driver).set(1)
        self._memory_of = device
        self._look()

    def _look(self) -> None:
        """Read the device's memory; in the worker's thread, as all that concerns a device."""
        if self._memory_of is not None:
            try:
                free, total = self._memory_of.read()
                self._free.set(free)
                self._total.set(total)
            except OSError:  # no descriptor is left, perhaps: a gauge is worth no step
                self._free.set(math.nan)  # what was free is not what is
        self._next_look = self._clock() + LOOK_EVERY_S

    def begin_step(self, step_id: int) -> None:
        """Note that a step is about to be launched; several may be under way."""
        self._begun[step_id] = self._clock()

    def observe_step(self, result: wire.StepResult, num_sequences: int) -> None:
        """Enter a step whose result has just arrived."""
        now = self._clock()
        begin = self._begun.pop(result.step_id, now)
        self._busy.inc(max(0.0, now - max(begin, self._busy_until)))  # steps may overlap
        self._busy_until = now
        if now >= self._next_look:
            self._look()
        self._forward.observe(result.forward_s)
        self._sample.observe(result.sample_s)
        self._steps.inc()
        self._tokens.inc(len(result.token_ids))
        self._faults.inc(len(result.faults))
        self._sequences.set(num_sequences)

    def observe_host_tier(self, tier: HostTier | None) -> None:
        """Take over what has happened since the last call."""
        if tier is None:
            return
        self._host_bytes.set(tier.num_bytes)  # what is dropped is no event
        for event, count in tier.events.items():
            self._host_blocks.labels(event).inc(count)
        tier.events.clear()

    def begin_life(self) -> None:
        """Forget what was under way and held in the life that has ended."""
        self._begun.clear()
        self._sequences.set(0)
        self._host_bytes.set(0)

    def observe_startup(self, startup_s: dict[str, float], memory: Mapping[str, int]) -> None:
        for phase, seconds in startup_s.items():
            self._startup.labels(phase).set(seconds)
        for purpose, size in memory.items():
            self._memory.labels(purpose).set(size)
