"""One list says how a model is loaded, to `LLM`, to the commands and to docker-compose.yml."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from millrace import LLM, SamplingParams, loading
from millrace.cli import main
from millrace.compose import load
from millrace.options import ModelOptions
from millrace.project import HOME
from tests.support.tiny_model import write_tiny_model

GIVEN = {
    "device": "cuda",
    "dtype": "f16",
    "quantization": "int8",
    "kernel_level": "avx2",
    "threads": "3",
    "max_model_len": "99",
    "kv_cache_dtype": "f32",
    "kv_cache_memory": "64MiB",
    "host_kv_memory": "1MiB",
    "kv_layout": "slot",
    "num_guesses": "4",
}
LONG = GIVEN | {"dtype": "float16", "kv_cache_dtype": "float32"}


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    loading.add_arguments(parser)
    return parser.parse_args(words)


def test_deterministic_is_what_it_always_is() -> None:
    assert loading.options_of(parsed("--deterministic")) == {}


def test_every_keyword_is_an_option_and_a_variable() -> None:
    assert set(loading.VARIABLES) == set(GIVEN) == set(ModelOptions.__annotations__)
    words = [w for name, v in GIVEN.items() for w in (f"--{name.replace('_', '-')}", v)]
    options: dict[str, Any] = dict(loading.options_of(parsed(*words)))
    assert {name: str(value) for name, value in options.items()} == LONG
    assert loading.options_of(parsed()) == {}


@pytest.mark.parametrize("name", GIVEN)
def test_a_variable_reaches_the_setting_of_its_name(name: str) -> None:
    variables = {loading.VARIABLES[name]: LONG[name]}
    file = load(HOME / "docker-compose.yml", variables, frozenset())
    home = "engine" if name in ("max_model_len", "num_guesses") else "worker"
    service = file.services["engine-core" if home == "engine" else "worker"]
    assert service.environment[f"MILLRACE_{home.upper()}_{name.upper()}"] == LONG[name]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dtype", "foo", "'foo' is none of auto, bf16, f16, f32"),
        ("--kv-cache-dtype", "f16", "'f16' is none of auto, bf16, f32"),
        ("--kv-cache-memory", "much", "'much', allowed: a number and one of B KiB"),
        ("--host-kv-memory", "-1", "'-1', allowed: a number and one of B KiB"),
    ],
)
def test_a_bad_value_is_told_before_anything_starts(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["up", f"{option}={value}"])
    assert message in capsys.readouterr().err


def test_generate_loads_the_model_as_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    words = ["--model", str(folder), "--seed", "5", "--max-tokens", "8", "--kernel-level"]
    options = ["portable", "--threads", "1", "--dtype", "f32", "--kv-cache-memory", "8MiB"]
    assert main(["generate", "Hello", *words, *options]) == 0
    printed = capsys.readouterr().out
    with LLM(
        folder, kernel_level="portable", threads=2, dtype="float32", kv_cache_memory="8MiB"
    ) as llm:
        wanted = llm.generate("Hello", SamplingParams(seed=5, max_tokens=8))[0].outputs[0].text
    assert printed == wanted + "\n"


def test_generate_asks_for_no_more_than_the_context_it_is_given(tmp_path: Path) -> None:
    """Its own default was refused as more than the context."""
    folder = write_tiny_model(tmp_path / "tiny")
    assert main(["generate", "Hello", "--model", str(folder), "--max-model-len", "64"]) == 0
