"""What is too large for the columns, as gateways read it: ids get their texts.

Prompt log probabilities, embeddings and sampler traces. Knows no stream.
"""

from __future__ import annotations

from typing import Any

import orjson

from protos.columns import unpack
from protos.engine_pb2 import Bulk, PromptLogprobs, TokenLogprobs
from protos.tokenizer_pb2 import PromptTokens, TextBulk, TextLogprob, TextLogprobs
from tokenizer_service.text_model import TextModel
from tokenizer_service.ticket import Choice


class BulkText:
    """Shows the bulks of one model."""

    def __init__(self, model: TextModel) -> None:
        self._model = model

    def show(self, choice: Choice, bulk: Bulk) -> TextBulk | None:
        """Return the gateway's form; None when a replay says again what is known."""
        kind = bulk.WhichOneof("body")
        shown = TextBulk(slot=choice.slot)
        if kind == "prompt_logprobs":
            tokens = self._prompt_tokens(choice, bulk.prompt_logprobs)
            if not tokens.logprobs:
                return None
            shown.prompt_tokens.CopyFrom(tokens)
        elif kind == "embedding":
            shown.embedding = bulk.embedding
        elif kind == "trace_json":
            shown.trace_json = orjson.dumps(self._with_texts(orjson.loads(bulk.trace_json)))
        else:
            return None
        return shown

    def _prompt_tokens(self, choice: Choice, told: PromptLogprobs) -> PromptTokens:
        """Return the rows that were not shown before; an engine that starts again repeats all.

        The first token, of which an engine has nothing to tell, is there for its text.
        """
        rows = [row for row in told.tokens if row.index >= choice.next_prompt_logprob]
        if rows and choice.next_prompt_logprob == 0 and rows[0].index == 1:
            first = unpack(choice.ticket.prompt)[0]
            rows.insert(0, TokenLogprobs(index=0, token_ids=[first], logprobs=[0.0]))
        if rows:
            choice.next_prompt_logprob = rows[-1].index + 1
        return PromptTokens(logprobs=[self.logprobs(choice.slot, row) for row in rows])

    def logprobs(self, slot: int, row: TokenLogprobs) -> TextLogprobs:
        """Return the log probabilities of one token with texts and bytes."""
        entries = []
        for token_id, logprob in zip(row.token_ids, row.logprobs, strict=True):
            text, piece = self._model.token(token_id)
            entries.append(
                TextLogprob(token_id=token_id, logprob=logprob, token=text, token_bytes=piece)
            )
        return TextLogprobs(slot=slot, index=row.index, entries=entries)

    def _with_texts(self, trace: dict[str, Any]) -> dict[str, Any]:
        """Return a trace with the drawn `token`, and in each stage the `tokens` of its `top`."""
        trace["token"] = self._model.token(trace["token_id"])[0]
        for stage in trace["stages"]:
            stage["tokens"] = [self._model.token(token_id)[0] for token_id, _ in stage["top"]]
        return trace
