"""The kinds of request to a model: what each is read as, what is checked, what order it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from api_gateway.anthropic.schema import MessagesRequest, Prompted
from api_gateway.anthropic.translate import order_messages
from api_gateway.responses.schema import ResponseRequest
from api_gateway.responses.translate import order_response
from api_gateway.schema import ChatRequest, CompletionRequest, EmbeddingRequest
from api_gateway.translate import Caller, Order, order_chat, order_completion, order_embedding
from api_gateway.validation import check_chat, check_completion, check_embedding

B = TypeVar("B", ChatRequest, CompletionRequest, EmbeddingRequest, ResponseRequest, Prompted)


@dataclass(frozen=True)
class Form(Generic[B]):
    """One kind. `check` is what needs no model; all may raise InvalidRequest."""

    body: type[B]
    order: Callable[[B, Caller], Order]
    check: Callable[[B], None] = lambda body: None


CHAT = Form(ChatRequest, order_chat, check_chat)
COMPLETION = Form(CompletionRequest, order_completion, check_completion)
RESPONSE = Form(ResponseRequest, order_response)
MESSAGE: Form[Any] = Form(MessagesRequest, order_messages)
MESSAGE_PROMPT = Form(Prompted, order_messages)
EMBEDDING = Form(EmbeddingRequest, order_embedding, check_embedding)
