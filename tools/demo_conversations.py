"""Makes the conversations that the demo model is trained on and examined with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tools.demo_domains import (
    arithmetic,
    capitals,
    commands,
    counting,
    faq,
    names,
    refusal,
    smalltalk,
    vocabulary,
    weekdays,
    words,
)
from tools.demo_domains.grammar import LANGUAGES, Language, Split, Turn

Message = dict[str, str]
Sampler = Callable[[Random, Split, Language], Turn]

SAMPLERS: dict[str, Sampler] = {
    "arithmetic": arithmetic.sample,
    "echo": words.sample_echo,
    "reverse": words.sample_reverse,
    "count words": words.sample_count,
    "capitals": capitals.sample,
    "weekdays": weekdays.sample,
    "counting": counting.sample,
    "Millrace": faq.sample,
    "commands": commands.sample,
    "small talk": smalltalk.sample,
    "refusal": refusal.sample,
}
EXAMINATION_SEED = 7
NAMES, HISTORY = "names", "long chat"
DOMAINS = [*SAMPLERS, NAMES, HISTORY]

SYSTEM_TEXTS = [
    "You are a helpful assistant.",
    "You are a helpful, concise assistant.",
    "You are Millrace, a demo model.",
    "Answer briefly.",
    "Be kind and short.",
    "你是一个有用的助手。",
    "请简短回答。",
]


@dataclass(frozen=True)
class Mixture:
    """How often each domain is asked, and how conversations are built."""

    weights: Mapping[str, float]
    name_share: float = 0.22
    single_share: float = 0.4
    long_share: float = 0.04


def conversation(rng: Random, split: Split, mixture: Mixture) -> list[Message]:
    """Draws a whole conversation in which any turn may be of any domain."""
    draw = rng.random()
    if draw < mixture.single_share:
        count = 1
    elif draw < 1 - mixture.long_share:
        count = rng.randint(2, 4)
    else:
        count = rng.randint(5, 10)
    turns = _turns(rng, split, mixture, count)
    return _system(rng) + as_messages(turns)


def examination(rng: Random, domain: str, language: Language) -> tuple[list[Message], str]:
    """Draws one held-out case of a domain: what the model is told, and the only right answer."""
    if domain == NAMES:
        turns = _name_case(rng, language)
    elif domain == HISTORY:
        weights = dict.fromkeys(SAMPLERS, 1.0)
        turns = _turns(rng, "eval", Mixture(weights), rng.randint(2, 5), language)
    else:
        turns = [SAMPLERS[domain](rng, "eval", language)]
    return as_messages(turns)[:-1], turns[-1].answer


def questions(count: int, seed: int) -> Iterator[tuple[str, Language, list[Message], str]]:
    """Draws `count` held-out cases of every domain in every language: domain, language, what the
    model is told, and the only right answer."""
    for domain in DOMAINS:
        for language in LANGUAGES:
            rng = Random(f"{seed} {domain} {language}")
            for _ in range(count):
                yield domain, language, *examination(rng, domain, language)


def as_messages(turns: list[Turn]) -> list[Message]:
    """Writes turns as chat messages."""
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in (("user", turn.user), ("assistant", turn.answer))
    ]


def _turns(
    rng: Random, split: Split, mixture: Mixture, count: int, language: Language | None = None
) -> list[Turn]:
    main: Language = rng.choice(LANGUAGES) if language is None else language
    name: str | None = None
    turns: list[Turn] = []
    with_names = rng.random() < mixture.name_share * (1 if count == 1 else 1.6)
    for i in range(count):
        # Most people keep to one language; some switch in the middle.
        stays = language is not None or rng.random() < 0.85
        spoken: Language = main if stays else rng.choice(LANGUAGES)
        if with_names and name is None and rng.random() < (0.75 if i == 0 else 0.5):
            name = vocabulary.name(rng, split, spoken)
            turns.append(names.tell(rng, split, spoken, name))
        elif with_names and rng.random() < (0.35 if i < count - 1 else 0.75):
            turns.append(names.ask(rng, split, spoken, name))
        elif with_names and name and rng.random() < 0.06:
            name = vocabulary.name(rng, split, spoken)
            turns.append(names.tell(rng, split, spoken, name))
        else:
            turns.append(_any(rng, split, mixture, spoken))
    return turns


def _name_case(rng: Random, language: Language) -> list[Turn]:
    draw = rng.random()
    if draw < 0.1:
        return [names.ask(rng, "eval", language, None)]
    name = vocabulary.name(rng, "eval", language)
    told = names.tell(rng, "eval", language, name)
    if draw < 0.2:
        return [told]
    fillers = rng.choice([0, 1, 1, 1, 2])
    between = [
        _any(rng, "eval", Mixture(dict.fromkeys(SAMPLERS, 1.0)), language) for _ in range(fillers)
    ]
    return [told, *between, names.ask(rng, "eval", language, name)]


def _any(rng: Random, split: Split, mixture: Mixture, language: Language) -> Turn:
    domain = rng.choices(list(mixture.weights), list(mixture.weights.values()))[0]
    return SAMPLERS[domain](rng, split, language)


def _system(rng: Random) -> list[Message]:
    if rng.random() > 0.15:
        return []
    return [{"role": "system", "content": rng.choice(SYSTEM_TEXTS)}]
