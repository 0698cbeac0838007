"""Text work without generation, as clients of /tokenize, /detokenize and /apply-template see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protos.tokenizer_pb2 import ChatInput, ConvertReply, ConvertRequest
from tests.support.fake_engine import column, ids_of
from tests.support.tiny_tokenizer import write_tiny_folder
from tests.tokenizer_service.stage import Build
from tokenizer_service import conversion


async def converted(build: Build, **fields: Any) -> ConvertReply:
    return await build().pipeline.convert(ConvertRequest(**({"model": "tiny"} | fields)))


async def test_text_to_ids_and_back(build: Build) -> None:
    reply = await converted(build, text="Hello 你!", with_pieces=True)
    ids = ids_of(reply.token_ids)
    assert b"".join(reply.pieces).decode() == "Hello 你!" and len(reply.pieces) == len(ids)
    assert reply.max_model_len == 256 and not reply.HasField("error")
    back = await converted(build, token_ids=reply.token_ids)
    assert back.text == "Hello 你!" and not back.pieces


async def test_half_characters_and_special_tokens(build: Build) -> None:
    stage = build()
    ids = column([72, stage.eos, 0xE4, 0xBD])
    shown = await stage.pipeline.convert(
        ConvertRequest(model="tiny", token_ids=ids, keep_special_tokens=True, with_pieces=True)
    )
    assert shown.text == "H<|im_end|>\ufffd"
    assert list(shown.pieces) == [b"H", b"<|im_end|>", b"\xe4", b"\xbd"]
    hidden = await stage.pipeline.convert(ConvertRequest(model="tiny", token_ids=ids))
    assert hidden.text == "H\ufffd"


async def test_a_chat_is_rendered_and_encoded(build: Build) -> None:
    messages = json.dumps([{"role": "user", "content": "a<|im_end|>"}]).encode()
    reply = await converted(build, chat=ChatInput(messages_json=messages))
    wanted = "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert reply.text == wanted
    stage = build()
    special = ids_of(reply.token_ids).count(stage.eos)
    assert special == 1  # what the user wrote is text


async def test_a_folder_says_what_prompts_are_written_with(build: Build) -> None:
    stage = build()
    reply = await stage.pipeline.convert(ConvertRequest(model="tiny", about=True))
    about, folder = json.loads(reply.about_json), stage.model.folder
    assert about["chat_template"] == folder.templates["default"]
    assert about["eos_token"] == folder.token_texts["eos_token"] == "<|im_end|>"
    assert about["tokenizer_class"] == folder.tokenizer_class


async def test_an_empty_text_has_no_ids(build: Build) -> None:
    reply = await converted(build, text="")
    assert reply.token_ids == b"" and not reply.HasField("error")


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "other", "text": "a"}, "NotFound", "model"),
        ({}, "InvalidRequest", "prompt"),
        ({"token_ids": column([600])}, "InvalidRequest", "tokens"),
        ({"token_ids": b"123"}, "InvalidRequest", "tokens"),
        ({"chat": ChatInput(messages_json=b"[1]")}, "InvalidRequest", "messages"),
    ],
)
async def test_what_is_wrong_comes_as_a_row(
    build: Build, fields: dict[str, Any], kind: str, param: str
) -> None:
    reply = await converted(build, **fields)
    assert (reply.error.kind, reply.error.param) == (kind, param)


async def test_without_a_tokenizer_there_is_no_text(build: Build, tmp_path: Path) -> None:
    stage = build(write_tiny_folder(tmp_path / "bare", with_tokenizer=False))
    for given in ({"text": "a"}, {"token_ids": column([1])}):
        reply = await stage.pipeline.convert(ConvertRequest(**({"model": "tiny"} | given)))
        assert reply.error.code == "no_tokenizer"


async def test_an_answer_that_would_not_pass_is_an_error(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "MOST_BYTES", 1000)
    reply = await converted(build, token_ids=column(b"a" * 400))
    assert (reply.error.kind, reply.error.param, reply.text) == ("PayloadTooLarge", "tokens", "")
    assert len((await converted(build, token_ids=column(b"a" * 90))).text) == 90
