"""Echo, reverse and count words."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn
from tools.demo_domains.vocabulary import EMOJI, words

ECHO = {
    "en": Phrases(
        "{|please |now |can you }{repeat|echo|say|copy|write|print}{:|} <x>",
        "{|please |now |can you }{repeat|echo|say|copy|write|print} {after me|this|the following|the words|back}: <x>",
        "{say|repeat} {it|this} {back|again}: <x>",
        "echo <x>",
        "say <x>",
    ),
    "zh": Phrases(
        "{|请|现在|请你|麻烦}{重复|复述|跟我说|跟我念|照着说|说|念|写}{：|:| |一下：|一遍：}<x>",
        "{|请|请你}{重复|复述|照抄}{这句话|以下内容|下面的话|这些词}{：|:}<x>",
    ),
}
REVERSE = {
    "en": Phrases(
        "{|please |now |can you }{reverse|turn around|flip}{:| the words:| the order of:| these words:| the word order:}"
        " <x>",
        "{|please |now |can you }{say|write|repeat|put} {backwards|in reverse|in reverse order}: <x>",
        "reverse: <x>",
    ),
    "zh": Phrases(
        "{|请|现在|请你|帮我}{倒着说|倒序|反转|颠倒|倒过来说|反过来说}{：|:|这些词：|下面的词：|一下：|以下词语：}<x>",
        "{|请|帮我}把{这些词|下面的词|以下词语}{倒过来|反过来|倒序|颠倒}{：|:}<x>",
    ),
}
COUNT = {
    "en": Phrases(
        "{|please |now |can you }count {the words|words|these words|the words in|the words here}: <x>",
        "how many words{:| are here:| are in:| are there in:| are there:| do you see:| is this:| are in this:} <x>",
        "{|please }{tell me |say }how many words{:| there are:| are here:| you see:} <x>",
    ),
    "zh": Phrases(
        "{|请|现在|请你|帮我}{数一数|数一下|数数看|数}{词|有几个词|有多少个词|这些词|词的个数}{：|:}<x>",
        "{这里|下面|这句话|以下}{有几个词|有多少个词|一共几个词|共有几个词}{：|:|？}<x>",
    ),
}


def sample_echo(rng: Random, split: Split, language: Language) -> Turn:
    """Asks to say something again."""
    count = rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 7])
    chosen = words(rng, split, language, count)
    # Chinese runs on without spaces most of the time.
    glue = "" if language == "zh" and rng.random() < 0.7 else " "
    text = glue.join(chosen)
    draw = rng.random()
    if draw < 0.12:
        text += rng.choice(["！", "。", "？"] if language == "zh" else ["!", ".", "?"])
    elif draw < 0.22:
        text += " " + rng.choice(EMOJI)
    elif draw < 0.3:
        text += f" {rng.randint(0, 999)}"
    return Turn(ECHO[language].pick(rng, split, x=text), text)


def sample_reverse(rng: Random, split: Split, language: Language) -> Turn:
    """Asks for the words in the opposite order."""
    chosen = words(rng, split, language, rng.choice([2, 3, 3, 4, 4, 5, 5, 6]), common=0.8)
    return Turn(REVERSE[language].pick(rng, split, x=" ".join(chosen)), " ".join(reversed(chosen)))


def sample_count(rng: Random, split: Split, language: Language) -> Turn:
    """Asks how many words there are; the answer counts them aloud."""
    chosen = words(rng, split, language, rng.randint(1, 9), common=0.8)
    listed = ", ".join(f"{i} {word}" for i, word in enumerate(chosen, 1))
    unit = "个词" if language == "zh" else "word" if len(chosen) == 1 else "words"
    question = COUNT[language].pick(rng, split, x=" ".join(chosen))
    return Turn(question, f"{listed} → {len(chosen)} {unit}")
