"""Facts of a folder: EOS lists, sampling defaults, where the template comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenizer_service.model_folder import ModelFolderError, read_model_folder


def folder(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(("value", "ids"), [(7, {7}), ([7, 8], {7, 8}), (None, {9})])
def test_eos_is_a_number_a_list_or_the_configs(tmp_path: Path, value: Any, ids: set[int]) -> None:
    generation = {} if value is None else {"eos_token_id": value}
    folder(tmp_path, config={"eos_token_id": 9}, generation_config=generation)
    assert read_model_folder(tmp_path).eos_token_ids == ids


def test_do_sample_false_is_greedy(tmp_path: Path) -> None:
    folder(tmp_path, generation_config={"do_sample": False, "temperature": 0.7, "top_k": 20})
    assert read_model_folder(tmp_path).sampling_defaults == {"temperature": 0.0, "top_k": 20}


def test_the_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": "configured"})
    assert read_model_folder(tmp_path).templates == {"default": "configured"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_model_folder(tmp_path).templates == {"default": "file"}


def test_a_list_of_templates_is_read_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder(tmp_path, tokenizer_config={"chat_template": named})
    assert read_model_folder(tmp_path).templates == {"default": "a", "tool_use": "b"}


def test_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    tokens = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    folder(tmp_path, tokenizer_config={**tokens, "unk_token": None})
    assert read_model_folder(tmp_path).token_texts == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_served_name_is_the_folders_unless_given(tmp_path: Path) -> None:
    assert read_model_folder(tmp_path).name == tmp_path.name
    assert read_model_folder(tmp_path, "mine").name == "mine"


def test_bad_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        read_model_folder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        read_model_folder(tmp_path)


def test_real_folders(reference_data: Path) -> None:
    qwen = read_model_folder(reference_data / "models/Qwen2.5-0.5B-Instruct")
    assert qwen.eos_token_ids == {151645, 151643} and qwen.vocab_size == 151936
    assert qwen.sampling_defaults == {
        "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1,
    }  # fmt: skip
    deepseek = read_model_folder(reference_data / "models/DeepSeek-R1-Distill-Qwen-1.5B")
    assert (deepseek.token_texts or {})["bos_token"] == "<｜begin▁of▁sentence｜>"
