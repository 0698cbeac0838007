"""`millrace convert`: a folder of a GGUF file holds what the file was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from common.model_folder import Fields
from millrace.cli import main
from millrace.from_gguf.folder import make_folder
from millrace.from_gguf.tokenizer import tokenizer
from millrace.llm import LLM
from millrace.params import SamplingParams
from tests.support.gguf_files import tokenizer_metadata, write_gguf
from tests.support.model_folders import write_folder, write_safetensors
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, tiny_library
from worker.models.config import read_config

Q8_0 = gguf.GGMLQuantizationType.Q8_0
BF16 = gguf.GGMLQuantizationType.BF16
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
    },
    "llama with biases": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True,
        "mlp_bias": True,
    },
}  # fmt: skip
TEXTS = ("Hello world the abc", "  aaa\n\n stop 你好 😀é", "don't 1234 <|im_end|><think>x</think>")


def source(folder: Path, **changes: Any) -> Path:
    """Write a model folder with weights and a tokenizer."""
    write_folder(folder, **{"vocab_size": 512, **changes})
    tiny_library().save(str(folder / "tokenizer.json"))
    told = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source(tmp_path_factory.mktemp("models") / "qwen2")


def converted(path: Path, folder: Path, *options: str) -> Path:
    assert main(["convert", str(path), str(folder), *options]) == 0
    return folder


def refused(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Convert, which must fail and leave nothing; return what is said."""
    folder = path.parent / "made"
    assert main(["convert", str(path), str(folder), *options]) == 1
    assert not folder.exists() and not list(path.parent.glob(".*"))
    return capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_comes_back_to_the_bit(family: str, tmp_path: Path) -> None:
    model = source(tmp_path / "model", **FAMILIES[family])
    made = converted(write_gguf(model, tmp_path / "it.gguf"), tmp_path / "made")
    assert read_config(made) == read_config(model)
    before, after = load_file(model / "model.safetensors"), load_file(made / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_large_matrices_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "millrace.from_gguf.tensors.PIECE_VALUES", 500
    )  # 15 rows of 32, a head of 8
    test_the_model_comes_back_to_the_bit("llama", tmp_path)


def test_texts_are_read_and_answered_as_before(qwen2: Path, tmp_path: Path) -> None:
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf"), tmp_path / "made")
    before, after = (Tokenizer.from_file(str(one / "tokenizer.json")) for one in (qwen2, made))
    for text in TEXTS:
        assert after.encode(text).ids == before.encode(text).ids
        assert after.decode(after.encode(text).ids) == before.decode(before.encode(text).ids)
    question = [{"role": "user", "content": "Hello"}]
    params = SamplingParams(max_tokens=8, temperature=0)
    answers = []
    for folder in (qwen2, made):
        with LLM(folder, threads=1) as llm:
            answers.append(llm.chat(question, params)[0].outputs[0].token_ids)
    assert answers[0] == answers[1]


def test_what_ends_an_answer_and_how_to_sample(qwen2: Path, tmp_path: Path) -> None:
    told = {"general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf", **told), tmp_path / "made")
    ids = [tiny_library().token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>")]
    assert json.loads((made / "generation_config.json").read_text()) == {
        "eos_token_id": ids, "do_sample": True, "temperature": 0.7, "top_k": 20,
    }  # fmt: skip


def test_quantised_blocks_become_numbers(tmp_path: Path) -> None:
    model = source(tmp_path / "model", intermediate_size=64)
    path = write_gguf(model, tmp_path / "it.gguf", Q8_0)
    made = converted(path, tmp_path / "made")
    assert read_config(made).dtype == "bfloat16"
    exact = converted(path, tmp_path / "exact", "--dtype", "float32")
    before, after = load_file(model / "model.safetensors"), load_file(exact / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    largest = np.abs(before[name]).max()
    assert 0 < np.abs(before[name] - after[name]).max() <= largest / 254 * 1.01
    with safe_open(made / "model.safetensors", "np") as file:
        assert file.get_slice(name).get_dtype() == "BF16"


@pytest.mark.parametrize(("kind", "dtype"), [(BF16, "bfloat16"), (None, "float32")])
def test_weights_keep_their_type(kind: Any, dtype: str, qwen2: Path, tmp_path: Path) -> None:
    path = write_gguf(qwen2, tmp_path / "it.gguf", *([kind] if kind is not None else []))
    assert read_config(converted(path, tmp_path / "made")).dtype == dtype


def test_llama3_scaling_is_found_in_its_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    changes = {**FAMILIES["llama"], "hidden_size": 128, "rope_theta": 5000.0}
    model = source(tmp_path / "model", rope_scaling=scaling, **changes)
    rope = read_config(model).rope.inverse_frequencies
    factors = [5000.0 ** -(i / 16) / frequency for i, frequency in enumerate(rope)]
    assert sum(1.01 < factor < 31.9 for factor in factors) > 1  # on the ramp
    more = {"rope_freqs.weight": np.array(factors, np.float32)}
    made = converted(write_gguf(model, tmp_path / "a.gguf", more_tensors=more), tmp_path / "made")
    scaled = json.loads((made / "config.json").read_text())["rope_scaling"]
    assert scaled == pytest.approx({**scaling, "factor": pytest.approx(32.0)})


def test_yarn_is_kept(qwen2: Path, tmp_path: Path) -> None:
    told = {
        "qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 64,
        "qwen2.rope.scaling.yarn_beta_fast": 16.0,
    }  # fmt: skip
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf", **told), tmp_path / "made")
    assert json.loads((made / "config.json").read_text())["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
    }  # fmt: skip


def test_a_split_file_is_read_whole(qwen2: Path, tmp_path: Path) -> None:
    """The first part has the metadata and some tensors, the second the rest."""
    whole = write_gguf(qwen2, tmp_path / "whole.gguf")
    names = [one.name for one in gguf.GGUFReader(whole).tensors]
    first, second = (tmp_path / f"it-0000{i}-of-00002.gguf" for i in (1, 2))
    write_gguf(qwen2, first, dropped=tuple(names[9:]))
    write_gguf(qwen2, second, dropped=tuple(names[:9]))
    made = converted(second, tmp_path / "made")
    before, after = load_file(qwen2 / "model.safetensors"), load_file(made / "model.safetensors")
    assert before.keys() == after.keys()
    second.unlink()
    assert main(["convert", str(first), str(tmp_path / "other")]) == 1


SENTENCE_PIECE = (  # (text, score, type)
    ("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    ("\u2581", -9.0, 1), ("a", -9.0, 1), ("b", -9.0, 1), ("c", -9.0, 1),
    ("ab", -2.0, 1), ("bc", -1.0, 1), ("\u2581a", -3.0, 1), ("abc", -4.0, 1),
)  # fmt: skip


def sentence_piece(**changes: Any) -> dict[str, Any]:
    texts, scores, types = zip(*SENTENCE_PIECE, strict=True)
    padded = 512 - len(texts)
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*texts, *(f"[PAD{i}]" for i in range(padded))],
        "tokenizer.ggml.scores": [*scores, *[-10000.0] * padded],
        "tokenizer.ggml.token_type": [*types, *[5] * padded],
        "tokenizer.ggml.merges": None, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, **changes,
    }  # fmt: skip


def test_sentence_piece_joins_the_best_score_first(qwen2: Path, tmp_path: Path) -> None:
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf", **sentence_piece()), tmp_path / "made")
    library = Tokenizer.from_file(str(made / "tokenizer.json"))
    # bc first, then _a before a + bc: from the left, or by the longest, it would be other tokens
    assert library.encode("abc").tokens == ["<s>", "\u2581a", "bc"]
    assert library.encode("babc").tokens == ["<s>", "\u2581", "b", "abc"]
    assert library.encode("ab a").tokens == ["<s>", "\u2581", "ab", "\u2581a"]
    assert library.encode("\u00e9").tokens == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]
    assert library.decode(library.encode("ab \u00e9 c").ids) == "ab \u00e9 c"
    bare = sentence_piece(
        **{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    )
    made = converted(write_gguf(qwen2, tmp_path / "b.gguf", **bare), tmp_path / "bare")
    assert Tokenizer.from_file(str(made / "tokenizer.json")).encode("ab").tokens == ["ab"]


def test_llama3_words_and_begin(qwen2: Path, tmp_path: Path) -> None:
    told = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 0}
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf", **told), tmp_path / "made")
    begun = Tokenizer.from_file(str(made / "tokenizer.json"))
    words = begun.pre_tokenizer.pre_tokenize_str("1234567 don'T")
    assert [word for word, _ in words] == ["123", "456", "7", "\u0120don", "'T"]
    assert begun.encode("ab").ids[0] == 0 and len(begun.encode("ab").ids) == 2


def test_a_text_gets_both_ends_where_the_file_says_so(qwen2: Path, tmp_path: Path) -> None:
    told = {
        "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 7,
        "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": 9,
    }  # fmt: skip
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf", **told), tmp_path / "made")
    ids = Tokenizer.from_file(str(made / "tokenizer.json")).encode("ab").ids
    assert (ids[0], len(ids), ids[-1]) == (7, 3, 9)


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"qwen2.expert_count": 8}, "qwen2.expert_count is 8, allowed: 0, or absent"),
        ({"qwen2.attention.sliding_window": 64}, "sliding_window is 64, allowed: absent"),
        ({"qwen2.rope.dimension_count": 4}, "dimension_count is 4, allowed: 8, the size of a head"),
        ({"qwen2.block_count": None}, "field qwen2.block_count is missing"),
        ({"qwen2.block_count": 3}, "tensors are missing, first model.layers.2."),
        ({"qwen2.feed_forward_length": 40}, "down_proj.weight has shape [32, 48], allowed: [32,"),
        ({"qwen2.rope.scaling.type": "longrope"}, "'longrope', allowed: none, linear, yarn"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre is 'tekken', allowed: qwen2, "),
        ({"tokenizer.ggml.model": "bert"}, "model is 'bert', allowed: gpt2, llama"),
        ({"tokenizer.ggml.tokens": None}, "field tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.eos_token_id": 600}, "eos_token_id is 600, allowed: an id below 512"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type is '2 long', allowed: 512"),
        ({"tokenizer.ggml.add_bos_token": True}, "field tokenizer.ggml.bos_token_id is missing"),
        ({"tokenizer.ggml.model": "llama"}, "field tokenizer.ggml.scores is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named(
    metadata: dict[str, Any], told: str, qwen2: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert told in refused(write_gguf(qwen2, tmp_path / "it.gguf", **metadata), capsys)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {"blk.0.ffn_gate_exps.weight": (4, 4)},
            "tensor blk.0.ffn_gate_exps.weight is of no model",
        ),
        ({"blk.0.attn_q_norm.weight": (8,)}, "q_norm.weight has shape [8], allowed: absent"),
        ({"rope_freqs.weight": (3,)}, "rope_freqs.weight is not of a scaling as Llama 3's"),
    ],
)
def test_unknown_tensors_are_named(
    tensors: dict[str, tuple[int, ...]], told: str, qwen2: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arrays = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    path = write_gguf(qwen2, tmp_path / "it.gguf", more_tensors=arrays)
    assert told in refused(path, capsys)


def test_files_that_are_none(
    qwen2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "it.gguf"
    assert "cannot be read: No such file" in refused(path, capsys)
    part = tmp_path / "it-00001-of-00000.gguf"
    assert "cannot be read: No such file" in refused(part, capsys)
    path.write_bytes(b"not a model at all" * 40)
    assert f"{path}: is no GGUF file" in refused(path, capsys)
    whole = write_gguf(qwen2, tmp_path / "whole.gguf").read_bytes()
    for part in (9, 300, len(whole) // 2):
        path.write_bytes(whole[: len(whole) - part])
        assert f"{path}: is no GGUF file" in refused(path, capsys), part
    write_gguf(qwen2, path, dropped=("token_embd.weight",))
    assert "tensor token_embd.weight is missing" in refused(path, capsys)


def test_numbers_beyond_float16_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = source(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][3] = 1e6
    write_safetensors(model / "model.safetensors", tensors)
    path = write_gguf(model, tmp_path / "it.gguf")
    told = (
        "tensor model.norm.weight has numbers beyond float16: ask for --dtype bfloat16 or float32"
    )
    assert told in refused(path, capsys, "--dtype", "float16")


def test_a_folder_that_is_there_is_left_alone(
    qwen2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(qwen2, tmp_path / "it.gguf")
    (tmp_path / "made").mkdir()
    assert main(["convert", str(path), str(tmp_path / "made")]) == 1
    assert "is there already" in capsys.readouterr().err


def test_two_runs_into_one_folder_do_not_meet(
    qwen2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first one writes, and leaves it alone."""
    path, folder = write_gguf(qwen2, tmp_path / "it.gguf"), tmp_path / "made"

    def make(file: Path, partial: Path, dtype: str) -> int:
        num_bytes = make_folder(file, partial, dtype)
        assert main(["convert", str(path), str(folder)]) == 1
        assert "another run writes to " in capsys.readouterr().err
        return num_bytes

    monkeypatch.setattr("millrace.commands.convert.make_folder", make)
    converted(path, folder)
    assert (folder / "model.safetensors").exists() and not list(tmp_path.glob(".*"))


def test_what_a_killed_run_has_left_is_written_anew(qwen2: Path, tmp_path: Path) -> None:
    left = tmp_path / ".made.partial"
    left.mkdir()
    (left / "tokenizer.model").write_text("half")
    made = converted(write_gguf(qwen2, tmp_path / "it.gguf"), tmp_path / "made")
    assert not (made / "tokenizer.model").exists()


def test_a_file_given_as_a_model_is_told_what_to_do(
    qwen2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(qwen2, tmp_path / "it.gguf")
    assert main(["generate", "--model", str(path), "Hello"]) == 1
    assert f"millrace convert {path}" in capsys.readouterr().err


def test_real_vocabularies(reference_data: Path, tmp_path: Path) -> None:
    """Published tokenizers, through a GGUF file and back, read the texts of the reference alike."""
    cases = json.loads((reference_data / "tokenizer" / "encode_cases.json").read_text())
    for name in ("DeepSeek-R1-Distill-Qwen-1.5B", "Qwen3-0.6B"):
        folder = reference_data / "models" / name
        values = tokenizer_metadata(folder)
        library = Tokenizer.from_str(json.dumps(tokenizer(Fields(folder, values))))
        mine = [case for case in cases if case["model"] == name]
        assert mine
        for case in mine:
            ids = library.encode(case["text"]).ids
            assert ids == case["ids"], (name, case["text"])
            assert library.decode(ids, skip_special_tokens=False) == case["decoded"]
