"""A model folder's text side as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from protos.tokenizer_pb2 import ChatInput
from tests.support.tiny_tokenizer import write_tiny_folder
from tests.tokenizer_service.stage import Build
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.text_model import load_text_model
from tokenizer_service.turns import NOBODY


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ 'a' * 10**9 }}"])
async def test_a_template_that_fails_at_the_start_ends_nothing(
    build: Build, tmp_path: Path, template: str
) -> None:
    """Chats are refused one by one; texts that need no template are served."""
    folder = write_tiny_folder(tmp_path / "tiny")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    await build(folder).model.warm_up()


async def test_templates_get_the_operators_values_where_a_request_gives_none(
    tmp_path: Path,
) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    path = folder / "tokenizer_config.json"
    template = "{{ [thinks, name, eos_token] | join(' ') }}"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    operators = {"thinks": False, "name": "x"}
    model = load_text_model(folder, "", TokenizerMetrics(CollectorRegistry()), operators)
    given = b'{"thinks": true}'
    for kwargs, text in ((b"", "False x <|im_end|>"), (given, "True x <|im_end|>")):
        asked = ChatInput(messages_json=b'[{"role": "user", "content": "a"}]')
        asked.template_kwargs_json = kwargs
        assert (await model.prompts.chat(asked, NOBODY)).text == text
    await model.close()


async def test_gateways_are_told_what_is_drawn_by_where_a_request_says_nothing(
    tmp_path: Path,
) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    generation = {"temperature": 0.6, "top_k": -1, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = load_text_model(folder, "", TokenizerMetrics(CollectorRegistry()))
    told = model.info(max_model_len=64).sampling
    assert (told.temperature, told.top_p, told.top_k, told.repetition_penalty) == (0.6, 1, 0, 1.1)
    await model.close()
