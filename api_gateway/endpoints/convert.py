"""Text work without generation: /tokenize, /detokenize, /apply-template and token counting."""

from __future__ import annotations

from typing import Any

import orjson

from api_gateway.asgi import Call
from api_gateway.checks import check_count, check_token_ids, refuse
from api_gateway.door import Door
from api_gateway.forms import Form
from api_gateway.messages import check_conversation
from api_gateway.schema import (
    ChatPrompt,
    DetokenizeRequest,
    TokenizeRequest,
)
from api_gateway.text_calls import TextCalls
from api_gateway.tools import check_tools
from api_gateway.translate import Kind, chat_input
from protos import limits
from protos.columns import pack, unpack
from protos.tokenizer_pb2 import ChatInput, ConvertReply, ConvertRequest


class Convert:
    """Answers with what the tokenizer makes of a text, ids or a conversation."""

    def __init__(self, calls: TextCalls, door: Door) -> None:
        self._calls = calls
        self._door = door

    async def tokenize(self, call: Call) -> None:
        """Answer with ids, as vLLM's route of this name."""
        with self._door.admission.enter(call.tenant):
            body = await self._door.read(call, TokenizeRequest)
            if (body.prompt is None) == (body.messages is None):
                raise refuse("exactly one of prompt and messages is needed", "prompt")
            check_form(body)
            asked = await self._asked(call, body.model)
            asked.with_pieces = bool(body.return_token_strs)
            if body.messages is not None:
                asked.chat.CopyFrom(conversation(body))
            else:
                asked.no_special_tokens = body.add_special_tokens is False
                asked.text = body.prompt or ""
            reply = await self._calls.convert(asked)
            ids = unpack(reply.token_ids).tolist()
            await call.reply_json(
                200,
                {
                    "count": len(ids),
                    "max_model_len": reply.max_model_len or None,
                    "tokens": ids,
                    "token_strs": strings(reply) if body.return_token_strs else None,
                },
            )

    async def detokenize(self, call: Call) -> None:
        """Answer with the text of ids."""
        with self._door.admission.enter(call.tenant):
            body = await self._door.read(call, DetokenizeRequest)
            check_count(body.tokens, limits.MAX_CONVERTED_TOKENS, "tokens")
            check_token_ids(body.tokens, "tokens")
            asked = await self._asked(call, body.model)
            asked.token_ids = pack(body.tokens)
            asked.keep_special_tokens = body.skip_special_tokens is not True
            reply = await self._calls.convert(asked)
            await call.reply_json(200, {"prompt": reply.text})

    async def apply_template(self, call: Call) -> None:
        """Answer with the prompt that a conversation becomes, as llama.cpp's route."""
        with self._door.admission.enter(call.tenant):
            body = await self._door.read(call, ChatPrompt)
            asked = await self._asked(call, body.model)
            asked.chat.CopyFrom(conversation(body))
            reply = await self._calls.convert(asked)
            await call.reply_json(200, {"prompt": reply.text})

    async def about(self, call: Call) -> None:
        """Answer with the template and the named tokens, as vLLM's route of this name."""
        with self._door.admission.enter(call.tenant):
            asked = await self._asked(call, None)
            asked.about = True
            reply = await self._calls.convert(asked)
            await call.reply_json(200, orjson.loads(reply.about_json))

    async def count(self, form: Form[Any], call: Call) -> None:
        """Answer how many tokens the prompts of a request have together, in the form's words."""
        with self._door.admission.enter(call.tenant):
            order = await self._door.order(call, form)
            counts = [len(await self._calls.prompt_ids(request)) for request in order.requests]
            shown: dict[str, Any] = {"input_tokens": sum(counts)}
            if order.kind is not Kind.MESSAGE:
                shown = {"object": "response.input_tokens", **shown}
            await call.reply_json(200, shown)

    async def _asked(self, call: Call, model: str | None) -> ConvertRequest:
        caller = await self._door.caller(call, model)
        return ConvertRequest(model=caller.info.id, tenant=caller.tenant)


def check_form(body: TokenizeRequest) -> None:
    """Refuse what only the other form of the body has a meaning for."""
    if body.messages is not None:
        if body.add_special_tokens:
            raise refuse(
                "add_special_tokens is for a prompt: a template writes its own",
                "add_special_tokens",
            )
        return
    for name in (
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "tools",
    ):
        if getattr(body, name) is not None:
            raise refuse(f"{name} is for messages", name)


def conversation(body: ChatPrompt | TokenizeRequest) -> ChatInput:
    """Return a checked conversation."""
    check_conversation(body)
    check_tools(body.tools or [])
    return chat_input(body, is_offered=True)


def strings(reply: ConvertReply) -> list[str]:
    """Return each token's own text; bytes that are no whole character show as U+FFFD."""
    return [piece.decode("utf-8", "replace") for piece in reply.pieces]
