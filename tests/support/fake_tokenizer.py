"""A tokenizer service in this process, over real gRPC, that says what a test tells it to say."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from common.rpc import new_server, start_server
from protos.common_pb2 import (
    ABORTED,
    STOPPED,
    EngineState,
    ErrorDetail,
    Finish,
    FinishReason,
    ModelInfo,
    PromptProgress,
    Query,
    QueryAnswer,
    SamplingParams,
    SessionOpened,
    Timings,
)
from protos.tokenizer_pb2 import (
    AskReply,
    CancelReply,
    CancelRequest,
    ConvertReply,
    ConvertRequest,
    EngineAnswer,
    GatewayMessage,
    PromptTokens,
    Started,
    TextBatch,
    TextBulk,
    TextLogprob,
    TextLogprobs,
    TextMessage,
    TextRequest,
)
from protos.tokenizer_pb2_grpc import TokenizerServicer, add_TokenizerServicer_to_server

MODEL = "fake-model"


def column(*values: int) -> bytes:
    return array("I", values).tobytes()


class Stream:
    """One gateway's session as the fake sees it. Slots hold what was said to them so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox: asyncio.Queue[TextMessage | None] = asyncio.Queue()
        self.requests: dict[int, TextRequest] = {}
        self.requests_seen: dict[int, TextRequest] = {}
        self.text_bytes: dict[int, int] = defaultdict(int)
        self.num_tokens: dict[int, int] = defaultdict(int)
        self.aborted: list[int] = []
        self.pauses: list[tuple[int, bool]] = []  # slot, paused or resumed

    def add(self, request: TextRequest) -> None:
        for k in range(max(1, request.limits.n)):
            slot = request.slot + k
            resumed = request.resumed[0] if request.resumed else None
            self.requests[slot] = self.requests_seen[slot] = request
            self.text_bytes[slot] = resumed.text_bytes if resumed else 0
            self.num_tokens[slot] = len(resumed.token_ids) // 4 if resumed else 0

    def say(self, batch: TextBatch) -> None:
        self.outbox.put_nowait(TextMessage(batch=batch))

    def start(self, slot: int, num_prompt_tokens: int = 5) -> None:
        request = self.requests.get(slot)
        started = Started(slot=slot, num_prompt_tokens=num_prompt_tokens, model_hash="m")
        if request is not None and request.text.return_prompt_ids and slot == request.slot:
            started.prompt_token_ids = column(*range(num_prompt_tokens))
        self.say(TextBatch(started=[started]))

    def token(
        self, slot: int, text: str, *ids: int, logprob: float | None = None, channel: int = 0
    ) -> None:
        """Send one entry; its ids count up from the slot's position unless given."""
        ids = ids or (self.num_tokens[slot] + 100,)
        batch = TextBatch(
            slots=column(slot),
            text_offsets=column(self.text_bytes[slot]),
            texts=[text],
            counts=column(len(ids)),
            token_offsets=column(self.num_tokens[slot]),
            token_ids=column(*ids),
            channels=column(channel) if channel else b"",
        )
        if logprob is not None:
            entries = [logprob_entry(text, logprob), logprob_entry(text, logprob)]
            entries.append(logprob_entry("other", logprob - 1))
            index = self.num_tokens[slot]
            batch.logprobs.append(TextLogprobs(slot=slot, index=index, entries=entries))
        self.text_bytes[slot] += len(text.encode())
        self.num_tokens[slot] += len(ids)
        self.say(batch)

    def progress(self, slot: int, total: int, cached: int, computed: int) -> None:
        told = PromptProgress(slot=slot, num_total=total, num_cached=cached, num_computed=computed)
        self.say(TextBatch(progress=[told]))

    def bulk(self, slot: int, **body: Any) -> None:
        self.outbox.put_nowait(TextMessage(bulk=TextBulk(slot=slot, **body)))

    def prompt_logprobs(self, slot: int, *tokens: str | bytes, first: int = 1) -> None:
        """Send rows of prompt tokens; their ids are their indices, the one alternative is 99."""
        rows = [
            TextLogprobs(
                slot=slot,
                index=index,
                entries=[
                    logprob_entry(token, -index, index),
                    TextLogprob(token_id=99, logprob=-0.5, token="~"),
                ],
            )
            for index, token in enumerate(tokens, first)
        ]
        self.bulk(slot, prompt_tokens=PromptTokens(logprobs=rows))

    def finish(self, slot: int, reason: FinishReason = STOPPED, **more: Any) -> None:
        """Send the slot's end and forget it."""
        fields: dict[str, Any] = {
            "num_prompt_tokens": 5,
            "num_output_tokens": self.num_tokens.get(slot, 0),
            "timings": Timings(queue_s=0.001, prefill_s=0.002, decode_s=0.004),
        }
        self.requests.pop(slot, None)
        self.say(TextBatch(finishes=[Finish(slot=slot, reason=reason, **fields | more)]))

    def fail(self, slot: int, reason: FinishReason, **detail: Any) -> None:
        self.finish(slot, reason, error=ErrorDetail(**detail))

    def state(self, **fields: Any) -> None:
        known: dict[str, Any] = {
            "engine": "e0",
            "ready": True,
            "fingerprint": "fp",
            "kv_usage": 0.5,
        }
        self.outbox.put_nowait(TextMessage(state=EngineState(**known | fields)))

    def break_off(self) -> None:
        """End the stream under the gateway's feet."""
        self.outbox.put_nowait(None)


def logprob_entry(token: str | bytes, logprob: float, token_id: int = 1) -> TextLogprob:
    raw = token if isinstance(token, bytes) else token.encode()
    text = raw.decode("utf-8", "replace")
    return TextLogprob(token_id=token_id, logprob=logprob, token=text, token_bytes=raw)


def echo(words: str = "Hello there, wörld") -> Callable[[Stream, int], None]:
    """Return a script: each word a token, then STOPPED; a replay goes on where it was."""

    def run(stream: Stream, slot: int) -> None:
        stream.start(slot)
        tokens = words.split(" ")
        for index in range(stream.num_tokens[slot], len(tokens)):
            stream.token(slot, tokens[index] if index == 0 else f" {tokens[index]}")
        stream.finish(slot)

    return run


class FakeTokenizer(TokenizerServicer):  # type: ignore[misc]
    """Runs `script(stream, slot)` for each new slot; without one the test speaks itself."""

    def __init__(self, script: Callable[[Stream, int], None] | None = None) -> None:
        self.script = script
        self.streams: list[Stream] = []
        self.arrivals: asyncio.Queue[tuple[Stream, int]] = asyncio.Queue()
        self.aborts: asyncio.Queue[int] = asyncio.Queue()
        self.cancels: list[tuple[str, str]] = []
        self.converted: list[ConvertRequest] = []
        self.queries: list[tuple[str, Any]] = []
        self.answers: dict[str, dict[str, Any]] = {}  # kind -> engine -> body or ErrorDetail
        self.info = ModelInfo(
            id=MODEL, created_s=1_700_000_000, max_model_len=4096, aliases=["alias"],
            tool_format="hermes", reasoning_format="think_tags",
            sampling=SamplingParams(
                temperature=0.7, top_p=0.8, presence_penalty=0, frequency_penalty=0
            ),
        )  # fmt: skip
        self.is_ready = True
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> FakeTokenizer:
        self._server = new_server()
        add_TokenizerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = await start_server(self._server, f"127.0.0.1:{port}")
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    async def Session(
        self, incoming: AsyncIterator[GatewayMessage], context: Any
    ) -> AsyncIterator[TextMessage]:
        stream = Stream(len(self.streams) + 1)
        self.streams.append(stream)
        opened = SessionOpened(session=stream.number, models=[self.info])
        yield TextMessage(opened=opened)
        stream.state(ready=self.is_ready)
        reader = asyncio.create_task(self._read(stream, incoming))
        try:
            while (message := await stream.outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _read(self, stream: Stream, incoming: AsyncIterator[GatewayMessage]) -> None:
        async for message in incoming:
            assert message.session == stream.number
            for request in message.adds:
                stream.add(request)
                for slot in range(request.slot, request.slot + max(1, request.limits.n)):
                    self.arrivals.put_nowait((stream, slot))
                    if self.script is not None:
                        self.script(stream, slot)
            stream.pauses += [(slot, True) for slot in message.pauses]
            stream.pauses += [(slot, False) for slot in message.resumes]
            for slot in message.aborts:
                stream.aborted.append(slot)
                stream.requests.pop(slot, None)
                self.aborts.put_nowait(slot)

    async def Cancel(self, request: CancelRequest, context: Any) -> CancelReply:
        self.cancels.append((request.request_id, request.tenant))
        found = {
            (stream.number, asked.slot): (stream, slot)
            for stream in self.streams
            for slot, asked in stream.requests.items()
            if (asked.request_id, asked.limits.tenant) == (request.request_id, request.tenant)
        }
        for stream, slot in found.values():
            stream.finish(slot, ABORTED)
        return CancelReply(num_cancelled=len(found))

    async def Convert(self, request: ConvertRequest, context: Any) -> ConvertReply:
        """One character a token, its code point the id; a chat becomes `role: content` lines."""
        self.converted.append(request)
        kind = request.WhichOneof("input")
        if kind == "token_ids":
            ids = array("I", request.token_ids)
            if max(ids, default=0) >= 1_000_000:
                message = f"tokens has token id {max(ids)}"
                detail = ErrorDetail(kind="InvalidRequest", message=message, param="tokens")
                return ConvertReply(error=detail)
            text = "".join(chr(k % 0xD800) for k in ids)
            return ConvertReply(text=text, token_ids=request.token_ids)
        if kind == "about":
            about = {"tokenizer_class": "Fake", "eos_token": "<end>", "chat_template": None}
            return ConvertReply(about_json=json.dumps(about).encode())
        text = request.text
        if kind == "chat":
            messages = json.loads(request.chat.messages_json)
            text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        if text == "unspeakable":
            detail = ErrorDetail(kind="InvalidRequest", message="none", param="prompt", code="x")
            return ConvertReply(error=detail)
        return ConvertReply(
            text=text if kind == "chat" else "",
            token_ids=column(*map(ord, text)),
            pieces=[char.encode() for char in text] if request.with_pieces else [],
            max_model_len=self.info.max_model_len,
        )

    async def Ask(self, request: Query, context: Any) -> AskReply:
        self.queries.append((request.kind, json.loads(request.body_json)))
        reply = AskReply()
        for engine, told in self.answers.get(request.kind, {}).items():
            answer = QueryAnswer(query_id=request.query_id)
            if isinstance(told, ErrorDetail):
                answer.error.CopyFrom(told)
            else:
                answer.body_json = json.dumps(told).encode()
            reply.answers.append(EngineAnswer(engine=engine, answer=answer))
        return reply
