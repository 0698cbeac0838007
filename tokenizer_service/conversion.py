"""Text work without generation: texts and chats → token ids, token ids → text."""

from __future__ import annotations

import asyncio

import orjson

from common.errors import InvalidRequest, PayloadTooLarge, ServiceError
from common.rpc import MAX_MESSAGE_BYTES
from protos.columns import unpack
from protos.common_pb2 import ErrorDetail
from protos.tokenizer_pb2 import ConvertReply, ConvertRequest
from tokenizer_service.text_model import TextModel
from tokenizer_service.turns import Asker

MOST_BYTES = MAX_MESSAGE_BYTES - 2**20
"""Of an answer: a larger one would not pass."""


async def convert(model: TextModel, request: ConvertRequest, max_model_len: int) -> ConvertReply:
    """Return what was asked for; what is wrong comes as an error of the reply."""
    reply = ConvertReply(max_model_len=max_model_len)
    try:
        model.completion.check_model(request.model)
        await _fill(model, request, reply)
    except ServiceError as error:
        detail = ErrorDetail(**error.fields())
        return ConvertReply(max_model_len=max_model_len, error=detail)
    return reply


async def _fill(model: TextModel, request: ConvertRequest, reply: ConvertReply) -> None:
    kind = request.WhichOneof("input")
    if kind == "chat":
        prompt = await model.prompts.chat(request.chat, Asker(request.tenant))
        reply.token_ids, reply.text = prompt.token_ids, prompt.text
    elif kind == "text":
        reply.token_ids = await model.prompts.text(
            request.text, "prompt", not request.no_special_tokens
        )
    elif kind == "token_ids":
        ids = unpack(model.prompts.checked_ids(request.token_ids, "tokens"))
        keep = request.keep_special_tokens
        reply.text = await asyncio.to_thread(model.text_of, ids, keep)
        reply.token_ids = request.token_ids
    elif kind == "about":
        reply.about_json = orjson.dumps(model.about())
    else:
        raise InvalidRequest("there is nothing to convert", param="prompt")
    if request.with_pieces:
        ids = unpack(reply.token_ids)
        reply.pieces.extend(await asyncio.to_thread(lambda: [model.token(i)[1] for i in ids]))
    if reply.ByteSize() > MOST_BYTES:
        raise PayloadTooLarge(
            f"the text has more than {MOST_BYTES} bytes; send fewer tokens", param="tokens"
        )
