"""The same load in one threaded Python process: what the tiers remove.

An HTTP server, the text pipeline and the engine loop of this project share one interpreter, the
engine in a thread of its own, as engines of one process are built. Prints the gaps between steps at
its end, like `bench.paced_worker`. `bench.tier_budget` runs both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from api_gateway.asgi import Receive, Scope, Send
from api_gateway.chunks import Chunks, frame
from api_gateway.parsing import parse
from api_gateway.schema import ChatRequest
from api_gateway.sse import DONE, HEADERS
from api_gateway.translate import Caller, order_chat
from api_gateway.validation import check_chat
from bench.paced import PacedModel
from bench.paced_worker import gap_report
from millrace.in_process import InProcessClient
from protos.common_pb2 import ModelInfo
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.text_model import load_text_model


class OneProcess:
    """A minimal chat endpoint over the in-process client; every request streams."""

    def __init__(self, client: InProcessClient) -> None:
        self._client = client
        self._num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body") or message.get("body"):
            body += message["body"]
            if not message["more_body"]:
                break
        self._num_requests += 1
        request, request_id = parse(body, ChatRequest, is_lenient=False), f"r{self._num_requests}"
        check_chat(request)
        order = order_chat(request, Caller(request_id, "bench", ModelInfo(id=request.model)))
        chunks = Chunks(order, request_id, 0, "paced")
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        num_tokens = 0
        async for piece in self._client.submit(order.requests[0]):
            if piece.text:
                await self._send(send, chunks.text(0, piece.text))
            if piece.finish is not None:
                num_tokens = piece.finish.num_output_tokens
        tail = frame(chunks.event(usage={"completion_tokens": num_tokens})) + DONE
        await self._send(send, tail, more_body=False)

    async def _send(self, send: Send, body: bytes, more_body: bool = True) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": more_body})


async def serve(port: int, folder: Path, step_ms: float) -> None:
    """Serve until SIGTERM."""
    metrics = TokenizerMetrics(CollectorRegistry())
    model = PacedModel(folder, step_ms / 1e3)
    text = load_text_model(folder, "bench", metrics)
    client = InProcessClient(text, model, metrics, 1 << 30, None)  # type: ignore[arg-type]
    config = uvicorn.Config(OneProcess(client), port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, setattr, server, "should_exit", True
    )
    await server.serve()
    await client.close()
    print(json.dumps(gap_report(model.runner(), "one process")), flush=True)


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("step_ms", type=float)
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.folder, args.step_ms))
