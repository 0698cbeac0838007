"""From the pieces of one request to RequestOutputs: what is new at each step, and the whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from api_gateway.answers import CallReader, Said, whole_calls
from api_gateway.bulks import Bulks
from api_gateway.replies import stop_reason
from api_gateway.structure import blamed, grammar_field
from common.errors import Internal, from_detail
from millrace.client import Piece
from millrace.outputs import FINISH_REASONS, CompletionOutput, Logprob, RequestOutput
from millrace.params import SamplingParams
from millrace.prompts import Asked, Prompt, prompt_text
from protos import common_pb2
from protos.columns import unpack
from protos.tokenizer_pb2 import TextLogprobs


class Deltas:
    """Reads the pieces of one request, in order."""

    def __init__(self, prompt: Prompt, params: SamplingParams, asked: Asked) -> None:
        self._prompt = prompt
        self._prompt_ids: list[int] = []
        self._params = params
        self._asked = asked
        self._num_open = params.n
        self._request_id = asked.request.request_id
        choices = range(params.n)
        self._bulks = [Bulks() for _ in choices]
        self._num_tokens = [0] * len(choices)
        self._calls = [CallReader(asked.tools, self._request_id, choice) for choice in choices]

    def read(self, piece: Piece) -> RequestOutput:
        """Return what `piece` adds; raise the ServiceError it ends with."""
        asked, finish, bulks = self._asked, piece.finish, self._bulks[piece.choice]
        if finish is not None and finish.reason in (common_pb2.ERROR, common_pb2.IGNORED):
            field = grammar_field(self._params.structured_outputs)
            grammar = asked.request.text.grammar.text
            raise blamed(from_detail(finish.error), field, asked.tools, grammar)
        for bulk in piece.bulks:
            bulks.add(bulk)
        self._num_open -= finish is not None
        output = self._output(piece)
        self._prompt_ids = self._prompt_ids or unpack(piece.prompt_ids).tolist()
        whole = RequestOutput(
            request_id=self._request_id,
            prompt=prompt_text(self._prompt),
            prompt_token_ids=self._prompt_ids,
            outputs=[output],
            num_prompt_tokens=len(self._prompt_ids),
            finished=self._num_open == 0,
        )
        if finish is not None:
            self._end(output, whole, finish)
        return whole

    def _output(self, piece: Piece) -> CompletionOutput:
        params = self._params
        said = Said(parts=self._calls[piece.choice].read(piece.text, piece.finish is not None))
        self._num_tokens[piece.choice] += len(piece.token_ids)
        traces = self._bulks[piece.choice].take_traces(self._num_tokens[piece.choice])
        return CompletionOutput(
            index=piece.choice,
            text=said.content,
            reasoning=piece.reasoning if self._asked.show_reasoning else "",
            tool_calls=said.calls,
            token_ids=list(piece.token_ids),
            logprobs=_logprobs(piece.logprobs) if params.logprobs is not None else None,
            sampler_trace=traces if params.return_sampler_trace else None,
        )

    def _end(
        self, output: CompletionOutput, whole: RequestOutput, finish: common_pb2.Finish
    ) -> None:
        called = finish.reason == common_pb2.STOPPED and self._calls[output.index].are_whole
        output.finish_reason = "tool_calls" if called else FINISH_REASONS[finish.reason]
        output.stop_reason = stop_reason(finish)
        output.num_reasoning_tokens = finish.num_reasoning_tokens
        whole.num_prompt_tokens = finish.num_prompt_tokens
        whole.num_cached_tokens = finish.num_cached_tokens
        if whole.finished and self._params.prompt_logprobs is not None:
            rows = max((bulks.prompt_rows for bulks in self._bulks), key=len)
            whole.prompt_logprobs = [None, *_logprobs([row for row in rows if row.index])]


async def collect(deltas: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    """Join the deltas of one request."""
    whole: RequestOutput | None = None
    outputs: dict[int, CompletionOutput] = {}
    async for delta in deltas:
        whole = delta
        for new in delta.outputs:
            _join(outputs, new)
    if whole is None:
        raise Internal("a request ended without an end")
    whole.outputs = [outputs[index] for index in sorted(outputs)]
    for output in whole.outputs:
        output.tool_calls = whole_calls(output.tool_calls)
    return whole


def _join(outputs: dict[int, CompletionOutput], new: CompletionOutput) -> None:
    held = outputs.setdefault(new.index, new)
    if held is new:
        return
    held.text += new.text
    held.reasoning += new.reasoning
    held.tool_calls += new.tool_calls
    held.token_ids += new.token_ids
    if held.logprobs is not None and new.logprobs is not None:
        held.logprobs += new.logprobs
    if held.sampler_trace is not None and new.sampler_trace is not None:
        held.sampler_trace += new.sampler_trace
    held.finish_reason, held.stop_reason = new.finish_reason, new.stop_reason
    held.num_reasoning_tokens = new.num_reasoning_tokens


def _logprobs(rows: Sequence[TextLogprobs]) -> list[dict[int, Logprob]]:
    """Return one dict per token; the chosen one stands first even if it is an alternative, too."""
    return [
        {e.token_id: Logprob(e.logprob, e.token, e.token_bytes) for e in row.entries}
        for row in rows
    ]
