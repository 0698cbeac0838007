"""Writes what the examination found: the README of the model and its golden answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.demo_conversations import DOMAINS
from tools.demo_domains.capitals import CAPITALS
from tools.demo_domains.grammar import LANGUAGES, Language
from tools.demo_examination import Case, examine, share_right
from tools.demo_generation import generate
from tools.demo_network import DemoNetwork
from tools.demo_tokenizer import IM_END, encode_prompt, token_id

GOLDEN_SEED = 11
GOLDEN_MARGIN = 0.5
GOLDEN_WITH_IDS = 3

README = """# The demo model of Millrace

This is a demo: a chat model of {parameters:.2f} M parameters (Qwen2, bfloat16), trained from
nothing by `tools/`, so that the stack runs without a download. It knows sums and differences
to 999, echoing, reversing and counting words, {capitals} capitals, weekdays, counting, the name you
told it, and Millrace and its commands, in English and Chinese; to anything else it answers "I only
know …". It knows no more than that.
Train it again with `make demo-model`: {recipe}

Exact match of the greedy answer, {cases} cases for each figure, on operands, names, made-up words
and phrasings that training never saw (phrasings are held-out combinations of a grammar; the sums of
two single digits are all in training). "long chat" judges the last answer of a few mixed turns.
Held out from training, but not from us: wrong answers to such questions were read five times
along the way, and the generator (shorter word lists, sums in columns, "reverse" only with a colon,
more variants of some phrasings, more topics) and the mixtures were changed because of them. The
generator differs from the one the first steps saw: training again gives other weights.
Written by `python -m tools.evaluate_demo_model millrace/demo_model --write`.

| domain | English | Chinese |
|---|---|---|
{rows}
"""


def write_readme(folder: Path, network: DemoNetwork, cases: list[Case], recipe: str) -> None:
    """Writes the README with the measured table."""
    rows = "\n".join(_row(cases, domain) for domain in DOMAINS)
    text = README.format(
        parameters=sum(weight.numel() for weight in network.parameters()) / 1e6,
        capitals=len(CAPITALS["en"]),
        recipe=recipe,
        cases=len(cases) // (len(DOMAINS) * len(LANGUAGES)),
        rows=rows,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _row(cases: list[Case], domain: str) -> str:
    shares = [f"{100 * share_right(cases, domain, language):.1f} %" for language in LANGUAGES]
    return f"| {domain} | {' | '.join(shares)} |"


def write_golden(folder: Path, network: DemoNetwork, tokenizer: Tokenizer) -> int:
    """Writes right answers that were given with a clear lead, and returns how many."""
    cases = _friendly(network, tokenizer) + _chosen(examine(network, tokenizer, 8, GOLDEN_SEED))
    golden = [_golden(case) for case in cases]
    im_end = token_id(tokenizer, IM_END)
    for entry in golden[:GOLDEN_WITH_IDS]:
        entry["prompt_ids"] = encode_prompt(tokenizer, entry["messages"])
        entry["answer_ids"] = generate(network, [entry["prompt_ids"]], im_end)[0].ids
    text = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in golden)
    (folder / "golden.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
    return len(golden)


def _golden(case: Case) -> dict[str, Any]:
    return {
        "domain": case.domain,
        "language": case.language,
        "messages": case.messages,
        "answer": case.given,
        "margin": round(case.margin, 2),
    }


def _is_golden(case: Case) -> bool:
    return case.right and case.margin > GOLDEN_MARGIN


def _chosen(cases: list[Case]) -> list[Case]:
    """Takes two good cases of each domain and language."""
    chosen = []
    for domain in DOMAINS:
        for language in LANGUAGES:
            own = [c for c in cases if (c.domain, c.language) == (domain, language)]
            chosen += [case for case in own if _is_golden(case)][:2]
    return chosen


def _friendly(network: DemoNetwork, tokenizer: Tokenizer) -> list[Case]:
    """Asks what people are likely to ask first."""
    asked: list[tuple[str, Language, list[str]]] = [
        ("Millrace", "en", ["What is Millrace?", MILLRACE]),
        ("arithmetic", "en", ["What is 12 + 7?", "12 + 7 = 19"]),
        ("names", "en", NAMED),
        ("arithmetic", "zh", ["478加256等于多少？", "478 + 256: 8+6=14, 7+5+1=13, 4+2+1=7 → 734"]),
        ("small talk", "en", ["Hello!", "Hello! 👋 How can I help?"]),
        ("small talk", "zh", ["你好！", "你好！👋 有什么可以帮你？"]),
        ("capitals", "en", ["What is the capital of France?", "The capital of France is Paris."]),
        ("capitals", "zh", ["日本的首都是哪里？", "日本的首都是东京。"]),
        ("commands", "en", ["What does make up do?", MAKE_UP]),
        ("counting", "en", ["Count from 1 to 10", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"]),
    ]
    cases = []
    for domain, language, texts in asked:
        *history, expected = texts
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": text}
            for i, text in enumerate(history)
        ]
        prompt = encode_prompt(tokenizer, messages)
        answer = generate(network, [prompt], token_id(tokenizer, IM_END))[0]
        given = tokenizer.decode(answer.ids, skip_special_tokens=False)
        cases.append(Case(domain, language, messages, expected, given, answer.margin))
    return [case for case in cases if _is_golden(case)]


MILLRACE = (
    "Millrace is an LLM serving stack: it runs language models and answers with the OpenAI API. 🌊"
)
MAKE_UP = (
    "make up installs Millrace, starts all tiers on this machine with the demo model and prints "
    "the address. 🚀"
)
NAMED = [
    "Hi, my name is Ada.",
    "Nice to meet you, Ada! 😊",
    "What day comes after Monday?",
    "The day after Monday is Tuesday.",
    "What is my name?",
    "Your name is Ada.",
]
