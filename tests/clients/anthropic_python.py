"""The anthropic package for Python, unmodified."""

from __future__ import annotations

import anthropic

from common import API_KEY, BASE_URL, MESSAGES, MODEL, SCHEMA, Fruit

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "system": "Be brief."}

whole = client.messages.create(**asked)
assert whole.content[0].text and whole.usage.output_tokens <= 24, whole
with client.messages.stream(**asked) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()
assert "".join(pieces) == final.content[0].text and final.stop_reason, final
assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).created_at.year > 2000
assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0

tool = {"name": "store", "description": "Store a fruit.", "input_schema": SCHEMA}
forced = {"tools": [tool], "tool_choice": {"type": "tool", "name": "store"}}
called = client.messages.create(**{**asked, "max_tokens": 250}, **forced)
(call,) = called.content
assert called.stop_reason == "tool_use" and Fruit.model_validate(call.input), called
with client.messages.stream(**{**asked, "max_tokens": 250}, **forced) as stream:
    (streamed,) = stream.get_final_message().content
assert Fruit.model_validate(streamed.input), streamed
history = [
    *MESSAGES,
    {"role": "assistant", "content": called.content},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "stored"}],
    },
]
assert client.messages.create(**{**asked, "messages": history}, tools=[tool]).content

shape = {"format": {"type": "json_schema", "schema": SCHEMA}}
shaped = client.messages.create(**{**asked, "max_tokens": 80}, output_config=shape)
assert Fruit.model_validate_json(shaped.content[0].text), shaped

try:
    client.messages.create(**{**asked, "max_tokens": 0})
except anthropic.BadRequestError as error:
    assert "max_tokens" in str(error), error
else:
    raise AssertionError("max_tokens 0 was taken")
