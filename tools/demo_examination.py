"""Asks the demo model what it never saw and judges its answers."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from tools.demo_conversations import DOMAINS, EXAMINATION_SEED, Message, questions
from tools.demo_domains.grammar import LANGUAGES, Language
from tools.demo_generation import generate
from tools.demo_network import DemoNetwork
from tools.demo_tokenizer import IM_END, encode_prompt, token_id


@dataclass(frozen=True)
class Case:
    """One examined question."""

    domain: str
    language: Language
    messages: list[Message]
    expected: str
    given: str
    margin: float

    @property
    def right(self) -> bool:
        """Says whether the answer is exactly the expected one."""
        return self.given == self.expected


def examine(
    network: DemoNetwork, tokenizer: Tokenizer, cases: int, seed: int = EXAMINATION_SEED
) -> list[Case]:
    """Asks `cases` held-out questions of every domain in every language."""
    asked = list(questions(cases, seed))
    network.eval()
    prompts = [encode_prompt(tokenizer, messages) for _, _, messages, _ in asked]
    answers = generate(network, prompts, token_id(tokenizer, IM_END))
    texts = tokenizer.decode_batch([answer.ids for answer in answers], skip_special_tokens=False)
    return [
        Case(domain, language, messages, expected, text, answer.margin)
        for (domain, language, messages, expected), text, answer in zip(
            asked, texts, answers, strict=True
        )
    ]


def share_right(cases: list[Case], domain: str, language: Language) -> float:
    """Returns the share of exact answers in one domain and language."""
    chosen = [case.right for case in cases if (case.domain, case.language) == (domain, language)]
    return sum(chosen) / len(chosen)


def summary(cases: list[Case]) -> str:
    """Says in one line how each domain fares, English before Chinese."""
    return ", ".join(
        f"{domain} "
        + "/".join(f"{100 * share_right(cases, domain, lang):.0f}" for lang in LANGUAGES)
        for domain in DOMAINS
    )
