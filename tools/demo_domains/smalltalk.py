"""Greetings, thanks, and who the model is."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

SMALLTALK: list[tuple[Phrases, str, Phrases, str]] = [
    (
        Phrases(
            "{hi|hello|hey|hiya|howdy|greetings|hello hello|hi hi|good day|hey hey}{| there| you| friend| bot| model| Millrace}"
            "{|!|.| 👋| 😊}",
        ),
        "Hello! 👋 How can I help?",
        Phrases(
            "{你好|您好|嗨|哈喽|哈啰|你好呀|大家好|嘿|你好啊|喂}{|！|。|，朋友| 👋| 😊|，机器人|，模型}"
        ),
        "你好！👋 有什么可以帮你？",
    ),
    (
        Phrases("good {morning|afternoon|evening}{| to you| there| friend| everyone}{|!|.}"),
        "Hello! 👋 How can I help?",
        Phrases("{早上好|下午好|晚上好|早安|早|上午好|中午好}{|！|。|呀|啊|，朋友}"),
        "你好！👋 有什么可以帮你？",
    ),
    (
        Phrases(
            "{|hi, |hello, |hey, |so |and }{how are you|how are you doing|how do you do|how do you feel|are you well|are you ok|"
            "how is it going|how's it going}{| today| now| my friend}?",
        ),
        "I am fine, thank you! 😊",
        Phrases(
            "{|那|嗨，}{你好吗|你还好吗|最近怎么样|你怎么样|过得怎么样|你今天好吗|一切都好吗}？"
        ),
        "我很好，谢谢！😊",
    ),
    (
        Phrases(
            "{|ok, |great, |nice, |many |well, }{thanks|thank you|thx|thank you very much|thanks a lot|thank you so much}"
            "{| friend| bot| for that| for your help| 😊| 🙏}{|!|.}",
        ),
        "You are welcome! 😊",
        Phrases(
            "{|好的，|太好了，|非常|十分|真的}{谢谢|多谢|感谢|谢谢你|谢谢您|感谢你}{|！|。|了|你的帮助| 😊| 🙏}"
        ),
        "不客气！😊",
    ),
    (
        Phrases(
            "{|ok, |well, |thanks, }{bye|goodbye|bye bye|see you|see you later|good night|farewell|cya|see you soon}"
            "{| friend| bot| for now| then| 👋}{|!|.}",
        ),
        "Goodbye! 👋",
        Phrases(
            "{|好的，|那|谢谢，}{再见|拜拜|回头见|下次见|晚安|明天见|再会|待会见}{|！|。|了|，朋友| 👋}"
        ),
        "再见！👋",
    ),
    (
        Phrases(
            "{|hi, |and |so |hello, |please tell me }{who are you|what are you|what is your name|what's your name|who is this|"
            "introduce yourself|tell me about yourself|describe yourself|your name|who am I talking to|are you a person}{|?}",
            "{are you|is this} {chatgpt|gpt|claude|human|a human|a robot|an ai|a bot|a demo|a model|a language model|qwen|llama|real}?",
            "{which|what} model {are you|is this|am I talking to|is running|do you use}?",
            "how {big|large|small} are you?",
        ),
        "I am the tiny demo model of Millrace. 🤖 It is a demo: I know very little.",
        Phrases(
            "{|请问|那|你好，}{你是谁|你叫什么|你叫什么名字|你是什么|你的名字是什么|介绍一下你自己|自我介绍一下|你是什么模型|您是谁|你是哪个模型}{|？}",
            "你是{ChatGPT|GPT|人|真人|机器人|人工智能|AI|演示模型|语言模型|通义千问|一个模型|人类}吗？",
            "你有多{大|小}？",
        ),
        "我是 Millrace 的小小演示模型。🤖 只是演示，我懂得很少。",
    ),
    (
        Phrases(
            "{|so |hi, |and |please tell me }{what can you do|what do you know|how can you help me|how can you help|what can I ask|"
            "what can I ask you|what are you able to do|what are you good at|what should I ask you|can you help me|help|"
            "what do you do|help me}{|?| please}",
            "{tell me|show me|explain} what you {can do|know|can|are able to do}",
        ),
        "I can add and subtract, repeat, reverse and count words, name capitals and weekdays, count, "
        "remember your name and explain Millrace. 😊",
        Phrases(
            "{|请问|那|你好，|请告诉我}{你会什么|你能做什么|你会做什么|你知道什么|我能问什么|我可以问你什么|你有什么功能|你懂什么|"
            "你能帮我什么|你能帮我做什么|你会些什么|你擅长什么}？",
            "{帮助|帮帮我|你能帮我吗|救命|你可以帮我吗}{|？|！}",
        ),
        "我会加减法，重复、倒序和数词语，知道首都和星期，会数数，记得你的名字，还能介绍 Millrace。😊",
    ),
    (
        Phrases(
            "{|oh, |wow, |ok, |yes, |haha, |that is |you are |that's |well }"
            "{great|nice|cool|good|wonderful|excellent|very good|well done|correct|right|awesome|perfect|amazing|good job}{|!|.| 👍}",
            "{|well, |oh, |ah, }{ok|okay|yes|fine|alright|sure|i see|got it|good to know}{|!|.| then| 👍}",
        ),
        "🙂",
        Phrases(
            "{|哇，|哦，|嗯，|真|很|太|你真|你很}{好|棒|厉害|不错|聪明|对|正确|酷|优秀}{|！|。|了|啊| 👍}",
            "{|哦，|嗯，|啊，}{好的|行|可以|嗯|知道了|明白了|好吧|是的|收到}{|！|。| 👍}",
        ),
        "🙂",
    ),
]


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Says something friendly, or asks the model about itself."""
    english, english_answer, chinese, chinese_answer = rng.choice(SMALLTALK)
    if language == "zh":
        return Turn(chinese.pick(rng, split), chinese_answer)
    return Turn(english.pick(rng, split), english_answer)
