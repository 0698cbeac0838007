"""Facts of a folder: EOS lists, sampling defaults, where the template comes from."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from common.model_folder import ModelFolderError
from protos.common_pb2 import LAST, MEAN, ModelInfo
from tests.support.tiny_model import write_tokenizer
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.text_model import all_eos_ids
from tokenizer_service.tokenizer import load_tokenizer


def folder(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(("value", "ids"), [(7, {7}), ([7, 8], {7, 8}), (None, {9})])
def test_eos_is_a_number_a_list_or_the_configs(tmp_path: Path, value: Any, ids: set[int]) -> None:
    generation = {} if value is None else {"eos_token_id": value}
    folder(tmp_path, config={"eos_token_id": 9}, generation_config=generation)
    assert read_model_folder(tmp_path).eos_token_ids == ids


@pytest.mark.parametrize(("vocab_size", "ids"), [(256, {9}), (258, {9, 257})])
def test_an_eos_token_beyond_the_model_ends_nothing(
    tmp_path: Path, vocab_size: int, ids: set[int]
) -> None:
    write_tokenizer(tmp_path)  # its eos_token is 257
    folder(tmp_path, config={"eos_token_id": 9, "vocab_size": vocab_size})
    found = read_model_folder(tmp_path)
    assert all_eos_ids(found, load_tokenizer(found)) == ids


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("", "here"),
        ("/models/Qwen2.5", "Qwen2.5"),
        ("./a/b", "b"),
        ("Qwen/Qwen2.5", "Qwen/Qwen2.5"),
    ],
)
def test_a_path_for_a_name_stands_for_its_end(tmp_path: Path, told: str, name: str) -> None:
    (tmp_path / "here").mkdir()
    assert read_model_folder(tmp_path / "here", told).name == name


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (None, LAST),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, LAST),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, MEAN),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, LAST),
        ({"pooling_mode": "mean", "pooling_mode_lasttoken": True}, MEAN),
    ],
)
def test_what_sentence_transformers_takes_for_an_embedding(
    tmp_path: Path, fields: dict[str, Any] | None, found: int
) -> None:
    if fields is not None:
        write_pooling(tmp_path, fields)
    assert read_model_folder(tmp_path).pooling == found


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling_mode_cls_token": True},
        {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode_mean_tokens": 1},
        {"pooling_mode": "cls"},
        {"pooling_mode": ["mean", "lasttoken"]},
    ],
)
def test_an_embedding_that_nobody_computes_is_refused(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    write_pooling(tmp_path, fields)
    with pytest.raises(ModelFolderError, match="1_Pooling/config.json: pooling_mode"):
        read_model_folder(tmp_path)


def write_pooling(folder: Path, fields: dict[str, Any]) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))


def test_an_embedding_that_goes_through_a_layer_more_is_refused(tmp_path: Path) -> None:
    write_pooling(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps({"out_features": 8}))
    with pytest.raises(ModelFolderError, match="2_Dense/config.json: a layer behind the pooling"):
        read_model_folder(tmp_path)


def write_modules(folder: Path, *modules: tuple[str, str]) -> None:
    told = [{"idx": at, "path": path, "type": kind} for at, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(told))


def test_the_list_of_modules_says_which_folder_tells_of_the_pooling(tmp_path: Path) -> None:
    write_pooling(tmp_path, {"pooling_mode_mean_tokens": True})
    (tmp_path / "1_Pooling").rename(tmp_path / "pool")
    at = "sentence_transformers.models."
    write_modules(
        tmp_path, ("", f"{at}Transformer"), ("pool", f"{at}Pooling"), ("2", f"{at}Normalize")
    )
    assert read_model_folder(tmp_path).pooling == MEAN


def test_a_module_that_nobody_computes_is_refused(tmp_path: Path) -> None:
    write_pooling(tmp_path, {"pooling_mode_mean_tokens": True})
    at = "sentence_transformers.models."
    write_modules(
        tmp_path, ("", f"{at}Transformer"), ("1_Pooling", f"{at}Pooling"), ("2", f"{at}LayerNorm")
    )
    with pytest.raises(ModelFolderError, match=r"modules.json: type is .*LayerNorm', allowed: Tra"):
        read_model_folder(tmp_path)


def test_an_embedding_of_lower_case_texts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sentence_bert_config.json"
    file.write_text(json.dumps({"max_seq_length": 512, "do_lower_case": False}))
    assert read_model_folder(tmp_path).pooling == LAST
    file.write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ModelFolderError, match="sentence_bert_config.json: do_lower_case is True"):
        read_model_folder(tmp_path)


def test_a_reranker_serves_texts(tmp_path: Path) -> None:
    at = "sentence_transformers."
    write_modules(
        tmp_path,
        ("", f"{at}base.modules.transformer.Transformer"),
        ("1_LogitScore", f"{at}cross_encoder.modules.logit_score.LogitScore"),
    )
    assert read_model_folder(tmp_path).pooling == LAST


@pytest.mark.parametrize("told", ["{}", "[1]", '[{"type": 1}]', "["])
def test_a_list_of_modules_that_cannot_be_read_is_named(tmp_path: Path, told: str) -> None:
    (tmp_path / "modules.json").write_text(told)
    with pytest.raises(ModelFolderError, match=r"modules\.json"):
        read_model_folder(tmp_path)


@pytest.mark.parametrize("time_s", [-315_619_200, 0, 300_000_000_000])
def test_a_folder_of_any_time_can_be_told_of(tmp_path: Path, time_s: int) -> None:
    os.utime(tmp_path, (time_s, time_s))
    told = ModelInfo(created_s=read_model_folder(tmp_path).created_s)
    assert datetime.fromtimestamp(told.created_s, UTC).year >= 1970


def test_do_sample_false_is_greedy(tmp_path: Path) -> None:
    folder(tmp_path, generation_config={"do_sample": False, "temperature": 0.7, "top_k": 20})
    assert read_model_folder(tmp_path).sampling_defaults == {"temperature": 0.0, "top_k": 20}


def test_the_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": "configured"})
    assert read_model_folder(tmp_path).templates == {"default": "configured"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_model_folder(tmp_path).templates == {"default": "file"}


def test_files_that_are_no_templates_are_left_alone(tmp_path: Path) -> None:
    others = tmp_path / "additional_chat_templates"
    (others / ".ipynb_checkpoints").mkdir(parents=True)
    (others / ".DS_Store").write_bytes(b"\xff\xfe")
    (others / "tool_use.jinja").write_text("tools")
    (tmp_path / "chat_template.jinja").write_text("chat")
    found = read_model_folder(tmp_path).templates
    assert found == {"default": "chat", "tool_use": "tools"}


def test_a_list_of_templates_is_read_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder(tmp_path, tokenizer_config={"chat_template": named})
    assert read_model_folder(tmp_path).templates == {"default": "a", "tool_use": "b"}


def test_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    tokens = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    folder(tmp_path, tokenizer_config={**tokens, "unk_token": None})
    assert read_model_folder(tmp_path).token_texts == {"bos_token": "<s>", "eos_token": "</s>"}


def test_templates_know_the_rarer_tokens_and_those_of_the_folder(tmp_path: Path) -> None:
    extra = {"image_token": {"content": "<image>"}, "sep_token": "never", "n": 1}
    folder(tmp_path, tokenizer_config={"sep_token": "<sep>", "extra_special_tokens": extra})
    texts = read_model_folder(tmp_path).token_texts
    assert texts == {"sep_token": "<sep>", "image_token": "<image>"}


def test_older_folders_name_their_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    named = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "dog_token": "no"}
    folder(tmp_path, tokenizer_config={"bos_token": ""}, special_tokens_map=named)
    assert read_model_folder(tmp_path).token_texts == {"eos_token": "</s>", "bos_token": "<s>"}
    folder(tmp_path, tokenizer_config={"eos_token": "<e>", "added_tokens_decoder": {}})
    assert read_model_folder(tmp_path).token_texts == {"eos_token": "<e>"}


def test_the_served_name_is_the_folders_unless_given(tmp_path: Path) -> None:
    assert read_model_folder(tmp_path).name == tmp_path.name
    assert read_model_folder(tmp_path, "mine").name == "mine"


def test_llamas_tokens_have_texts_where_the_folder_tells_none(tmp_path: Path) -> None:
    told = {"tokenizer_class": "LlamaTokenizer", "eos_token": None, "bos_token": "<begin>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    folder = read_model_folder(tmp_path)
    assert folder.token_texts == {"bos_token": "<begin>", "unk_token": "<unk>"}


def test_further_names_are_aliases(tmp_path: Path) -> None:
    folder = read_model_folder(tmp_path, "org/big, big,")
    assert (folder.name, folder.aliases) == ("org/big", ("big",))
    assert read_model_folder(tmp_path).aliases == ()
    folder = read_model_folder(tmp_path, "big,big, big,small")
    assert (folder.name, folder.aliases) == ("big", ("small",))


def test_a_folders_own_name_is_one_name(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    for told in ("", "a,b", str(tmp_path / "a,b")):
        folder = read_model_folder(tmp_path / "a,b", told)
        assert (folder.name, folder.aliases) == ("a,b", ())


def test_bad_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        read_model_folder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        read_model_folder(tmp_path)


def test_a_top_k_of_minus_one_is_off_and_one_with_a_point_a_number(tmp_path: Path) -> None:
    for value, read in ((-1, 0), (50.0, 50)):
        folder(tmp_path, generation_config={"top_k": value})
        assert read_model_folder(tmp_path).sampling_defaults == {"top_k": read}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("generation_config", {"eos_token_id": "257"}, "eos_token_id is '257', allowed: token ids"),
        ("generation_config", {"eos_token_id": [5, -1]}, "allowed: token ids from 0 to 99"),
        ("generation_config", {"eos_token_id": [1] * 257}, "eos_token_id is '257 ids'"),
        ("generation_config", {"eos_token_id": 100}, "allowed: token ids from 0 to 99"),
        ("generation_config", {"temperature": "hot"}, "temperature is 'hot', allowed: a number"),
        ("generation_config", {"temperature": -1}, "allowed: a number from 0 to 2"),
        ("generation_config", {"repetition_penalty": 0}, "allowed: a number from 0.01 to 10"),
        ("generation_config", {"max_new_tokens": "many"}, "max_new_tokens is 'many', allowed: a"),
        ("generation_config", {"do_sample": "no"}, "do_sample is 'no', allowed: true or false"),
        ("generation_config", ["a"], "expected an object"),
        ("tokenizer_config", {"added_tokens_decoder": [1]}, "allowed: an object or null"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "y"}}}, "decoder.x is"),
        ("tokenizer_config", {"added_tokens_decoder": {"7": {}}}, "allowed: an id with its"),
        ("tokenizer_config", {"chat_template": 5}, "chat_template is 5, allowed: a string, or a"),
        ("tokenizer_config", {"chat_template": {"default": "x"}}, "allowed: a string, or a list"),
        ("tokenizer_config", {"tokenizer_class": 5}, "tokenizer_class is 5, allowed: a string"),
        ("config", {"vocab_size": "100"}, "vocab_size is '100', allowed: a positive integer"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named_with_its_file(
    tmp_path: Path, file: str, content: Any, said: str
) -> None:
    folder(tmp_path, **{"config": {"vocab_size": 100}, file: content})
    with pytest.raises(ModelFolderError, match=re.escape(f"{file}.json: ")) as caught:
        read_model_folder(tmp_path)
    assert said in str(caught.value)


def test_null_says_nothing(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("added_tokens_decoder", "chat_template", "tokenizer_class"))
    unset = {"eos_token_id": None, "top_k": None}
    folder(tmp_path, tokenizer_config=nothing, generation_config=unset)
    found = read_model_folder(tmp_path)
    assert not (found.templates or found.added_tokens or found.sampling_defaults)


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFolderError, match=r"chat_template\.jinja: cannot be read as UTF-8"):
        read_model_folder(tmp_path)


def test_real_folders(reference_data: Path) -> None:
    qwen = read_model_folder(reference_data / "models/Qwen2.5-0.5B-Instruct")
    assert qwen.eos_token_ids == {151645, 151643} and qwen.vocab_size == 151936
    assert qwen.sampling_defaults == {
        "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1,
    }  # fmt: skip
    deepseek = read_model_folder(reference_data / "models/DeepSeek-R1-Distill-Qwen-1.5B")
    assert deepseek.token_texts["bos_token"] == "<｜begin▁of▁sentence｜>"
