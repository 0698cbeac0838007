"""Words to copy and names to remember: real ones, and made-up ones without end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.demo_domains.grammar import Language, Split, in_split

COMMON = """
apple red green blue river stone house tree cat dog bird fish sun moon star rain snow wind fire
water earth bread milk tea coffee sugar salt table chair door window book paper pen road car
train plane boat city town school teacher student friend mother father child king queen garden
flower grass leaf music song dance game ball hand foot head heart eye dream night day morning
evening summer winter spring autumn small big long short fast slow hot cold new old good happy
sad quiet loud bright dark open closed left right up down one two three four five six seven eight
nine ten hello world please thanks love time home work play run walk jump sing read write think
mill wheel stream token model server worker cache queue block batch the a is and of to in on my
""".split()
EMOJI = list("😀😊🎉🚀🌊🌟🐱🐶🍎🍵🌈🔥❤👍🙂🎵🌙🐟🌸⚙")
HANZI = list(
    "天地人日月山水火木金土风云雨雪花草树鸟鱼牛马羊猫狗红黄蓝绿白黑大小多少上下左右前后东西南北"
    "春夏秋冬早晚新旧好坏高低长短快慢冷热开关来去吃喝看听说读写走跑飞唱跳爱家学校朋友老师电脑"
    "手机书本车船门窗桌椅茶米饭菜果汁星河海江湖石头心情梦想时间工作音乐游戏世界城市你我他她们的"
    "是在有不这那一二三四五六七八九十百千万今明昨年中国美丽安静光明生活清泉流磨坊轮子快乐幸福平安"
)
SURNAMES = list("王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕")
GIVEN = list("伟芳娜敏静丽强磊洋艳勇军杰娟涛明超秀霞平刚桂英华玉兰文斌宇浩然子涵欣怡梓轩雨泽思佳晨")
FIRST_NAMES = """
Anna Ben Carla David Emma Felix Grace Hugo Iris Jack Karen Leo Maria Noah Olivia Paul Quinn Rosa
Sam Tina Uma Victor Wendy Xavier Yara Zoe Alice Bob Carol Dan Eve Frank Gina Henry Ivan Julia Kevin
Laura Mike Nina Oscar Peter Rachel Steve Tom Vera Will Ali Omar Fatima Yusuf Priya Ravi Kenji Yuki
Sofia Lucas Mateo Elena Pierre Marie Hans Greta Lars Ingrid Olga Dmitri Chen Wei Mei Ling Jin Ada
""".split()

ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kl pl sh sl st th tr".split()
VOWELS = "a e i o u ai ee ia io oa ou".split()
CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "t", "nd", "rk", "x"]


def word(rng: Random, split: Split, language: Language, *, common: float = 0.6) -> str:
    """Draws a word; in the evaluation every made-up word is one training never saw."""
    if rng.random() < 0.06:
        return rng.choice(EMOJI)
    if language == "zh":
        return _until(lambda: "".join(rng.choices(HANZI, k=rng.choice([1, 2, 2, 3]))), split)
    if rng.random() < common:
        return _cased(rng, rng.choice(COMMON))
    return _cased(rng, _until(lambda: _made_up(rng), split))


def words(
    rng: Random, split: Split, language: Language, count: int, *, common: float = 0.6
) -> list[str]:
    """Draws `count` different words."""
    chosen: list[str] = []
    while len(chosen) < count:
        candidate = word(rng, split, language, common=common)
        if candidate not in chosen:
            chosen.append(candidate)
    return chosen


def name(rng: Random, split: Split, language: Language) -> str:
    """Draws a name of a person."""
    if rng.random() < 0.1:
        language = "en" if language == "zh" else "zh"
    if language == "zh":
        return _until(
            lambda: rng.choice(SURNAMES) + "".join(rng.choices(GIVEN, k=rng.choice([1, 2]))), split
        )
    if rng.random() < 0.3:
        drawn = _until(lambda: rng.choice(FIRST_NAMES), split)
    else:
        drawn = _until(lambda: _made_up(rng).capitalize(), split)
    return drawn.lower() if rng.random() < 0.12 else drawn


def _made_up(rng: Random) -> str:
    syllables = rng.choice([1, 2, 2, 2, 3])
    text = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables))
    return text + rng.choice(CODAS)


def _cased(rng: Random, text: str) -> str:
    draw = rng.random()
    if draw < 0.85:
        return text
    return text.capitalize() if draw < 0.96 else text.upper()


def _until(draw: Callable[[], str], split: Split) -> str:
    while True:
        text = draw()
        if len(text) == 1 or in_split(text, split):
            return text
