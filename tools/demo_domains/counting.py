"""Counting up and down."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn, in_split

UP = {
    "en": Phrases(
        "{|please |now |can you |could you }count{| up| for me} from <a> to <b>{|?}",
        "{|please |now |can you }{list|write|say|give me|tell me} {|all }{the numbers|numbers} from <a> {to|up to} <b>",
        "count <a> to <b>",
    ),
    "zh": Phrases(
        "{|请|现在|请你|帮我}从<a>{数到|开始数到|一直数到|列到}<b>",
        "{|请|帮我}{列出|写出|说出}{从|}<a>到<b>{的数字|的整数|的所有数字|}",
    ),
}
DOWN = {
    "en": Phrases(
        "{|please |now |can you |could you }count{| down| for me} from <a> to <b>{|?}",
        "{|please |now |can you }{list|write|say|give me|tell me} {|all }{the numbers|numbers} from <a> {to|down to} <b>",
        "count <a> to <b>",
    ),
    "zh": Phrases(
        "{|请|现在|请你|帮我}从<a>{数到|倒数到|开始数到|一直数到|列到}<b>",
        "{|请|帮我}{列出|写出|说出}{从|}<a>到<b>{的数字|的整数|的所有数字|}",
    ),
}
TO = {
    "en": Phrases("{|please |now |can you |could you }count{| up| for me} to <b>{|?}"),
    "zh": Phrases("{|请|现在|请你|帮我|给我}{数到|从头数到|从一数到}<b>"),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks to count between two numbers, at most twenty of them."""
    if rng.random() < 0.12:
        last = rng.randint(2, 20)
        return Turn(TO[language].pick(rng, split, b=last), count(1, last))
    while True:
        first = rng.randint(0, 20) if rng.random() < 0.5 else rng.randint(21, 110)
        last = first + rng.choice([-1, 1]) * rng.choice([*range(1, 11), *range(1, 20)])
        if last >= 0 and in_split(f"{first} to {last}", split):
            break
    phrases = (UP if last > first else DOWN)[language]
    return Turn(phrases.pick(rng, split, a=first, b=last), count(first, last))


def count(first: int, last: int) -> str:
    """Counts from `first` to `last`.

    >>> count(11, 8)
    '11, 10, 9, 8'
    """
    step = 1 if last >= first else -1
    return ", ".join(str(number) for number in range(first, last + step, step))
