"""A model that thinks, on the real engine: its thoughts apart, structured output after them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from millrace import LLM, SamplingParams
from protos.worker import ExecutePlan, StepResult
from tests.support.tiny_model import TEMPLATE, write_tiny_model
from worker.model_runner import ModelRunner

OPENS = TEMPLATE.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
END = 259
"""The one id of the tiny vocabulary that is no byte and no special token."""
MESSAGES = [{"role": "user", "content": "Hi"}]
ENDS_SOON = {END: 5.0}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("models") / "thinker")
    (folder / "chat_template.jinja").write_text(OPENS)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("</think>", normalized=False)])
    assert tokenizer.token_to_id("</think>") == END
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def llm(thinker: Path) -> Iterator[LLM]:
    with LLM(thinker, kv_cache_memory="8MiB") as opened:
        yield opened


def params(seed: int, **fields: object) -> SamplingParams:
    given = {"max_tokens": 48, "seed": seed, "temperature": 1.5, "logit_bias": ENDS_SOON}
    return SamplingParams(**given | fields)


def test_thoughts_and_answer_are_the_raw_text_parted(llm: LLM) -> None:
    (chat,) = llm.chat(MESSAGES, params(1))
    assert chat.prompt_token_ids is not None
    (raw,) = llm.generate({"prompt_token_ids": chat.prompt_token_ids}, params(1))
    output, text = chat.outputs[0], raw.outputs[0].text
    assert output.token_ids == raw.outputs[0].token_ids
    thoughts, tag, answer = text.partition("</think>")
    assert tag and output.reasoning == thoughts.strip("\n") and output.text == answer.lstrip("\n")
    assert output.num_reasoning_tokens == output.token_ids.index(END) + 1


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_says_the_same(llm: LLM, seed: int) -> None:
    (whole,) = llm.chat(MESSAGES, params(seed, n=2))
    reasoning, texts = ["", ""], ["", ""]
    for delta in llm.stream({"messages": MESSAGES}, params(seed, n=2)):
        for output in delta.outputs:
            reasoning[output.index] += output.reasoning
            texts[output.index] += output.text
    assert reasoning == [output.reasoning for output in whole.outputs]
    assert texts == [output.text for output in whole.outputs]


def test_reasoning_can_be_left_out(llm: LLM) -> None:
    (shown,) = llm.chat(MESSAGES, params(1))
    (hidden,) = llm.chat(MESSAGES, params(1), include_reasoning=False)
    assert shown.outputs[0].reasoning and not hidden.outputs[0].reasoning
    assert shown.outputs[0].text == hidden.outputs[0].text
    assert hidden.outputs[0].num_reasoning_tokens == shown.outputs[0].num_reasoning_tokens


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_the_thoughts(llm: LLM, budget: int) -> None:
    never = params(2, logit_bias={END: -100.0})
    (free,) = llm.chat(MESSAGES, never)
    assert END not in free.outputs[0].token_ids
    (bound,) = llm.chat(MESSAGES, never, thinking_token_budget=budget)
    ids, output = bound.outputs[0].token_ids, bound.outputs[0]
    assert list(ids[:budget]) == list(free.outputs[0].token_ids[:budget])
    assert ids.index(END) == budget and ids.count(END) == 1
    assert output.num_reasoning_tokens == budget + 1 and output.text


def test_a_budget_that_is_not_reached_changes_nothing(llm: LLM) -> None:
    (free,) = llm.chat(MESSAGES, params(1))
    for budget in (-1, 47):
        (bound,) = llm.chat(MESSAGES, params(1), thinking_token_budget=budget)
        assert bound.outputs[0].token_ids == free.outputs[0].token_ids


@pytest.mark.parametrize("failing", [3, 9, 12])
def test_a_budget_counts_on_after_a_replay(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    never = params(2, logit_bias={END: -100.0})
    (expected,) = llm.chat(MESSAGES, never, thinking_token_budget=7)
    num_calls, execute = 0, ModelRunner.execute

    def fail_once(self: ModelRunner, plan: ExecutePlan) -> StepResult:
        nonlocal num_calls
        num_calls += 1
        if num_calls == failing:
            raise RuntimeError("a kernel failed")
        return execute(self, plan)

    monkeypatch.setattr(ModelRunner, "execute", fail_once)
    (replayed,) = llm.chat(MESSAGES, never, thinking_token_budget=7)
    assert num_calls > failing
    assert replayed.outputs[0].token_ids == expected.outputs[0].token_ids
    assert replayed.outputs[0].reasoning == expected.outputs[0].reasoning


def test_guesses_keep_to_a_budget(llm: LLM, thinker: Path) -> None:
    never = params(2, logit_bias={END: -100.0}, temperature=0.0)
    (expected,) = llm.chat(MESSAGES, never, thinking_token_budget=7)
    with LLM(thinker, kv_cache_memory="8MiB", num_guesses=4) as guessing:
        (guessed,) = guessing.chat(MESSAGES, never, thinking_token_budget=7)
    assert guessed.outputs[0].token_ids == expected.outputs[0].token_ids
    assert guessed.outputs[0].num_reasoning_tokens == 8


def test_structured_output_begins_after_a_budget(llm: LLM) -> None:
    asked = params(2, logit_bias={END: -100.0}, structured_outputs={"regex": "[a-z]{4}[0-9]{2}"})
    output = llm.chat(MESSAGES, asked, thinking_token_budget=5)[0].outputs[0]
    assert re.fullmatch("[a-z]{4}[0-9]{2}", output.text) and output.num_reasoning_tokens == 6


@pytest.mark.parametrize("seed", range(4))
def test_structured_output_begins_after_the_thoughts(llm: LLM, seed: int) -> None:
    asked = params(seed, structured_outputs={"regex": "[a-z]{4}[0-9]{2}"})
    output = llm.chat(MESSAGES, asked)[0].outputs[0]
    assert re.fullmatch("[a-z]{4}[0-9]{2}", output.text) and output.finish_reason == "stop"
    assert output.num_reasoning_tokens > 1
    at_once = llm.generate("Hi", asked)[0].outputs[0]  # a plain completion has no thoughts
    assert re.fullmatch("[a-z]{4}[0-9]{2}", at_once.text)
