"""Questions about Millrace itself: what it is, its four tiers, and how things are done with it."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

_HOW = (
    "{how do I|how can I|how to|how do we|tell me how to|what must I do to|how would I|I want to}"
)
_ZH_HOW = "{怎么|如何|怎样|请问怎么|请问如何|我想|我要|该怎么}"
_TIER = "{what is|what's|what does|explain|describe|tell me about|what about} {the|Millrace's|your}"
_ZH_TIER_END = "{是什么？|做什么？|是做什么的？|有什么用？|的作用是什么？|负责什么？|干什么？}"

FAQ: list[tuple[Phrases, str, Phrases, str]] = [
    (
        Phrases(
            "{|please |hey, |so |hello, }{what is|what's|explain|describe|tell me about|what does|define|introduce} "
            "millrace{|?| do?| exactly?| for?| about?}",
            "what {kind of|sort of} {thing|program|project|software|system} is millrace?",
            "{what do you know|can you tell me something|what can you tell me} about millrace?",
        ),
        "Millrace is an LLM serving stack: it runs language models and answers with the OpenAI API. 🌊",
        Phrases(
            "{|请问|请告诉我|你知道}millrace {是什么？|是什么东西？|是做什么的？|是干什么的？|有什么用？|是什么软件？|是什么项目？}",
            "{|请}{介绍|介绍一下|解释|解释一下|说说|讲讲|什么是} millrace{|？|。| 项目}",
        ),
        "Millrace 是一个大语言模型服务系统：运行模型，并提供 OpenAI 接口。🌊",
    ),
    (
        Phrases(
            "{what are|name|list|tell me|which are|explain|describe} {|all }{the|its|the four|millrace's|your} "
            "{tiers|four tiers|parts|services|layers|components}{| of millrace| in millrace}{|?}",
            "{how many|which|what} {tiers|parts|services|layers|components} {does millrace have|are in millrace|"
            "are there in millrace|has millrace}?",
            "{what is|explain|describe|tell me about} the architecture{| of millrace| of the stack}{|?}",
        ),
        "Four tiers: API gateway, tokenizer service, engine core and worker.",
        Phrases(
            "{|请问}millrace {有|由|分}{哪些层？|哪几层？|哪四层？|几层？|多少层？|哪些部分组成？|哪些服务？|哪几层组成？}",
            "{|请}{列出|说出|介绍|说说} millrace {|的}{四层|四个层|各层|所有层|架构|组成部分}",
            "millrace {的架构|的结构|的组成}{是什么？|是怎样的？|有哪些？}",
        ),
        "四层：API 网关、分词服务、引擎核心和 worker。",
    ),
    (
        Phrases(_TIER + " {api gateway|gateway|api_gateway}{|?| do?| for?| tier?}"),
        "The API gateway takes HTTP requests and knows keys, limits and the OpenAI API.",
        Phrases("{|请问}{|millrace 的}{API 网关|网关|api gateway |api_gateway }" + _ZH_TIER_END),
        "API 网关接收 HTTP 请求，管密钥、限额和 OpenAI 接口。",
    ),
    (
        Phrases(_TIER + " {tokenizer service|tokenizer|tokenizer_service}{|?| do?| for?| tier?}"),
        "The tokenizer service turns text into tokens and tokens back into text.",
        Phrases(
            "{|请问}{|millrace 的}{分词服务|分词器|tokenizer service |tokenizer }" + _ZH_TIER_END
        ),
        "分词服务把文本变成 token，再把 token 变回文本。",
    ),
    (
        Phrases(_TIER + " {engine core|engine|engine_core|scheduler}{|?| do?| for?| tier?}"),
        "The engine core schedules requests and looks after the KV cache blocks.",
        Phrases("{|请问}{|millrace 的}{引擎核心|引擎|调度器|engine core |engine }" + _ZH_TIER_END),
        "引擎核心调度请求，并管理 KV 缓存块。",
    ),
    (
        Phrases(_TIER + " {worker|workers|worker tier|worker process}{|?| do?| for?}"),
        "A worker holds the weights and the KV cache and computes the next tokens, on a GPU or the CPU.",
        Phrases("{|请问}{|millrace 的}{worker |workers |worker 层|工作进程}" + _ZH_TIER_END),
        "worker 保存权重和 KV 缓存，在 GPU 或 CPU 上计算下一个 token。",
    ),
    (
        Phrases(
            _HOW
            + " {start|launch|run|boot|bring up|set up|use} {millrace|the stack|the server|the service}{|?}",
            "{start|launch|run} {millrace|the stack|the server}",
        ),
        "Type make up, then open http://localhost:8000. 🚀",
        Phrases(_ZH_HOW + "{启动|运行|开启|使用|跑起来} {millrace|服务器|服务}{|？|呢？}"),
        "输入 make up，然后打开 http://localhost:8000。🚀",
    ),
    (
        Phrases(
            _HOW
            + " {stop|shut down|halt|end|quit|turn off|kill} {millrace|the stack|the server|the service}{|?}",
            "{stop|shut down} {millrace|the stack|the server}",
        ),
        "Type make down.",
        Phrases(_ZH_HOW + "{停止|关闭|停掉|关掉|结束} {millrace|服务器|服务}{|？|呢？}"),
        "输入 make down。",
    ),
    (
        Phrases(
            "{what|which} {port|port number|address|url} {does millrace use|does the server use|is used|is it on|"
            "is millrace on|does it listen on|does the gateway use}?",
            "{on |at |}{which|what} {port|address|url} {does|can I find} {millrace|the server|the api} "
            "{listen|run|answer|}?",
        ),
        "Port 8000: http://localhost:8000.",
        Phrases(
            "{|请问}{millrace|服务器|服务|网关|API} {用|使用|监听|在}{哪个端口？|什么端口？|哪个地址？|什么地址？|多少端口？}",
            "{millrace|服务器|服务} {的端口|的地址|的端口号}{是多少？|是什么？|是哪个？}",
        ),
        "端口 8000：http://localhost:8000。",
    ),
    (
        Phrases(
            "{which|what} {endpoint|route|url|path} {do I use|is|should I use|can I use|must I call} {for|to} {chat|chatting}{?| requests?|"
            " completions?}",
            _HOW
            + " {send a chat request|call the api|call the chat api|use the api|use the openai client|"
            "ask over http}{|?}",
        ),
        "Send POST /v1/chat/completions to port 8000, as with OpenAI.",
        Phrases(
            "{|请问}{聊天|对话}{用|使用|调用|走}{哪个接口？|什么接口？|哪个路径？|哪个端点？|什么地址？}",
            _ZH_HOW
            + "{调用 API|调用接口|发送聊天请求|使用 API|使用 openai 客户端|使用接口}{|？|呢？}",
        ),
        "向端口 8000 发送 POST /v1/chat/completions，和 OpenAI 一样。",
    ),
    (
        Phrases(
            _HOW + " {see|read|get|find|scrape|watch|view} {the|its|millrace's|all} metrics{|?}",
            "{where|at which path|on which path} {are|can I see|can I find|do I find} {the|its|millrace's|all} metrics?",
            "{what|which} metrics {are there|does millrace have|do you have}?",
        ),
        "Each tier serves Prometheus metrics at /metrics. 📈",
        Phrases(
            _ZH_HOW + "{看|查看|读取|找到|抓取|看到}{指标|监控指标|监控|metrics}{|？|呢？}",
            "{指标|监控指标|监控|metrics }{在哪里？|在哪？|怎么看？|在哪里看？|有哪些？}",
        ),
        "每一层都在 /metrics 提供 Prometheus 指标。📈",
    ),
    (
        Phrases(
            _HOW
            + " {use|load|run|serve|try} {my own|another|a different|a real|a bigger|my} {model|model folder}{|?}",
            "can I {use|load|run|serve} {my own|another|a different|a real|a bigger} model?",
        ),
        "Type make up MODEL=dir with the folder of your model.",
        Phrases(
            _ZH_HOW
            + "{使用|加载|运行|换成|用}{自己的|别的|其他|另一个|更大的|真正的}模型{|？|呢？}",
            "可以{使用|加载|运行|换|用}{自己的|别的|其他|另一个|更大的}模型吗？",
        ),
        "输入 make up MODEL=dir，dir 是模型文件夹。",
    ),
    (
        Phrases(
            _HOW
            + " {use|run on|use my|run it on|run millrace on|switch to} {the gpu|a gpu|my gpu|gpus|cuda|nvidia}{|?}",
            "{can|does} {millrace|it} {run on|use|support|work with} {the gpu|a gpu|my gpu|gpus|cuda}?",
        ),
        "Type make up DEVICE=cuda, or docker compose --profile gpu up.",
        Phrases(
            _ZH_HOW + "{使用|用|在|切换到} {GPU|显卡|CUDA}{| 运行| 上运行| 启动}{|？|呢？}",
            "{millrace|它} {支持|能用|可以用|能使用} {GPU|显卡|CUDA} 吗？",
        ),
        "输入 make up DEVICE=cuda，或 docker compose --profile gpu up。",
    ),
    (
        Phrases(
            _HOW
            + " {add|start|get|have|run} {workers|more workers|another worker|many workers|several workers}{|?}",
            _HOW + " {scale|scale up|scale out} {millrace|the stack|the workers|workers}{|?}",
        ),
        "Type docker compose up --scale worker=4, or millrace up --workers 4.",
        Phrases(
            _ZH_HOW + "{增加|添加|启动更多|扩展|扩容|加|多开几个} {worker|workers}{|？|呢？}",
            _ZH_HOW + "{扩展|扩容|横向扩展} {millrace|服务}{|？|呢？}",
        ),
        "输入 docker compose up --scale worker=4，或 millrace up --workers 4。",
    ),
    (
        Phrases(
            _HOW
            + " {use|call|run|import} {millrace|it|the models|a model} {from python|in python|offline|without a server}{|?}",
            "{what is|what's|explain|how do I use|how to use|tell me about|show me} the {LLM class|offline API|python API|"
            "LLM API|offline LLM API|LLM object}{|?}",
        ),
        "from millrace import LLM; LLM().chat([...]) runs the engine in your own process. 🐍",
        Phrases(
            _ZH_HOW
            + "{在 python 里|用 python|离线|不用服务器|不启动服务器}{使用|调用|运行} {millrace|模型}{|？|呢？}",
            "{LLM 类|离线接口|离线 API|LLM 接口|python 接口|离线 LLM 接口}{是什么？|怎么用？|如何使用？|有什么用？}",
        ),
        "from millrace import LLM; LLM().chat([...]) 在你自己的进程里运行引擎。🐍",
    ),
    (
        Phrases(
            "{where|how} {is|do I open|can I find|do I find|can I open} {the|its|a|millrace's} {ui|web ui|web page|chat page|"
            "browser page|web interface}{|?}",
            "{is there|does millrace have|do you have} {a|any} {ui|web ui|web page|chat page|web interface}?",
        ),
        "Open http://localhost:8000 in a browser.",
        Phrases(
            "{网页|界面|网页界面|聊天页面|UI }{在哪里？|在哪？|怎么打开？|如何打开？}",
            "{有|有没有}{网页|界面|网页界面|聊天页面}{吗？|？}",
        ),
        "在浏览器里打开 http://localhost:8000。",
    ),
    (
        Phrases(
            _HOW
            + " {check|know|see|test} {if|whether|that} {millrace|the server|it|the stack} is {ready|up|healthy|alive|running}{|?}",
            "{is|are} there {a|any} {health|ready|readiness} {check|route|endpoint}{?|s?}",
        ),
        "Ask /ready, /live or /health on port 8000. ✅",
        Phrases(
            _ZH_HOW
            + "{检查|知道|确认|查看}{服务器|服务|millrace}{是否就绪|是否正常|是否健康|是否在运行|好了没有}{|？}",
            "{有|有没有}{健康检查|就绪检查}{吗？|接口吗？|？}",
        ),
        "访问端口 8000 的 /ready、/live 或 /health。✅",
    ),
    (
        Phrases(
            "{which|what} {commands|command|make targets|make commands} {are there|do you know|does millrace have|can I use|"
            "exist|can I run}?",
            "{list|show|name|tell me} {|all }{the|your|millrace's} {commands|make targets|make commands}",
        ),
        "make up, down, logs, test, setup, lint, bench, protos, demo-model, help; "
        "millrace up, chat, generate, bench, doctor, models.",
        Phrases(
            "{有|millrace 有|你知道}{哪些|什么}{命令？|make 命令？|make 目标？}",
            "{列出|说出|告诉我}{所有|全部|你知道的}{命令|make 命令|make 目标}",
        ),
        "make up、down、logs、test、setup、lint、bench、protos、demo-model、help；"
        "millrace up、chat、generate、bench、doctor、models。",
    ),
]


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks one question about Millrace."""
    english, english_answer, chinese, chinese_answer = rng.choice(FAQ)
    question = (chinese if language == "zh" else english).pick(rng, split)
    # People write the name with and without a capital.
    if rng.random() < 0.6:
        question = question.replace("millrace", "Millrace")
    return Turn(question, chinese_answer if language == "zh" else english_answer)
