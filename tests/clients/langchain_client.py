"""langchain-openai: chat, streams, tools, structured output, embeddings."""

from __future__ import annotations

import asyncio

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from common import API_KEY, BASE_URL, MODEL, TOOL, Fruit

common = {"base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0}
chat = ChatOpenAI(model=MODEL, temperature=0, max_tokens=24, seed=1, stream_usage=True, **common)
long = ChatOpenAI(model=MODEL, temperature=0, max_tokens=250, seed=1, **common)
messages = [SystemMessage("Be short."), HumanMessage("What is Millrace?")]

whole = chat.invoke(messages)
assert whole.content and whole.usage_metadata["output_tokens"]
parts = list(chat.stream(messages))
assert "".join(part.content for part in parts) == whole.content
assert any(part.usage_metadata for part in parts)
both = asyncio.run(chat.abatch([messages, "Hello"]))
assert both[0].content == whole.content

called = long.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
answer = called.invoke("Store three ripe plums.")
(call,) = answer.tool_calls
assert call["name"] == "store" and Fruit.model_validate(call["args"])
summed = None
for part in called.stream("Store three ripe plums."):
    summed = part if summed is None else summed + part
assert summed.tool_calls[0]["args"] == call["args"]
history = [HumanMessage("Store."), answer, ToolMessage("stored", tool_call_id=call["id"])]
assert isinstance(chat.invoke(history), AIMessage)

for method in ("json_schema", "function_calling"):
    fruit = long.with_structured_output(Fruit, method=method).invoke("A ripe plum.")
    assert isinstance(fruit, Fruit), (method, fruit)

assert OpenAI(model=MODEL, max_tokens=4, **common).invoke("Hello") is not None
embedder = OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False, **common)
assert len(embedder.embed_documents(["a", "b"])) == 2 and embedder.embed_query("a")
