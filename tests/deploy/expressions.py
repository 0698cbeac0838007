"""What the dashboards and the alert rules ask Prometheus. Knows their files, no Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
_METRIC = re.compile(r"\b(?:millrace_\w+|process_\w+|up\b)")


def dashboards() -> list[dict[str, Any]]:
    """Return all dashboards."""
    return [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]


def panel_expressions() -> list[str]:
    """Return every expression of every panel, with Grafana's variable filled in."""
    return [
        target["expr"].replace("$__rate_interval", "1m")
        for dashboard in dashboards()
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def alerts() -> dict[str, str]:
    """Return the expression of every alert by its name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def metrics(expression: str) -> set[str]:
    """Return the names of the series that an expression reads."""
    return set(_METRIC.findall(expression))
