from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from api_gateway.job import Job
from api_gateway.meter import Meter
from api_gateway.metrics import GatewayMetrics
from api_gateway.sessions import Demux
from protos.common_pb2 import STOPPED, Finish, Timings
from protos.tokenizer_pb2 import Started, TextBatch, TextRequest
from protos.words import NO_ENGINE
from tests.api_gateway.requests import chat, completion
from tests.support.fake_tokenizer import FakeTokenizer

HISTOGRAMS = [
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_prompt_tokens", "request_generation_tokens", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds",
]  # fmt: skip


async def scraped(client: httpx.AsyncClient) -> dict[str, dict[str, float]]:
    """Return every sample of /metrics: name → labels as text → value."""
    text = (await client.get("/metrics")).text
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} twice"
            found[sample.name][labels] = sample.value
    return found


def test_tokens_that_come_together_are_each_a_latency() -> None:
    job, seen = Job([TextRequest(model="m")]), list[float]()
    meter = Meter(GatewayMetrics(), job, 0.0)
    meter._observe_itl = seen.append
    choice = job.choices[0]
    for num_tokens, now in ((1, 1.0), (1, 2.0), (4, 7.0)):
        choice.token_ids[:] = bytes(4 * num_tokens)
        meter.note([choice], now)
    assert seen == [2.0] * 3


def test_what_no_engine_has_told_is_no_zero_in_the_log() -> None:
    """As of a client that leaves while its request waits in the queue."""
    metrics = GatewayMetrics()
    gone = Meter(metrics, Job([TextRequest(model="m")]), 0.0).end(60.0)
    assert (gone["queue_ms"], gone["cached_tokens"], gone["ttft_ms"]) == (None, None, None)
    told = Job([TextRequest(model="m")])
    told.choices[0].end(Finish(reason=STOPPED, timings=Timings(queue_s=0.5)))
    line = Meter(metrics, told, 0.0).end(60.0)
    assert (line["queue_ms"], line["cached_tokens"], line["ttft_ms"]) == (500.0, 0, None)


def test_attempts_are_those_of_all_tiers_below() -> None:
    """A request whose engine was lost had one: its tokenizer alone knew of the other."""
    job, demux = Job([TextRequest(model="m")]), Demux()
    meter = Meter(GatewayMetrics(), job, 0.0)
    started = TextBatch(started=[Started(slot=demux.add(job.choices), num_prompt_tokens=3)])
    demux.deliver(started)
    assert meter.end(1.0)["attempts"] == 1
    demux.deliver(started)  # its engine was lost, and another has it
    assert meter.end(1.0)["attempts"] == 2
    job.num_replays, demux = 1, Demux()  # its tokenizer was lost
    demux.next_slot = 7
    demux.deliver(TextBatch(started=[Started(slot=demux.add(job.choices), num_prompt_tokens=3)]))
    assert meter.end(1.0)["attempts"] == 3


async def test_names_labels_and_values(client: httpx.AsyncClient, fake: FakeTokenizer) -> None:
    fake.streams[0].state(num_waiting=3, num_running=2, kv_usage=0.25)
    await client.post("/v1/chat/completions", json=chat(stream=True))
    await client.post("/v1/completions", json=completion())
    seen = await scraped(client)
    ours = "model_name=fake-model"
    for prefix in ("millrace_", "vllm:"):
        for name in HISTOGRAMS:
            num_expected = 4 if name.startswith("inter_token") else 2
            assert seen[f"{prefix}{name}_count"][ours] == num_expected, name
            assert seen[f"{prefix}{name}_bucket"][f"le=+Inf,{ours}"] == num_expected, name
        assert seen[f"{prefix}prompt_tokens_total"][ours] == 10
        assert seen[f"{prefix}generation_tokens_total"][ours] == 6
        assert seen[f"{prefix}request_success_total"][f"finished_reason=stop,{ours}"] == 2
        engine = f"engine=e0,{ours}"
        assert seen[f"{prefix}num_requests_waiting"][engine] == 3
        assert seen[f"{prefix}num_requests_running"][engine] == 2
        assert seen[f"{prefix}kv_cache_usage_perc"][engine] == 0.25
    assert seen["millrace_inter_token_latency_seconds_sum"][ours] > 0
    assert seen["millrace_gateway_sse_bytes_total"][""] > 500
    assert seen["millrace_gateway_active_streams"][""] == 0
    assert seen["millrace_gateway_sessions"][""] == 1
    assert "millrace_gateway_event_loop_lag_seconds_count" in seen


async def test_buckets_are_those_of_existing_dashboards(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json=completion())
    seen = await scraped(client)

    def bounds(name: str) -> set[str]:
        return {label.split(",")[0].removeprefix("le=") for label in seen[f"{name}_bucket"]}

    assert {"0.001", "0.005", "0.25", "2560.0", "+Inf"} <= bounds(
        "vllm:time_to_first_token_seconds"
    )
    assert {"0.002", "0.025", "0.075", "8.0", "80.0"} <= bounds("vllm:inter_token_latency_seconds")


async def test_a_queue_of_milliseconds_is_not_shown_as_a_third_of_a_second(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    await client.post("/v1/completions", json=completion())
    seen = await scraped(client)
    for phase in ("queue", "prefill", "decode"):
        name = f"millrace_request_{phase}_time_seconds_bucket"
        told = [float(label.split(",")[0].removeprefix("le=")) for label in seen[name]]
        assert sorted(told)[0] <= 0.001 and {0.3, 7680.0} <= set(told)


async def test_what_tokenizers_say_of_no_engine_is_no_engine(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    told = fake.streams[0]
    told.state(num_waiting=3)
    told.state(engine=NO_ENGINE, ready=False)
    await client.post("/v1/completions", json=completion())  # by then it has heard
    seen = await scraped(client)
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert set(seen[f"millrace_{name}"]) == {"engine=e0,model_name=fake-model"}


async def test_label_sets_are_closed(client: httpx.AsyncClient) -> None:
    for path in ("/a", "/b/c", "/v1/models/strange"):
        await client.get(path)
    await client.request("PROPFIND", "/live")
    await client.post("/v1/completions", json=completion(model="strange"))
    await client.post("/v1/completions", json=completion(n=0))
    seen = await scraped(client)
    assert seen["millrace_gateway_http_requests_total"] == {
        "method=GET,route=other,status=404": 2,
        "method=GET,route=/v1/models/{name},status=404": 1,
        "method=other,route=other,status=405": 1,
        "method=POST,route=/v1/completions,status=404": 1,
        "method=POST,route=/v1/completions,status=400": 1,
    }
    assert seen["millrace_gateway_rejections_total"] == {
        "reason=NotFound": 4,
        "reason=MethodNotAllowed": 1,
        "reason=InvalidRequest": 1,
    }
    assert not any("strange" in labels for samples in seen.values() for labels in samples)
