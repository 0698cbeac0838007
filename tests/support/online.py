"""The real stack on free ports, and the questions that tests put to it over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx

from millrace.project import HOME
from tests.api_gateway.official import check_event
from tests.support.stack import Stack, eventually


class Online(Stack):
    """`millrace up` of this repository's compose file with a model folder."""

    def __init__(self, folder: Path, model: Path, *options: str, **variables: str) -> None:
        super().__init__(folder, HOME / "docker-compose.yml", **variables)
        self.model, self.model_folder = model.name, model
        done = self.call(
            "up", "--detach", "--model", str(model), "--kv-cache-memory", "16MiB",
            "--port", str(self.port), "--ready-timeout", "60", *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ports(self, service: str, inside: int) -> list[int]:
        return [r.ports[inside] for r in self.state().replicas if r.service == service]

    def metrics(self, service: str, inside: int) -> list[str]:
        """Return the lines of /metrics of all replicas of a service."""
        lines: list[str] = []
        for port in self.ports(service, inside):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
                lines += reply.read().decode().splitlines()
        return lines

    def total(self, name: str) -> float:
        """Return the sum of one engine series over the replicas."""
        rows = [line for line in self.metrics("engine-core", 7201) if line.startswith(name)]
        assert rows, f"no series {name}"
        return sum(float(row.rpartition(" ")[2]) for row in rows)

    def num_replays(self, tier: str) -> float:
        """Return how many replays the deaths of `tier` have caused so far."""
        if tier == "tokenizer-service":
            return self.folder.log.read_text().count('"message":"replay"')
        rows = self.metrics("tokenizer-service", 7101)
        counted = [row for row in rows if row.startswith("millrace_tokenizer_replays_total")]
        return sum(float(row.split()[1]) for row in counted)

    def is_idle(self) -> bool:
        """Tell whether the engine holds no sequence and no block."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self.total(f"millrace_{name}{{") == 0 for name in names)

    def wait_until_idle(self) -> None:
        eventually(self.is_idle)

    def wait_until_whole(self) -> None:
        """Wait until every replica is healthy again."""
        eventually(lambda: all(r.healthy for r in self.state().replicas), 60)


def body(model: str, prompt: str, seed: int, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "seed": seed, "temperature": 1, **fields}


async def events(
    http: httpx.AsyncClient, path: str, sent: dict[str, Any]
) -> AsyncGenerator[Any, None]:
    """POST and yield the JSON of every event; after all but an error [DONE] must follow."""
    last, buffer, seen = b"", b"", list[Any]()
    async with http.stream("POST", path, json={**sent, "stream": True}) as reply:
        if reply.status_code != 200:
            raise AssertionError((await reply.aread()).decode())
        async for chunk in reply.aiter_bytes():  # aiter_lines would also cut at U+0085
            *frames, buffer = (buffer + chunk).split(b"\n\n")
            for frame in frames:
                last = frame.rpartition(b"data: ")[2]
                if last.startswith(b"{"):
                    seen.append(json.loads(last))
                    yield seen[-1]
    assert last == b"[DONE]" or last.startswith(b'{"error"'), last
    for event in seen:  # now, because a slow reader would change what is tested
        check_event(path, event)


async def read_text(
    http: httpx.AsyncClient, sent: dict[str, Any], began: asyncio.Event | None = None
) -> str:
    """Stream one completion and return its text; `began` is set at its first text."""
    pieces: list[str] = []
    async for event in events(http, "/v1/completions", sent):
        assert "error" not in event, event
        pieces += [choice["text"] for choice in event["choices"]]
        if began is not None and any(pieces):
            began.set()
    return "".join(pieces)


async def read_all(
    url: str, bodies: Sequence[dict[str, Any]], when_all_began: Any = None
) -> list[str]:
    """Stream all completions at once; call `when_all_began` once each has text, none earlier."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        began = [asyncio.Event() for _ in bodies]
        tasks = [
            asyncio.create_task(read_text(http, sent, event))
            for sent, event in zip(bodies, began, strict=True)
        ]
        if when_all_began is not None:
            starts = [asyncio.create_task(event.wait()) for event in began]
            await asyncio.wait(starts, timeout=30)
            assert not any(task.done() for task in tasks), "too short to be disturbed"
            when_all_began()
        return await asyncio.gather(*tasks)
