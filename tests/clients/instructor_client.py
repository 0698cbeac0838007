"""instructor: objects out of answers, by tools and by JSON schema."""

from __future__ import annotations

import instructor
import openai

from common import API_KEY, BASE_URL, MESSAGES, MODEL, Fruit

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    fruit = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Fruit, max_tokens=250, temperature=0,
        max_retries=0,
    )  # fmt: skip
    assert isinstance(fruit, Fruit), mode
partials = list(
    instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create_partial(
        model=MODEL, messages=MESSAGES, response_model=Fruit, max_tokens=250, temperature=0
    )
)
assert partials[-1].name and partials[-1].ripe is not None
