"""The openai package for Python, unmodified."""

from __future__ import annotations

import math

import openai

from common import API_KEY, BASE_URL, MESSAGES, MODEL, TOOL, Fruit

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "seed": 1}

assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL

whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, n=2)
first = whole.choices[0]
assert len(whole.choices) == 2 and first.message.content, whole
assert first.logprobs.content[0].top_logprobs and whole.usage.completion_tokens <= 48
chunks = list(
    client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
)
streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert streamed == first.message.content, (streamed, first.message.content)
assert chunks[-1].usage.completion_tokens > 0

text = client.completions.create(
    model=MODEL, prompt=["Hello", [1, 2, 3]][:1], max_tokens=4, logprobs=1, echo=True
)
assert text.choices[0].text.startswith("Hello") and text.choices[0].logprobs.tokens
pieces = client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=4, stream=True)
assert [piece.choices[0] for piece in pieces if piece.choices]

parsed = client.chat.completions.parse(**{**asked, "max_tokens": 80}, response_format=Fruit)
assert isinstance(parsed.choices[0].message.parsed, Fruit), parsed
talk = [*MESSAGES, parsed.choices[0].message, *MESSAGES]
assert client.chat.completions.create(**{**asked, "messages": talk}).choices

called = client.chat.completions.create(
    **{**asked, "max_tokens": 250}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
)
(call,) = called.choices[0].message.tool_calls
assert called.choices[0].finish_reason == "tool_calls"
assert call.function.name == "store" and Fruit.model_validate_json(call.function.arguments)
with client.chat.completions.stream(
    **{**asked, "max_tokens": 250}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
) as stream:
    final = stream.get_final_completion()
streamed = final.choices[0].message.tool_calls[0].function.arguments
assert streamed == call.function.arguments, (final, call)
history = [
    *MESSAGES,
    called.choices[0].message.model_dump(exclude_none=False),
    {"role": "tool", "tool_call_id": call.id, "content": "stored"},
]
assert client.chat.completions.create(**{**asked, "messages": history}).choices

response = client.responses.create(model=MODEL, input=MESSAGES, max_output_tokens=24, temperature=0)
assert response.output_text == first.message.content, response
with client.responses.stream(
    model=MODEL, input=MESSAGES, max_output_tokens=80, temperature=0, text_format=Fruit
) as stream:
    for _ in stream:
        pass
    assert isinstance(stream.get_final_response().output_parsed, Fruit)

vectors = client.embeddings.create(model=MODEL, input=["a", "b c"]).data
assert len(vectors) == 2
assert math.isclose(math.hypot(*vectors[0].embedding), 1, rel_tol=1e-3)
short = client.embeddings.create(model=MODEL, input="a", dimensions=8, encoding_format="float")
assert len(short.data[0].embedding) == 8

for broken, field in (
    ({"temperature": 9}, "temperature"),
    ({"extra_body": {"nonsense": 1}}, "nonsense"),
):
    try:
        client.chat.completions.create(**{**asked, **broken})
    except openai.BadRequestError as error:
        assert error.param == field, error
    else:
        raise AssertionError(f"{field} was accepted")
try:
    client.chat.completions.create(**{**asked, "model": "nobody"})
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
