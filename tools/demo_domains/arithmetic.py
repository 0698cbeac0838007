"""Addition and subtraction to 999.

Two-digit sums are answered at once. Longer ones show the columns first, from the right: a
carry then never has to be foreseen, which is what makes them learnable for so small a model.
"""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn, in_split

ADD = {
    "en": Phrases(
        "{|what is |what's |whats |how much is |calculate |compute |work out |solve |tell me }"
        "<a>{+| + | plus | and }<b>{|?| =|=| = ?|=?}",
        "{|please |can you |could you |now }{add |add up |sum |sum up }<a> {and|to|with|plus} <b>{|?}",
        "{what is |what's |tell me |give me |calculate |}the {sum|total} of <a> {and|plus} <b>{|?}",
        "what {do I get|do you get|is the result} if {I|you|we} add <a> {and|to} <b>?",
        "how much {is|are|do} <a> {and|plus} <b>{?| together?| make?}",
    ),
    "zh": Phrases(
        "{|计算|请计算|算一下|帮我算|请问|求|算算}<a>{+| + |加|加上}<b>{|=|等于多少？|等于几？|是多少？|=？|的和}",
        "{把|请把|将}<a>{和|与|加}<b>{加起来|相加|相加得多少？}",
        "<a>{和|与|加}<b>{的和是多少？|相加等于多少？|一共是多少？|之和是多少？}",
    ),
}
SUBTRACT = {
    "en": Phrases(
        "{|what is |what's |whats |how much is |calculate |compute |work out |solve |tell me }"
        "<a>{-| - | minus | − |−}<b>{|?| =|=| = ?|=?}",
        "{|please |can you |could you |now }{subtract |take |take away |deduct }<b> from <a>{|?}",
        "what {do I get|do you get|is the result} if {I|you|we} {subtract|take} <b> from <a>?",
        "what is {left|the rest} {if|when} {I|you|we} {subtract|take} <b> {from|away from} <a>?",
        "how much is <a> {minus|less} <b>?",
    ),
    "zh": Phrases(
        "{|计算|请计算|算一下|帮我算|请问|求|算算}<a>{-| - |减|减去}<b>{|=|等于多少？|等于几？|是多少？|=？|的差}",
        "{从|请从|}<a>{里减去|中减去|里减|减掉}<b>{|等于多少？|是多少？|还剩多少？}",
    ),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks for one sum or difference."""
    plus = rng.random() < 0.5
    while True:
        a, b = _operand(rng), _operand(rng)
        if a + b > 999 and plus and rng.random() < 0.5:
            continue
        if is_usable(a, "+" if plus else "-", b, split):
            break
    phrases = (ADD if plus else SUBTRACT)[language]
    return Turn(phrases.pick(rng, split, a=a, b=b), answer(a, "+" if plus else "-", b))


def is_usable(a: int, sign: str, b: int, split: Split) -> bool:
    """Says whether the operands belong to `split`; the sums of two digits belong to training."""
    if a < 10 and b < 10:
        return split == "train"
    return in_split(f"{a} {sign} {b}", split)


def answer(a: int, sign: str, b: int) -> str:
    """Writes the answer out.

    >>> answer(5, "+", 7)
    '5 + 7 = 12'
    >>> answer(12, "+", 7)
    '12 + 7: 2+7=9, 1+0=1 → 19'
    >>> answer(478, "+", 256)
    '478 + 256: 8+6=14, 7+5+1=13, 4+2+1=7 → 734'
    >>> answer(278, "-", 512)
    '278 - 512 = -(512 - 278): 12-8=4, 10-7=3, 4-2=2 → -234'
    """
    result = a + b if sign == "+" else a - b
    if max(a, b) < 10:
        return f"{a} {sign} {b} = {result}"
    if sign == "+":
        return f"{a} + {b}: {_added_columns(a, b)} → {result}"
    turned = f" = -({b} - {a})" if a < b else ""
    return f"{a} - {b}{turned}: {_subtracted_columns(max(a, b), min(a, b))} → {result}"


def _places(a: int, b: int) -> tuple[int, ...]:
    return (1, 10) if max(a, b) < 100 else (1, 10, 100)


def _added_columns(a: int, b: int) -> str:
    columns, carry = [], 0
    for place in _places(a, b):
        x, y = a // place % 10, b // place % 10
        total = x + y + carry
        columns.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return ", ".join(columns)


def _subtracted_columns(a: int, b: int) -> str:
    columns, borrow = [], 0
    for place in _places(a, b):
        x, y = a // place % 10 - borrow, b // place % 10
        borrow = int(x < y)
        x += 10 * borrow
        columns.append(f"{x}-{y}={x - y}")
    return ", ".join(columns)


def _operand(rng: Random) -> int:
    digits = rng.choices([1, 2, 3], [2, 4, 5])[0]
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
