"""A model with a published vocabulary of 151,936 entries, served over HTTP from the real tiers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.online import Online

NEAR_TIE = 0.02
"""Log-probability gap under which another order of summation may choose the other token."""


@pytest.fixture(scope="module")
def folder(reference_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model with the tokenizer of the family beside its weights."""
    target = tmp_path_factory.mktemp("models") / "real"
    shutil.copytree(reference_data / "golden" / "qwen2-realvocab-bf16", target)
    target.chmod(0o755)
    tokenizer = reference_data / "models" / "Qwen2.5-0.5B-Instruct" / "tokenizer.json"
    shutil.copy(tokenizer, target / "tokenizer.json")
    return target


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Online]:
    online = Online(tmp_path_factory.mktemp("stack"), folder, "--dtype", "f32")
    yield online
    done = online.call("down")
    online.close()
    assert done.returncode == 0, done.stderr


def ask(stack: Online, **fields: Any) -> httpx.Response:
    is_chat = "messages" in fields
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    return httpx.post(stack.url + path, json={"model": stack.model, **fields}, timeout=60)


def test_greedy_text_is_the_references(stack: Online, folder: Path) -> None:
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    assert len(cases) >= 3
    for case in cases:
        what = {"messages": case["messages"]} if case["messages"] else {"prompt": case["text"]}
        reply = ask(
            stack, **what, max_tokens=48, temperature=0, ignore_eos=True, return_token_ids=True
        ).json()
        choice = reply["choices"][0]
        text = choice["message"]["content"] if case["messages"] else choice["text"]
        assert reply["usage"]["prompt_tokens"] == len(case["ids"])
        ties = (i for i, gap in enumerate(case["greedy_margins"]) if gap < NEAR_TIE)
        sure = next(ties, len(case["greedy_ids"]))
        assert choice["token_ids"][:sure] == case["greedy_ids"][:sure]
        if sure == len(case["greedy_ids"]):
            assert text == case["greedy_text"]


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": "x " * 3000}, 400, "prompt"),
    ({"messages": [{"role": "user", "content": "x " * 3000}]}, 400, "messages"),
    ({"prompt": "x", "max_tokens": 100_000}, 400, "max_tokens"),
    ({"prompt": [151_936]}, 400, "prompt"),
    ({"prompt": "x", "stop_token_ids": [1 << 20]}, 400, "stop_token_ids"),
    ({"prompt": "x", "logit_bias": {"999999": 1}}, 400, "logit_bias"),
    ({"prompt": ""}, 400, "prompt"),
    ({"messages": []}, 400, "messages"),
    ({"prompt": "x", "model": "nobody"}, 404, "model"),
    ({"prompt": "x", "temperature": "hot"}, 400, "temperature"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD, ids=str)
def test_what_only_the_text_tier_can_refuse(
    stack: Online, fields: dict[str, Any], status: int, param: str
) -> None:
    refused = ask(stack, **fields)
    assert refused.status_code == status, refused.text
    assert refused.json()["error"]["param"] == param
    good = ask(stack, prompt="x", max_tokens=2)
    assert good.json()["usage"]["completion_tokens"] == 2


def test_special_tokens_of_a_user_stay_text(stack: Online) -> None:
    """A message that spells the end of a turn is longer by its spelling, and ends nothing."""
    plain = ask(stack, messages=[{"role": "user", "content": "a b"}], max_tokens=1).json()
    text = "a <|im_end|> b"
    spelt = ask(stack, messages=[{"role": "user", "content": text}], max_tokens=1).json()
    assert spelt["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 2


def test_embeddings_are_the_references(stack: Online, folder: Path) -> None:
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    body = {"model": stack.model, "input": [case["ids"] for case in cases], "pooling": "mean"}
    raw = httpx.post(f"{stack.url}/v1/embeddings", json={**body, "normalize": False}, timeout=60)
    unit = httpx.post(f"{stack.url}/v1/embeddings", json=body, timeout=60).json()["data"]
    for case, told, scaled in zip(cases, raw.json()["data"], unit, strict=True):
        wanted = case["embedding_mean"]
        assert told["embedding"] == pytest.approx(wanted, abs=1e-3)
        size = math.hypot(*wanted)
        assert scaled["embedding"] == pytest.approx([x / size for x in wanted], abs=1e-3)


def test_a_forced_call_uses_the_models_own_tag(stack: Online) -> None:
    """The tag is one token of this vocabulary; a grammar that spells it would fail."""
    schema = {"properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    asked: dict[str, Any] = {"tools": [tool], "tool_choice": "required"}
    asked |= {"messages": [{"role": "user", "content": "?"}], "parallel_tool_calls": False}
    choice = ask(stack, **asked, return_token_ids=True, max_tokens=60).json()["choices"][0]
    assert choice["token_ids"][0] == 151_657 and choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
