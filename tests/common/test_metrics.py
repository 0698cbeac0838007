from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from prometheus_client import Counter, Histogram

from common.metrics import Aliases, exposition, new_registry, serve


def test_aliases_show_the_same_samples_under_a_second_name() -> None:
    registry = new_registry()
    tokens = Counter("millrace_generation_tokens", "tokens", ["model_name"], registry=registry)
    wait = Histogram("millrace_wait_seconds", "wait", buckets=(1, 2), registry=registry)
    names = {"millrace_generation_tokens": "vllm:generation_tokens"}
    names["millrace_wait_seconds"] = "vllm:wait_seconds"
    registry.register(Aliases(registry, names))
    tokens.labels("m").inc(3)
    wait.observe(1.5)
    text = exposition(registry)[0].decode()
    for prefix in ("millrace_", "vllm:"):
        assert f'{prefix}generation_tokens_total{{model_name="m"}} 3.0' in text
        assert f'{prefix}wait_seconds_bucket{{le="2.0"}} 1.0' in text
    assert "process_cpu_seconds_total" in text


def test_the_side_port_tells_the_truth() -> None:
    reasons: list[str] = ["loading"]
    port = serve("127.0.0.1", 0, new_registry(), lambda: reasons)
    url = f"http://127.0.0.1:{port}"
    assert urllib.request.urlopen(f"{url}/live").status == 200
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"{url}/ready")
    assert b"loading" in refused.value.read()
    refused.value.close()
    reasons.clear()
    assert urllib.request.urlopen(f"{url}/ready").status == 200
    assert b"python_info" in urllib.request.urlopen(f"{url}/metrics").read()
