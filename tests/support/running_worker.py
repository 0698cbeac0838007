"""A worker's server in a thread, as tests of it drive it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from protos import worker as wire
from tests.support.fake_scheduler import FakeEngine
from worker.build import LoadedModel
from worker.errors import WeightsWritten
from worker.metrics import WorkerMetrics
from worker.server import WorkerServer

HELLO = wire.Hello(host="h", device="cpu", model_hash="m", build="b")


class Running:
    """A server over a model that is loaded once, and what ended it."""

    def __init__(
        self, engine: FakeEngine, loaded: LoadedModel, begin: Callable[[], object] = list
    ) -> None:
        """`begin` is called where a load begins."""
        self.num_loads = 0
        self.errors: list[WeightsWritten] = []
        self.registry = CollectorRegistry()

        def load() -> LoadedModel:
            self.num_loads += 1
            begin()
            return loaded

        self.server = WorkerServer(
            engine.context,
            engine.front.address,
            HELLO,
            load,
            lambda _: 10**6,
            WorkerMetrics(self.registry),
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except WeightsWritten as error:
            self.errors.append(error)

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        self.thread.join(10)
        assert not self.thread.is_alive()

    def end(self) -> None:
        self.server.stop()
        self.wait()
