"""A model folder's text side as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_tokenizer import write_tiny_folder
from tests.tokenizer_service.stage import Build


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ 'a' * 10**9 }}"])
async def test_a_template_that_fails_at_the_start_ends_nothing(
    build: Build, tmp_path: Path, template: str
) -> None:
    """Chats are refused one by one; texts that need no template are served."""
    folder = write_tiny_folder(tmp_path / "tiny")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    await build(folder).model.warm_up()
