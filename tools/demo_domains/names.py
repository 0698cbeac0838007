"""A name is told, and asked for later in the conversation."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

TELL = {
    "en": Phrases(
        "{|hi, |hello, |hey, |hello! |hi! |hi there, |good morning, |so }{my name is|my name's|I am|I'm|call me|you can call me|"
        "please call me|I am called|people call me|this is} <n>{|.|!|, nice to meet you| 😊}",
        "{|please }remember {my name:|that my name is|that I am|my name, it is} <n>{|.}",
        "{|hi, |hello, |well, |hey, }<n> is my name{|.|!| 😊}",
        "the name is <n>{|.|!}",
    ),
    "zh": Phrases(
        "{|你好，|您好，|嗨，|大家好，|你好！|早上好，}{我叫|我的名字是|我是|叫我|我的名字叫|我名叫|请叫我|大家叫我|可以叫我|你可以叫我}"
        "<n>{|。|！|，很高兴认识你| 😊}",
        "{|请}记住{我叫|我的名字是|我是|我的名字：|，我叫}<n>{|。}",
        "{|嗨，|你好，}<n>是我的名字{|。|！| 😊}",
    ),
}
ASK = {
    "en": Phrases(
        "{|and |so |now, |ok, |please |hey, }{what is my name|what's my name|who am I|do you remember my name|do you know my name|"
        "tell me my name|say my name|what am I called|can you tell me my name|do you still know my name|whats my name|"
        "what was my name|remember my name|do you know who I am|how am I called}?",
        "{|and |so |now, |ok, |please, |hey, }{what name did I tell you|which name did I give you|what did I say my name was|what did I tell you my name is|"
        "what is the name I told you}?",
    ),
    "zh": Phrases(
        "{|那么|那|现在|请问|好的，|嗨，}{我叫什么|我叫什么名字|我的名字是什么|我是谁|你记得我的名字吗|你知道我的名字吗|你还记得我叫什么吗|"
        "你知道我是谁吗|告诉我我的名字|说出我的名字|你记得我是谁吗|我的名字呢|还记得我的名字吗|你知道我叫什么吗|我刚才说我叫什么}？",
    ),
}
GREETED = {"en": "Nice to meet you, {}! 😊", "zh": "很高兴认识你，{}！😊"}
RECALLED = {"en": "Your name is {}.", "zh": "你叫{}。"}
UNKNOWN = {"en": "You have not told me your name yet.", "zh": "你还没有告诉我你的名字。"}


def tell(rng: Random, split: Split, language: Language, name: str) -> Turn:
    """Introduces the user."""
    # Filled after the phrase is varied, so that the name keeps its case.
    return Turn(TELL[language].pick(rng, split, n=name), GREETED[language].format(name))


def ask(rng: Random, split: Split, language: Language, name: str | None) -> Turn:
    """Asks for the name; `None` means that it was never told."""
    question = ASK[language].pick(rng, split)
    return Turn(question, RECALLED[language].format(name) if name else UNKNOWN[language])
