"""Deployment files agree with the code and with each other. Static: no engine, no network."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from api_gateway.__main__ import FINISH_WITHIN_S
from api_gateway.clients import TextClients
from api_gateway.errors import error_object
from api_gateway.metrics import GatewayMetrics
from common.errors import ServiceError, Unavailable
from common.metrics import new_registry
from engine_core.metrics import PhaseTimes, register
from engine_core.replica import Fleet
from millrace.compose import duration_s, load
from millrace.replica_process import GRPC_LOGS
from tests.deploy.expressions import ROOT, alerts, dashboards, metrics, panel_expressions
from tokenizer_service.metrics import TokenizerMetrics
from worker.backends.cuda_lease import SHARED
from worker.metrics import WorkerMetrics

TIERS = {"api-gateway", "tokenizer-service", "engine-core", "worker"}
TARGETS = TIERS | {"worker-gpu"}
KERNELS = {"worker": "build-kernels", "worker-gpu": "build-cubins"}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def stage(target: str) -> str:
    """Return the lines of one target of the Dockerfile."""
    found = re.search(rf"^FROM \S+ AS {target}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)
    assert found, f"no target {target}"
    return found[1]


def gateway() -> CollectorRegistry:
    series = GatewayMetrics()
    series.watch_line(TextClients("t:1"))
    return series.registry


def engine() -> CollectorRegistry:
    registry = new_registry()
    PhaseTimes(registry)
    register(registry, Fleet(1.0, lambda: 0.0))
    return registry


def tokenizer() -> CollectorRegistry:
    TokenizerMetrics(registry := new_registry())
    return registry


def worker() -> CollectorRegistry:
    WorkerMetrics(registry := new_registry())
    return registry


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names of all series that the tiers have."""
    families = [f for make in (gateway, tokenizer, engine, worker) for f in make().collect()]
    return {"up"} | {f.name + suffix for f in families for suffix in SUFFIXES.get(f.type, ("",))}


@pytest.mark.parametrize("expression", panel_expressions())
def test_panels_read_series_that_exist(expression: str, exported: set[str]) -> None:
    assert metrics(expression), "reads nothing"
    assert metrics(expression) <= exported


@pytest.mark.parametrize("name", alerts())
def test_alerts_read_series_that_exist(name: str, exported: set[str]) -> None:
    assert metrics(alerts()[name]), "reads nothing"
    assert metrics(alerts()[name]) <= exported


def test_tokens_per_second_are_counted_as_they_come() -> None:
    """The gateway counts at the end of a request: minutes of one stream were a single peak."""
    panels = [panel for dashboard in dashboards() for panel in dashboard["panels"]]
    (panel,) = (panel for panel in panels if panel["title"] == "Tokens per second")
    assert [metrics(target["expr"]) for target in panel["targets"]] == [
        {"millrace_tokenizer_output_tokens_total"}, {"millrace_tokenizer_prompt_tokens_total"},
    ]  # fmt: skip


def test_every_alert_has_a_test_of_rules() -> None:
    tests = (ROOT / "deploy" / "prometheus" / "rules_test.yml").read_text()
    assert not [name for name in alerts() if name not in tests]


def test_jobs_in_expressions_are_scraped() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    jobs = {}
    for job in config["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        jobs[job["job_name"]], *others = found["names"]
        assert others == (["worker-gpu"] if job["job_name"] == "worker" else [])
        environment = COMPOSE["services"][job["job_name"]]["environment"]
        (port,) = (v for k, v in environment.items() if k.endswith("_METRICS_PORT"))
        assert found["port"] == int(port), job
    assert jobs == {tier: tier for tier in TIERS}
    named = set(re.findall(r'job="([^"]+)"', " ".join([*panel_expressions(), *alerts().values()])))
    assert named <= jobs.keys()


def test_panels_of_dashboards_are_drawable() -> None:
    for dashboard in dashboards():
        panels = dashboard["panels"]
        assert len({p["id"] for p in panels}) == len(panels)
        for panel in panels:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, panel["title"]
            assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
            assert panel["type"] == "row" or panel["targets"], panel["title"]


def test_a_target_of_the_dockerfile_for_every_built_service() -> None:
    built = {n: s["build"] for n, s in COMPOSE["services"].items() if "build" in s}
    assert built.keys() == TARGETS
    for name, build in built.items():
        assert build == {"context": ".", "dockerfile": "deploy/Dockerfile", "target": name}
    targets = set(re.findall(r"^FROM tier AS (\S+)$", DOCKERFILE, re.M))
    assert targets == TARGETS


@pytest.mark.parametrize("tier", sorted(TARGETS))
def test_a_target_holds_its_own_tier_alone(tier: str) -> None:
    lines = stage(tier).splitlines()
    own = tier.removesuffix("-gpu").replace("-", "_")
    copied = [line for line in lines if line.startswith("COPY") and "--from" not in line]
    assert copied == [f"COPY {own} {own}"]
    dependencies, *kernels = re.findall(r"^COPY --from=(\S+)", stage(tier), re.M)
    assert kernels == [KERNELS[name] for name in KERNELS if name == tier]
    installed = re.findall(r"'\.\[(\w+)\]'", stage(dependencies))
    assert installed == [dependencies.removeprefix("build-")]
    assert "USER 10001:10001" in lines
    assert f'CMD ["python", "-m", "{own}"]' in lines
    probe = COMPOSE["services"][tier]["healthcheck"]["test"][1:]
    assert any(line.startswith("HEALTHCHECK") and probe[-1] in line for line in lines)


def test_the_shared_stage_copies_what_all_tiers_import() -> None:
    copied = re.findall(r"^COPY (\w+) \w+$", stage("tier"), re.M)
    assert copied == ["protos", "common"]
    allowed = (ROOT / ".dockerignore").read_text().split()
    for name in [*copied, *(tier.replace("-", "_") for tier in TIERS)]:
        assert f"!{name}" in allowed


def test_every_service_is_confined_and_watched() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] and service["init"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["logging"] == {"driver": "${LOG_DRIVER:-local}"}, name  # which rotates
        assert set(service["networks"]) <= {"front", "back"}, name
    assert COMPOSE["networks"]["back"] == {"internal": True}


def test_a_gpu_has_one_worker() -> None:
    service = COMPOSE["services"]["worker-gpu"]
    assert service["profiles"] == ["gpu"]
    assert service["environment"]["MILLRACE_WORKER_DEVICE"] == "cuda"
    assert any(str(SHARED) == mount["target"] for mount in service["volumes"])
    assert f"mkdir -p {SHARED}" in stage("worker-gpu")


def test_a_gpu_worker_is_told_what_a_worker_is_told() -> None:
    told = {name: COMPOSE["services"][name]["environment"] for name in ("worker", "worker-gpu")}
    of_cpus = {"MILLRACE_WORKER_KERNEL_LEVEL", "MILLRACE_WORKER_THREADS"}
    assert told["worker"].keys() - told["worker-gpu"].keys() == of_cpus
    both = told["worker"].keys() & told["worker-gpu"].keys() - {"MILLRACE_WORKER_DEVICE"}
    assert {n: told["worker"][n] for n in both} == {n: told["worker-gpu"][n] for n in both}


@pytest.mark.parametrize("profiles", [(), ("observability",), ("redis", "observability", "gpu")])
def test_the_local_runner_runs_the_tiers_alone(profiles: tuple[str, ...]) -> None:
    file = load(ROOT / "docker-compose.yml", {"PORT": "8123"}, frozenset(profiles))
    assert file.services.keys() == TIERS
    assert file.services["api-gateway"].published() == {8000: ("127.0.0.1", 8123)}


def test_the_balancer_asks_the_port_and_the_route_of_the_gateway() -> None:
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    port = COMPOSE["services"]["api-gateway"]["environment"]["MILLRACE_GATEWAY_PORT"]
    assert f"api-gateway:{port} check" in text
    assert "uri /ready" in text
    (published,) = COMPOSE["services"]["gateway-lb"]["ports"]
    assert re.search(r"bind :(\d+)", text)[1] == published.rsplit(":")[-1]  # type: ignore[index]


def test_grpc_is_as_quiet_in_containers_as_it_is_locally() -> None:
    for name, value in GRPC_LOGS.items():
        assert f"ENV {name}={value}\n" in DOCKERFILE


def test_the_balancer_answers_and_stops_as_the_gateways_do() -> None:
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    written = re.search(r"http-error status 503 .* string '(.*)' hdr", text)
    assert written is not None
    error = Unavailable("no gateway is ready; try again", retry_after_s=1)
    assert json.loads(written[1]) == {
        "error": {k: v for k, v in error_object(error, "")["error"].items() if k != "request_id"}
    }
    balancer = COMPOSE["services"]["gateway-lb"]
    assert "127.0.0.1/8000 && printf 'GET /ready " in balancer["healthcheck"]["test"][-1]
    assert balancer["stop_signal"] == "SIGUSR1"  # SIGTERM would cut all streams at once
    patience_s = int(re.search(r"hard-stop-after (\d+)s", text)[1])  # type: ignore[index]
    assert FINISH_WITHIN_S + 1 <= patience_s < duration_s(balancer["stop_grace_period"])


def test_the_balancer_passes_on_that_a_client_has_left() -> None:
    lines = (ROOT / "deploy" / "haproxy.cfg").read_text().splitlines()
    assert "    option abortonclose" in lines


def test_what_the_balancer_answers_itself_has_the_apis_shape() -> None:
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    written = r"http-error status (\d+) content-type application/json string '(.*?)'"
    found = dict(re.findall(written, text))
    assert found.keys() == {"400", "408", "502", "503", "504"}
    types = {error.openai_type for error in ServiceError.__subclasses__()}
    for body in found.values():
        error = json.loads(body)["error"]
        assert error.keys() >= {"message", "type", "param", "code"} and error["type"] in types


def test_embeddings_have_phases_and_what_never_ran_has_none() -> None:
    registry = CollectorRegistry()
    phases = PhaseTimes(registry)
    replica: Any = SimpleNamespace(number=1)
    for prefill_s in (0.0, 0.5):
        seconds = {"queue_s": 0.1, "prefill_s": prefill_s, "decode_s": 0.0}
        row: Any = SimpleNamespace(num_output_tokens=0, **seconds)
        phases.observe(replica, row)
    name = "millrace_request_prefill_time_seconds_count"
    assert registry.get_sample_value(name, {"engine": "1"}) == 1
