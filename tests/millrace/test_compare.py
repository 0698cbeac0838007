"""`millrace compare`: what agrees, and a planted fault found at its tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from millrace.cli import main
from tests.support.model_folders import write_folder
from tests.support.tiny_model import write_tiny_model

IDS = ("--token-ids", "5,9,2,80,33,7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "three", num_hidden_layers=3)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_levels_agree_to_the_bit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ("--left", "kernel_level=portable", "--right", "kernel_level=auto")
    assert main(["compare", "--model", str(folder), *IDS, *sides, "--tolerance", "0"]) == 0
    shown = lines(capsys)
    assert shown[-1] == "they agree within 0"
    assert [line.split()[0] for line in shown if line.endswith("1.000000000")] == [
        "-", "0", "1", "2", "-"
    ]  # fmt: skip


def test_the_reference_and_the_served_kernels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--model", str(folder), *IDS, "--all", "--tolerance", "1e-4"]) == 0
    names = [line.split()[1] for line in lines(capsys) if line.startswith("  ")]
    assert names[1:4] == ["embedding", "attn_norm", "qkv"] and "rope_k" in names
    assert names[-2:] == ["final_norm", "logits"]


def test_dtypes_part_and_it_is_said_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ("--right", "dtype=bfloat16")
    assert main(["compare", "--model", str(folder), *IDS, *sides, "--tolerance", "1e-6"]) == 1
    assert lines(capsys)[-1].startswith("they part at ")
    assert main(["compare", "--model", str(folder), *IDS, *sides, "--tolerance", "0.2"]) == 0


@pytest.mark.parametrize(
    ("tensor", "name"), [("mlp.down_proj", "down"), ("self_attn.q_proj", "qkv")]
)
def test_a_planted_fault_is_found(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tensor: str, name: str
) -> None:
    """One weight of layer 1 is wrong in the other folder."""
    other = write_folder(tmp_path / "other", num_hidden_layers=3)
    tensors = load_file(other / "model.safetensors")
    tensors[f"model.layers.1.{tensor}.weight"][3, 4] += np.float32(0.5)
    save_file(tensors, other / "model.safetensors")
    sides = ("--left", "", "--right", f"model={other}")
    assert main(["compare", "--model", str(folder), *IDS, *sides, "--tolerance", "1e-4"]) == 1
    shown = lines(capsys)
    assert shown[-1].startswith(f"they part at {name} of layer 1: ")
    marked = [line.split()[1] for line in shown if line.startswith("*")]
    assert marked == ["1", "2", "-"]


@pytest.mark.parametrize("vocab_size", [80, 128])
def test_models_of_other_vocabularies_are_told_as_such(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], vocab_size: int
) -> None:
    other = write_folder(tmp_path / "other", num_hidden_layers=3, vocab_size=vocab_size)
    assert main(["compare", "--model", str(folder), *IDS, "--right", f"model={other}"]) == 1
    assert capsys.readouterr().err == (
        f"millrace: the left model has a vocabulary of 96 tokens, the right one of {vocab_size}: "
        "the same ids say other things to them\n"
    )


def test_numbers_that_overflow_on_both_sides_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "wild", num_hidden_layers=3)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][:] = np.float32(3e38)
    save_file(tensors, folder / "model.safetensors")
    sides = ("--left", "kernel_level=portable", "--right", "kernel_level=auto")
    assert main(["compare", "--model", str(folder), *IDS, *sides]) == 0
    assert "not all numbers are finite, first in down of layer 1" in lines(capsys)


def test_a_prompt_is_read_by_the_folders_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = write_tiny_model(tmp_path / "tiny")
    assert main(["compare", "--model", str(tiny), "--prompt", "Hello"]) == 0
    assert "tokens 5" in lines(capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--left", "speed=high"), "'speed' of 'speed=high' is unknown, allowed: model, dtype"),
        (("--right", "dtype=int3"), "dtype is 'int3'"),
        (("--token-ids", "5,96"), "token ids are [96], allowed: one or more below 96"),
        (("--token-ids", ",".join("1" * 300)), "300 tokens, the model has 256 positions"),
        (("--left", "dtype=auto,dtype=float32"), "twice in 'dtype=auto,dtype=float32'"),
        (("--token-ids", "a"), "--token-ids 'a' is no comma list of ids"),
        (("--tolerance", "nan"), "--tolerance is nan, it must be 0 or more"),
        ((), "has no tokenizer: give --token-ids"),
    ],
)
def test_what_it_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert main(["compare", "--model", str(folder), *options]) == 1
    assert words in capsys.readouterr().err
