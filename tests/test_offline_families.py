"""The offline face on models of every family: the reference's ids, a tokenizer beside, hooks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequest
from millrace import LLM, SamplingParams
from millrace.async_llm import AsyncLLM
from millrace.remote import RemoteClient
from tests.support.tiny_model import write_tiny_model, write_tokenizer

FAMILIES = ["qwen2-sliding-window-f32", "qwen2-yarn-f32", "llama-rope3-f32", "qwen3-qknorm-bf16"]
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_ids_of_a_golden_folder(reference_data: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    shutil.copytree(reference_data / "golden" / name, folder, copy_function=shutil.copy)
    folder.chmod(0o755)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    if has_text := vocab_size >= 260:
        write_tokenizer(folder)
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    with LLM(folder, dtype="float32", kv_cache_memory="8MiB") as llm:
        outputs = llm.generate([{"prompt_token_ids": p["ids"]} for p in prompts], GREEDY)
        for output, prompt in zip(outputs, prompts, strict=True):
            assert output.outputs[0].token_ids == prompt["greedy_ids"]
            case = prompt.get("stop_token_case")
            if case:
                stop = SamplingParams(
                    temperature=0, max_tokens=64, stop_token_ids=[case["stop_token_id"]],
                    ignore_eos=True,
                )  # fmt: skip
                [stopped] = llm.generate({"prompt_token_ids": prompt["ids"]}, stop)
                assert stopped.outputs[0].token_ids == [
                    *case["expected_ids"], case["stop_token_id"]
                ]  # fmt: skip
        if has_text:
            messages = [{"role": "user", "content": "Hello"}]
            [answer] = llm.chat(messages, SamplingParams(max_tokens=4, temperature=0))
            assert answer.outputs[0].text is not None and len(answer.prompt_token_ids or []) > 5


def test_hooks_see_a_generation(tmp_path: Path) -> None:
    seen: list[tuple[str, tuple[int, ...], int]] = []

    def note(name: str, tensor: Any, layer: int) -> None:
        assert isinstance(tensor, np.ndarray)
        seen.append((name, tensor.shape, layer))

    with LLM(write_tiny_model(tmp_path / "tiny"), kv_cache_memory="8MiB") as llm:
        prompt, params = {"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=2)
        before = llm.generate(prompt, params)[0].outputs[0].token_ids
        handle = llm.register_hook("attn_*", note)
        llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0))
        handle.remove()
        count = len(seen)
        assert [(name, layer) for name, _, layer in seen[:4]] == [
            ("attn_norm", 0), ("attn_out", 0), ("attn_norm", 1), ("attn_out", 1)
        ]  # fmt: skip
        assert all(shape[1] == 32 for _, shape, _ in seen)
        assert len(before) == 2
        llm.generate(prompt, params)
        assert len(seen) == count


def test_hooks_are_refused_on_a_remote_model() -> None:
    client = RemoteClient.__new__(RemoteClient)  # no service runs: the refusal needs none
    with pytest.raises(InvalidRequest, match="in this process"):
        AsyncLLM(client).register_hook("*", lambda name, tensor, layer: None)
