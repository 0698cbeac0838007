"""Three questions: does the process answer, can it serve now, which build is it.

/ready speaks from what the engines said in the last second and a half, never from hope.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from api_gateway.admission import Admission
from api_gateway.asgi import Call
from api_gateway.clients import TextClients
from api_gateway.link import FORGET_ENGINE_AFTER_S
from protos.common_pb2 import EngineState
from protos.words import NO_ENGINE, STALE_S

SERVICE = "millrace"


@cache
def build_version() -> str:
    """Return the installed version, or a word for a tree that was never installed."""
    try:
        return version(SERVICE)
    except PackageNotFoundError:
        return "unknown"


class Health:
    """Answers /live, /ready, /health and /version."""

    def __init__(
        self,
        clients: TextClients,
        admission: Admission,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._admission = admission
        self._clock = clock
        self._version = build_version()

    def reasons(self) -> list[str]:
        """Return why a request would not be served now; empty = ready. Any thread may ask."""
        if self._admission.is_leaving or self._admission.is_draining:
            return ["the gateway is shutting down"]
        if not self._clients.links():
            return [f"no tokenizer is connected ({self._clients.tokenizers})"]
        states = self._heard()
        if not states:
            return ["no engine has been heard of"]
        now, reasons = self._clock(), []
        for engine, (state, heard_s) in sorted(states.items()):
            age_s = now - heard_s
            if age_s > STALE_S:
                reasons.append(f"engine {engine}: not heard of for {age_s:.1f} s")
            elif state.ready:
                return []
            else:
                why = ", ".join(state.reasons) or "not ready"
                reasons.append(f"engine {engine}: {why}")
        return reasons

    def _heard(self) -> dict[str, tuple[EngineState, float]]:
        """Return the engines but those that went long before the last one was heard of."""
        states = self._clients.states()
        last_s = max((heard_s for _, heard_s in states.values()), default=0.0)
        found = {
            k: heard for k, heard in states.items() if last_s - heard[1] < FORGET_ENGINE_AFTER_S
        }
        if any(k != NO_ENGINE and last_s - heard_s < STALE_S for k, (_, heard_s) in found.items()):
            found.pop(NO_ENGINE, None)
        return found

    def engines(self) -> list[dict[str, Any]]:
        now = self._clock()
        return [
            {
                "engine": engine,
                "ready": state.ready,
                "reasons": list(state.reasons),
                "age_s": round(now - heard_s, 2),
                "replicas": state.num_replicas,
                "waiting": state.num_waiting,
                "running": state.num_running,
                "kv_usage": round(state.kv_usage, 4),
                "fingerprint": state.fingerprint,
            }
            for engine, (state, heard_s) in sorted(self._heard().items())
        ]

    async def live(self, call: Call) -> None:
        await call.reply_json(200, {"status": "live"})

    async def ready(self, call: Call) -> None:
        reasons = self.reasons()
        body = {
            "status": "not ready" if reasons else "ready",
            "reasons": reasons,
            "engines": self.engines(),
        }
        await call.reply_json(503 if reasons else 200, body)

    async def version(self, call: Call) -> None:
        await call.reply_json(200, {"service": SERVICE, "version": self._version})
