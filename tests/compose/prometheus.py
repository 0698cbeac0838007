"""Questions to the live Prometheus."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.deploy.expressions import metrics, panel_expressions

TIERS = {"api-gateway", "tokenizer-service", "engine-core", "worker"}


def eventually(what: str, missing: Callable[[], object], timeout_s: float = 90.0) -> None:
    """Wait until `missing` has nothing to say, for something that nobody announces."""
    deadline = time.monotonic() + timeout_s
    while reasons := missing():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}: {reasons}")
        time.sleep(0.5)


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def _get(self, path: str, **query: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, now."""
        return list(self._get("query", query=expression)["result"])

    def num_up(self) -> Counter[str]:
        """Return how many replicas of each job answer."""
        rows = self.query("count by (job) (up == 1)")
        return Counter({row["metric"]["job"]: int(row["value"][1]) for row in rows})

    def values(self, expression: str) -> dict[str, float]:
        """Return value by instance."""
        return {r["metric"]["instance"]: float(r["value"][1]) for r in self.query(expression)}

    def firing(self) -> set[str]:
        alerts = self._get("alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def silent_panels(self) -> list[str]:
        """Return the expressions of the dashboards that have no answer."""
        return [e for e in panel_expressions() if not self.query(e)]

    def missing_series(self) -> list[str]:
        """Return each series of the dashboards that not every replica of its tier has."""
        up, found = self.num_up(), []
        for name in sorted(set().union(*map(metrics, panel_expressions()))):
            rows = self.query(f"count by (job, instance) ({name})")
            having = Counter(row["metric"]["job"] for row in rows)
            expected = {job: up[job] for job in having or TIERS}
            if dict(having) != expected:
                found.append(f"{name}: {dict(having)} of {expected}")
        return found
