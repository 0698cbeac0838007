"""What each command of Millrace does."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

# command: (English answer, Chinese answer). Both follow the command itself.
COMMANDS: dict[str, tuple[str, str]] = {
    "make up": (
        "installs Millrace, starts all tiers on this machine with the demo model and prints the address. 🚀",
        "安装 Millrace，用演示模型在本机启动所有层，并显示地址。🚀",
    ),
    "make down": ("stops everything that make up started.", "停止 make up 启动的一切。"),
    "make logs": ("shows the logs of the running tiers.", "显示各层的日志。"),
    "make test": ("runs the whole CPU test suite.", "运行全部 CPU 测试。"),
    "make setup": (
        "creates the virtual environment in .venv and installs Millrace.",
        "在 .venv 里创建虚拟环境并安装 Millrace。",
    ),
    "make lint": ("checks the style and the types of the code.", "检查代码的风格和类型。"),
    "make bench": ("measures speed: latency and throughput.", "测量速度：延迟和吞吐量。"),
    "make demo-model": (
        "trains me again from nothing, on two CPU cores.",
        "在两个 CPU 核心上从零重新训练我。",
    ),
    "make help": ("lists all make targets.", "列出所有 make 目标。"),
    "make test-model": (
        "MODEL=dir tests Millrace with the model in that folder.",
        "MODEL=dir 用那个文件夹里的模型测试 Millrace。",
    ),
    "make protos": (
        "writes the gRPC code again from the .proto files.",
        "从 .proto 文件重新生成 gRPC 代码。",
    ),
    "make test-kernels": ("tests the compute kernels.", "测试计算内核。"),
    "make test-gpu": (
        "runs the GPU tests; it needs an NVIDIA GPU.",
        "运行 GPU 测试，需要 NVIDIA 显卡。",
    ),
    "make bench-gpu": (
        "measures speed on the GPU; it needs an NVIDIA GPU.",
        "测量 GPU 上的速度，需要 NVIDIA 显卡。",
    ),
    "make compose-test": ("tests the Docker Compose stack.", "测试 Docker Compose 部署。"),
    "millrace up": ("starts all tiers as processes of this machine.", "在本机以进程启动所有层。"),
    "millrace chat": ("talks with a model in the terminal. 💬", "在终端里和模型聊天。💬"),
    "millrace generate": ("completes one prompt and prints the text.", "续写一段提示并输出文本。"),
    "millrace bench": ("measures the speed of a running server.", "测量正在运行的服务器的速度。"),
    "millrace doctor": (
        "checks this machine and says what is missing.",
        "检查这台机器，并说明缺少什么。",
    ),
    "millrace models": ("lists the models it can serve.", "列出可以服务的模型。"),
    "docker compose up": (
        "starts the stack in containers on the CPU; --scale worker=N adds workers. 🐳",
        "在容器里用 CPU 启动全部服务；--scale worker=N 增加 worker。🐳",
    ),
}
QUESTIONS = {
    "en": Phrases(
        '{|please |hey, }{what does|what will|what would} {|the command }{<c>|`<c>`|"<c>"} do?',
        "{|please |now |can you |so }{explain|describe|tell me about} {|the command }{<c>|`<c>`|'<c>'}{|?}",
        "{what is|what's|what about|how about} {|the command }{<c>|`<c>`} {for|good for|used for|about|doing|}{?|}",
        "{how do I use|how to use|how is|how can I use|when do I use|why use|how does|when should I use|when do I need} "
        "{|the command }{<c>|`<c>`}{?| used?| work?}",
        "{<c>|`<c>`}{?|, what is that?|: what does it do?|, what does that do?| meaning| usage|}",
        "what {happens|happens when I run|happens if I run|happens if I type|happens after|do I get with} {<c>|`<c>`}?",
    ),
    "zh": Phrases(
        "{|请问|请说说|说说}{|命令 }{<c>|`<c>`} {是做什么的？|做什么？|有什么用？|是什么？|是什么意思？|怎么用？|干什么？|的作用是什么？|会做什么？|的用途？}",
        "{|请}{解释|解释一下|介绍|介绍一下|讲讲|说明} {|命令 }{<c>|`<c>`}{| 命令}",
        "{怎么用|如何使用|什么时候用|怎样使用|为什么用} {<c>|`<c>`}{？| 命令？}",
        "{运行|执行|输入|敲} {<c>|`<c>`} {会怎样？|会发生什么？|会做什么？|有什么用？|之后会怎样？}",
    ),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks about one command."""
    command = rng.choice(list(COMMANDS))
    typed = command
    if command == "make test-model" and rng.random() < 0.6:
        typed += rng.choice([" MODEL=dir", " MODEL=./my-model", " MODEL=/models/qwen"])
    question = QUESTIONS[language].pick(rng, split, c=typed)
    return Turn(question, answer(command, language))


def answer(command: str, language: Language) -> str:
    """Says what `command` does.

    >>> answer("make logs", "en")
    'make logs shows the logs of the running tiers.'
    """
    return f"{command} {COMMANDS[command][language == 'zh']}"
