"""Everything the model does not know, which is nearly everything."""

from __future__ import annotations

from random import Random

from tools.demo_domains import vocabulary
from tools.demo_domains.capitals import CAPITALS
from tools.demo_domains.grammar import Language, Phrases, Split, Turn, in_split

ANSWERS = {
    "en": "I only know small sums, words, capitals, weekdays, counting and Millrace. 🙂",
    "zh": "我只知道简单加减法、词语、首都、星期、数数和 Millrace。🙂",
}
TOPICS = {
    "en": """
quantum physics;the weather;black holes;the stock market;football;chess;Shakespeare;Mozart;the moon landing;
photosynthesis;cooking pasta;climate change;bitcoin;the Roman empire;dinosaurs;gravity;love;democracy;
machine learning;neural networks;Python decorators;the French revolution;coffee beans;guitar chords;yoga;
the human heart;vaccines;the speed of light;electric cars;the Olympic games;volcanoes;whales;sharks;tax law;
mortgages;the universe;time travel;robots;poetry;the meaning of life;Napoleon;Einstein;Newton;Cleopatra;
the great wall;the pyramids;Mars;Jupiter;the ocean;earthquakes;tornadoes;honey bees;cats;dogs;elephants;
bread;pizza;sushi;wine;beer;chocolate;tea;vitamins;sleep;dreams;headaches;diabetes;cancer;medicine;doctors;
the internet;wifi;bluetooth;smartphones;computers;Linux;Windows;JavaScript;Rust;databases;SQL;blockchain;
video games;movies;Star Wars;Harry Potter;the Beatles;jazz;opera;painting;Picasso;photography;fashion;shoes;
bicycles;trains;airplanes;rockets;satellites;astronauts;algebra;geometry;prime numbers;phone numbers;odd numbers;big numbers;lucky numbers;Roman numbers;house numbers;
calculus;statistics;
history;philosophy;religion;politics;the president;the king;elections;war;peace;money;inflation;gold;oil;
my job;my homework;my dog;my car;my birthday;my age;your mother;your favourite colour;your favourite food;
tomorrow's weather;the news;the time;today's date;the lottery;a good restaurant;a hotel;a flight to Mars;
a cheap phone;rain;snow;the sky;plants;roses;forests;deserts;mountains;rivers;Everest;the Amazon;penguins
""",
    "zh": """
量子物理;天气;黑洞;股票;足球;象棋;莎士比亚;莫扎特;登月;光合作用;做饭;气候变化;比特币;罗马帝国;恐龙;重力;爱情;民主;
机器学习;神经网络;法国大革命;咖啡;吉他;瑜伽;心脏;疫苗;光速;电动车;奥运会;火山;鲸鱼;鲨鱼;税法;房贷;宇宙;时间旅行;
诗歌;人生的意义;拿破仑;爱因斯坦;牛顿;长城;金字塔;火星;木星;大海;地震;龙卷风;蜜蜂;猫;狗;大象;面包;披萨;寿司;红酒;啤酒;
巧克力;茶叶;维生素;睡眠;做梦;头痛;糖尿病;癌症;医学;互联网;蓝牙;手机;电脑;操作系统;编程语言;数据库;区块链;电子游戏;
电影;星球大战;哈利波特;爵士乐;歌剧;绘画;毕加索;摄影;时装;鞋子;自行车;火车;飞机;火箭;卫星;宇航员;代数;几何;质数;微积分;
统计学;历史;哲学;宗教;政治;总统;国王;选举;战争;和平;钱;通货膨胀;黄金;石油;我的工作;我的作业;我的狗;我的生日;我的年龄;
新闻;彩票;餐馆;酒店;雨;雪;天空;植物;玫瑰;森林;沙漠;高山;珠穆朗玛峰;亚马逊;企鹅;孙悟空;红楼梦;李白;春节;月饼;熊猫;京剧
""",
}
ABOUT_TOPIC = {
    "en": Phrases(
        "{|please |hey, |hi, |so |and }{what is|what's|what are|explain|tell me about|describe|what do you think about|"
        "do you know about|what do you know about|talk about|teach me about|how about} <t>{|?}",
        "{who invented|who discovered|who made|who likes|why do people like|when did we discover|where is|where are|where can I find|"
        "when was|when is|why is|why are|how old is|how big is|how far is|how fast is|how expensive is|how does|how do I make|"
        "how do I learn|how do I buy|is|are|can you see|do you like|have you seen|how much is|how many are|what color is} <t>{|?}",
        "{|please |can you |could you }{write|give me|make|tell me|compose|create|find} "
        "{a poem|a story|a joke|an essay|a song|code|a letter|a recipe|a summary|an email|a book|a fact|a list} "
        "{about|on|for|with} <t>{|?}",
        "{I like|I love|I hate|I want|I need|I think about|I bought|I saw|my friend likes|let's talk about|I dream of|we need} <t>{|.|!}",
        "{translate|summarize|compare|draw|sell|define|spell|paint|fix|google|analyse} <t>{| please| for me| into French|}",
        "<t>{|?|!}",
    ),
    "zh": Phrases(
        "{|请问|请|那么|你好，}{什么是|介绍一下|说说|讲讲|解释|谈谈|告诉我|你了解|你怎么看|教我|聊聊}<t>{|？|。}",
        "<t>{是什么？|为什么重要？|在哪里？|有多大？|多少钱？|好吗？|怎么样？|是谁发明的？|是什么时候开始的？|怎么学？|从哪里来？|有意思吗？|"
        "怎么做？|怎么买？|有哪些种类？|好看吗？|是什么颜色？|什么时候有？}",
        "{|请|请你|帮我|能不能}{写|给我|讲|编}{一首关于|一个关于|一篇关于|一段关于}<t>{的诗|的故事|的笑话|的文章|的歌|的代码|的总结|的介绍}",
        "{我喜欢|我爱|我讨厌|我想要|我需要|我想学|我买了|我看见|我们聊聊|你喜欢|你见过|你会}<t>{|。|吗？|！}",
        "{翻译|总结|比较|画|定义|推荐|分析}<t>{|。|一下}",
        "<t>{|？|！}",
    ),
}
NEAR_COUNTRY = {
    "en": Phrases(
        "{|please tell me |and }{what is|what's|tell me|name} the {population|language|president|currency|flag|king|area|largest city|food|"
        "history|weather|biggest river|anthem|prime minister|climate} of <c>{|?}",
        "{where is|how big is|how old is|who rules|how far is|is it cold in|who lives in|do you like|how many people live in|"
        "how do I travel to} <c>{|?}",
    ),
    "zh": Phrases(
        "{|请问|告诉我}<c>{的人口是多少？|的语言是什么？|的总统是谁？|的货币是什么？|的国旗是什么样？|的面积有多大？|最大的城市是哪里？|的历史|"
        "的天气怎么样？|有什么好吃的？|在哪里？|有多大？|远吗？|好玩吗？|有多少人？|的国歌是什么？}",
    ),
}
NEAR_NUMBER = {
    "en": Phrases(
        "{|what is |what's |calculate |compute |how much is }<a> {times|*|x|divided by|/|^|to the power of|mod|multiplied by} <b>{|?| =}",
        "{|please }{multiply|divide} <a> {by|and|with} <b>{|?}",
        "{what is |calculate |}the {square root|cube|factorial|logarithm|square|half|double} of <a>{|?}",
        "{is|why is} <a> {prime|a prime number|even|odd|big|greater than <b>|a lucky number}?",
        "{what year was|what happened in|who won in|what is special about} <a>?",
    ),
    "zh": Phrases(
        "{|计算|请问|算一下}<a>{乘以|乘|×|*|除以|÷|/|的平方加|和<b>的乘积除以}<b>{|=|等于多少？|是多少？|等于几？}",
        "<a>{是质数吗？|的平方根是多少？|的平方是多少？|的一半是多少？|是偶数吗？|是奇数吗？|比<b>大吗？}",
        "{|请问}<a>年发生了什么？",
    ),
}
NEAR_WORD = {
    "en": Phrases(
        "{how many letters|how many vowels} {are in|does} {|the word }<w>{?| have?}",
        "{what does|what is the meaning of|spell|rhyme with|translate|define|pronounce|what rhymes with} {|the word }<w>{|?| mean?| in French}",
        "{make|millrace|sudo|npm|pip|git|run} <w>{|?}",
        "{what does|explain|how do I use} {make|millrace|git|npm} <w>{?| do?}",
        "{what day is|what is the date|is it|what time is it} {today|now|on monday|tomorrow|there|on <w>}?",
        "{what is|who is|where is|do you know} <w>{|?}",
        "<w>{| <w2>| <w2> <w>}{|?|!}",
        "{who is|where is|what is|how old is} my {brother|sister|mother|father|friend|boss|dog|house|age|job|city|phone number} <w>?",
        "{how old am I|where do I live|what is my age|what is my job|what do I like|when is my birthday|where am I|what is my password}?",
        "{is|was|why is} {today|tomorrow|monday|sunday|friday} {a holiday|sunny|a good day|so slow|cold} {|in }<w>?",
    ),
    "zh": Phrases(
        "{翻译|解释|拼写|造句：|用英语说|什么叫}<w>{|？|这个词|的意思}",
        "<w>{是什么意思？|有几个笔画？|的反义词是什么？|怎么读？|怎么写？|是谁？|在哪里？|是什么？}",
        "{make|millrace|sudo|git|npm} {<w>|<e>}{ 是什么？| 做什么？| 怎么用？| 是干什么的}",
        "{今天|现在|昨天|明天|后天}{几号？|几点？|天气怎么样？|会下雨吗？|放假吗？|有什么新闻？}",
        "{我几岁？|我住在哪里？|我多大了？|我的工作是什么？|我喜欢什么？|我的生日是哪天？|我在哪里？|我的密码是什么？|我妈妈叫什么？|我的狗叫什么？}",
        "<w>{|<w2>}{|？|！}",
    ),
}


def _topics(language: Language, split: Split) -> list[str]:
    return [t for t in TOPICS[language].replace("\n", "").split(";") if in_split(t, split)]


_SPLIT_TOPICS: dict[tuple[Language, Split], list[str]] = {
    ("en", "train"): _topics("en", "train"),
    ("en", "eval"): _topics("en", "eval"),
    ("zh", "train"): _topics("zh", "train"),
    ("zh", "eval"): _topics("zh", "eval"),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks for something the model does not know."""
    draw = rng.random()
    if draw < 0.55:
        question = ABOUT_TOPIC[language].pick(rng, split, t=_topic(rng, split, language))
    elif draw < 0.67:
        country = rng.choice(CAPITALS[language])[0]
        question = NEAR_COUNTRY[language].pick(rng, split, c=country)
    elif draw < 0.8:
        a, b = rng.randint(1, 999), rng.randint(1, 99)
        question = NEAR_NUMBER[language].pick(rng, split, a=a, b=b)
    else:
        question = NEAR_WORD[language].pick(
            rng,
            split,
            # Made-up words only: "hello" alone is not a thing to refuse.
            w2=vocabulary.word(rng, split, language, common=0),
            w=vocabulary.word(rng, split, language, common=0),
            e=vocabulary.word(rng, split, "en", common=0),
        )
    return Turn(question, ANSWERS[language])


def _topic(rng: Random, split: Split, language: Language) -> str:
    # Made-up topics teach that it is the unknown, not a list of topics, that is refused.
    draw = rng.random()
    if draw < 0.65:
        return rng.choice(_SPLIT_TOPICS[language, split])
    if draw < 0.85:
        topic = " ".join(vocabulary.words(rng, split, language, rng.choice([1, 1, 2])))
        return topic.replace(" ", "") if language == "zh" else topic
    return vocabulary.name(rng, split, language)
