"""The seven days and their neighbours."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

DAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "zh": [f"星期{day}" for day in "一二三四五六日"],
}
QUESTIONS: dict[Language, dict[int, Phrases]] = {
    "en": {
        1: Phrases(
            "{what|which} {day|weekday|day of the week} {is|comes|follows|is right} after <d>?",
            "{if|when} today is <d>, {what|which day} {is|will be} tomorrow?",
            "today is <d>, {what|which} day is {it tomorrow|tomorrow}?",
            "{tell me |name |what is |what's |}the {day|weekday|next day} after <d>",
        ),
        -1: Phrases(
            "{what|which} {day|weekday|day of the week} {is|comes|was|is right} before <d>?",
            "{if|when} today is <d>, {what|which day} {was|is} yesterday?",
            "today is <d>, {what|which} day was {it yesterday|yesterday}?",
            "{tell me |name |what is |what's |}the {day|weekday|previous day} before <d>",
        ),
        2: Phrases(
            "{what|which} {day|weekday} {is|comes|will be} {two|2} days {after|from|later than} <d>?",
            "{tell me |name |what is |}the day {two|2} days after <d>",
        ),
        -2: Phrases(
            "{what|which} {day|weekday} {is|comes|was} {two|2} days {before|earlier than} <d>?",
            "{tell me |name |what is |}the day {two|2} days before <d>",
        ),
    },
    "zh": {
        1: Phrases(
            "<d>{之后|后面|后|的后一天|的第二天|的下一天}{是星期几？|是哪一天？|是什么日子？|是周几？|是礼拜几？}",
            "{如果|假如|}今天是<d>，{那么|那|}明天{是星期几？|是周几？|星期几？}",
        ),
        -1: Phrases(
            "<d>{之前|前面|前|的前一天|的上一天}{是星期几？|是哪一天？|是什么日子？|是周几？|是礼拜几？}",
            "{如果|假如|}今天是<d>，{那么|那|}昨天{是星期几？|是周几？|星期几？}",
        ),
        2: Phrases("<d>{之后两天|后两天|的两天后|过两天|再过两天}{是星期几？|是哪一天？|是周几？}"),
        -2: Phrases("<d>{之前两天|前两天|的两天前|往前两天}{是星期几？|是哪一天？|是周几？}"),
    },
}
SENTENCES = {
    "en": {
        1: "The day after {} is {}.",
        -1: "The day before {} is {}.",
        2: "Two days after {} is {}.",
        -2: "Two days before {} is {}.",
    },
    "zh": {1: "{}之后是{}。", -1: "{}之前是{}。", 2: "{}之后两天是{}。", -2: "{}之前两天是{}。"},
}
HOW_MANY = {
    "en": Phrases("{how many|what number of} days {are in|are there in|does|has} a week{?| have?}"),
    "zh": Phrases("{一周|一个星期|一星期|每周|一个礼拜}{有几天？|有多少天？|是几天？|共有几天？}"),
}
LIST_ALL = {
    "en": Phrases(
        "{list|name|tell me|say|what are|write|give me} {|all }the {days of the week|weekdays|seven days}"
    ),
    "zh": Phrases("{列出|说出|写出|告诉我}{一周的每一天|一周七天|所有的星期|一个星期的每一天}"),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks for the neighbour of a day, and now and then about the week."""
    draw = rng.random()
    if draw < 0.06:
        return Turn(
            HOW_MANY[language].pick(rng, split),
            "一周有 7 天。" if language == "zh" else "A week has 7 days.",
        )
    days = DAYS[language]
    if draw < 0.12:
        glue = "、" if language == "zh" else ", "
        return Turn(
            LIST_ALL[language].pick(rng, split),
            glue.join(days) + ("。" if language == "zh" else "."),
        )
    index, step = rng.randrange(7), rng.choice([1, 1, -1, -1, 2, -2])
    answer = SENTENCES[language][step].format(days[index], days[(index + step) % 7])
    asked = QUESTIONS[language][step].pick(rng, split, d=_typed(rng, days[index], language))
    return Turn(asked, answer)


def _typed(rng: Random, day: str, language: Language) -> str:
    if language == "en":
        return day.lower() if rng.random() < 0.3 else day
    if day == "星期日" and rng.random() < 0.4:
        day = "星期天"
    draw = rng.random()
    return (
        day.replace("星期", "周")
        if draw < 0.3
        else day.replace("星期", "礼拜")
        if draw < 0.4
        else day
    )
