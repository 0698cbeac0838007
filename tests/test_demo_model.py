"""The shipped demo model: its files, what it claims, and that its examination was fair."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tools.demo_conversations import DOMAINS, SAMPLERS, Mixture, conversation, examination
from tools.demo_domains import arithmetic, vocabulary
from tools.demo_domains.grammar import LANGUAGES, Language, Phrases
from tools.demo_tokenizer import encode_prompt

FOLDER = Path(__file__).parent.parent / "millrace" / "demo_model"
MODULES = "arithmetic words counting weekdays capitals commands faq smalltalk names refusal".split()
EVEN = Mixture(dict.fromkeys(SAMPLERS, 1.0))


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_the_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8_000_000


def test_configuration_and_tokenizer_agree(tokenizer: Tokenizer) -> None:
    config, settings = _read("config.json"), _read("tokenizer_config.json")
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["max_position_embeddings"] >= 512
    assert tokenizer.token_to_id(settings["eos_token"]) == config["eos_token_id"]
    stops = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert _read("generation_config.json")["eos_token_id"] == stops
    assert settings["chat_template"] == (FOLDER / "chat_template.jinja").read_text("utf-8")


@pytest.mark.parametrize(
    "text", ["12 + 7 = 19", "重复：小猫 🐱", "  two\n\tlines ", "don't", "ßñ龘"]
)
def test_tokenizer_gives_every_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2026").tokens == list("2026")


def test_golden_answers_cover_every_domain_and_language() -> None:
    golden = _read("golden.json")
    assert len(golden) >= 40
    assert all(entry["margin"] > 0.5 for entry in golden)
    seen = {(entry["domain"], entry["language"]) for entry in golden}
    assert seen == {(domain, language) for domain in DOMAINS for language in LANGUAGES}
    recalled = [e for e in golden if e["domain"] == "names" and len(e["messages"]) >= 5]
    assert recalled, "a name is told and asked for with another turn between"


def test_chat_template_writes_the_golden_prompt_ids(tokenizer: Tokenizer) -> None:
    template = ImmutableSandboxedEnvironment().from_string(
        (FOLDER / "chat_template.jinja").read_text("utf-8")
    )
    with_ids = [entry for entry in _read("golden.json") if "prompt_ids" in entry]
    assert len(with_ids) >= 3
    for entry in with_ids:
        text = template.render(messages=entry["messages"], add_generation_prompt=True)
        assert tokenizer.encode(text, add_special_tokens=False).ids == entry["prompt_ids"]
        assert encode_prompt(tokenizer, entry["messages"]) == entry["prompt_ids"]
        assert tokenizer.decode(entry["answer_ids"]) == entry["answer"]


def test_readme_states_at_least_97_percent_in_every_domain() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) % \| ([\d.]+) % \|$", readme, re.MULTILINE)
    assert [domain for domain, *_ in rows] == DOMAINS
    for domain, english, chinese in rows:
        assert (float(english) + float(chinese)) / 2 >= 97, domain
        assert min(float(english), float(chinese)) >= 95, domain


def test_conversations_follow_from_the_seed() -> None:
    once, again = Random(5), Random(5)
    for _ in range(200):
        assert conversation(once, "train", EVEN) == conversation(again, "train", EVEN)


@pytest.mark.parametrize("module", MODULES)
def test_held_out_phrasings_are_not_trained_on(module: str) -> None:
    found = list(_phrases(vars(importlib.import_module(f"tools.demo_domains.{module}"))))
    assert found
    for phrases in found:
        assert phrases.texts("train")
        assert phrases.texts("eval")
        assert not phrases.texts("train") & phrases.texts("eval")


def test_held_out_operands_and_names_are_not_trained_on() -> None:
    rng = Random(1)
    trained = {_operands(m) for _ in range(2000) for m in conversation(rng, "train", EVEN)}
    for language in LANGUAGES:
        asked = {_operands({"content": _examined(rng, language)}) for _ in range(300)}
        assert not (trained & asked) - {None}
        names = {vocabulary.name(rng, "train", language) for _ in range(2000)}
        assert not names & {vocabulary.name(rng, "eval", language) for _ in range(500)}


def test_sums_are_worked_out_correctly() -> None:
    rng = Random(2)
    for _ in range(2000):
        a, b, sign = rng.randint(0, 999), rng.randint(0, 999), rng.choice("+-")
        answer = arithmetic.answer(a, sign, b)
        last = re.split("= |→ ", answer)[-1]
        assert int(last) == (a + b if sign == "+" else a - b), answer


def _examined(rng: Random, language: Language) -> str:
    return examination(rng, "arithmetic", language)[1]


def _operands(message: dict[str, str]) -> tuple[str, ...] | None:
    found = re.match(r"(\d+) ([+-]) (\d+)( =|:)", message["content"])
    return found.groups()[:3] if found else None


def _phrases(value: object) -> Iterator[Phrases]:
    if isinstance(value, Phrases):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _phrases(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _phrases(inner)
