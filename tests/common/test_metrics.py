from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client import Counter, Histogram

from common.addresses import joined
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_side_port_tells_the_truth(host: str) -> None:
    reasons: list[str] = ["loading"]
    port = serve(host, 0, new_registry(), lambda: reasons)
    url = f"http://{joined(host, port)}"
    assert urllib.request.urlopen(f"{url}/live").status == 200
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"{url}/ready")
    assert b"loading" in refused.value.read()
    refused.value.close()
    reasons.clear()
    assert urllib.request.urlopen(f"{url}/ready").status == 200
    for path in ("/metrics", "/metrics?a=query"):
        assert b"python_info" in urllib.request.urlopen(f"{url}{path}").read()


def test_who_asks_and_leaves_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    asked = threading.Semaphore(0)

    def reasons() -> list[str]:
        asked.release()
        time.sleep(0.05)  # until the reset is here
        return []

    port = serve("127.0.0.1", 0, new_registry(), reasons)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            assert asked.acquire(timeout=5)
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_who_connects_and_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.metrics.PEER_TIMEOUT_S", 0.05)
    port = serve("127.0.0.1", 0, new_registry(), list)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        assert peer.recv(1) == b""


def test_a_request_that_gets_no_thread_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = serve("127.0.0.1", 0, new_registry(), list)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            assert peer.recv(1) == b""
    assert [record.message for record in caplog.records] == ["the side port does not answer"]
    assert caplog.records[0].exc_info is None
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/live").status == 200
