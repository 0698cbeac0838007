"""litellm, as a proxy or an application would use it: provider `openai` with our address."""

from __future__ import annotations

import litellm

from common import API_KEY, BASE_URL, MESSAGES, MODEL, TOOL, Fruit

asked = {
    "model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "messages": MESSAGES,
    "max_tokens": 24, "temperature": 0, "seed": 1,
}  # fmt: skip

whole = litellm.completion(**asked)
assert whole.choices[0].message.content and whole.usage.total_tokens
chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
assert streamed == whole.choices[0].message.content
rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens

called = litellm.completion(**{**asked, "max_tokens": 250}, tools=[TOOL], tool_choice="required")
call = called.choices[0].message.tool_calls[0]
assert call.function.name == "store" and Fruit.model_validate_json(call.function.arguments)
result = {"role": "tool", "tool_call_id": call.id, "content": "stored"}
history = [*MESSAGES, called.choices[0].message, result, whole.choices[0].message, *MESSAGES]
assert litellm.completion(**{**asked, "messages": history}).choices[0].message.content

formed = litellm.completion(**{**asked, "max_tokens": 80}, response_format=Fruit)
assert Fruit.model_validate_json(formed.choices[0].message.content)

text = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, prompt="Hello",
    max_tokens=4,
)  # fmt: skip
assert text.choices[0].text is not None

vectors = litellm.embedding(
    model=f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, input=["a", "b"]
)
assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 1

try:
    litellm.completion(**{**asked, "temperature": 9})
except litellm.BadRequestError as error:
    assert "temperature" in str(error)
else:
    raise AssertionError("temperature was accepted")
