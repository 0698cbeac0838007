"""Trains the demo model from nothing and writes it to a folder.

    python -m tools.train_demo_model --out millrace/demo_model

Everything follows from the seed and the phases below. Loss is taken on the assistant's tokens.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from tools.demo_conversations import SAMPLERS, Mixture, conversation
from tools.demo_examination import examine, summary
from tools.demo_export import export
from tools.demo_network import DemoNetwork, Shape
from tools.demo_optimizer import Optimizer
from tools.demo_tokenizer import Encoded, encode_chats, train_tokenizer
from tools.evaluate_demo_model import report

SEED = 20260
STEP_TOKENS = 4096
MICRO_BATCHES = 6
WARMUP_STEPS = 40
AVERAGE_DECAY = 0.985


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one mixture; the learning rate falls linearly between its ends."""

    steps: int
    rate: tuple[float, float]
    mixture: Mixture


EVEN = {
    "arithmetic": 5.0,
    "echo": 1.6,
    "reverse": 2.0,
    "count words": 1.2,
    "capitals": 1.5,
    "weekdays": 1.0,
    "counting": 1.0,
    "Millrace": 2.0,
    "commands": 1.5,
    "small talk": 1.0,
    "refusal": 3.0,
}
# Copying is one skill behind half of the domains; it forms early when it is asked for often.
COPYING = dict.fromkeys(SAMPLERS, 0.5) | {
    "arithmetic": 3.0,
    "echo": 7.0,
    "reverse": 2.0,
    "count words": 2.0,
    "capitals": 1.5,
}
FINAL = EVEN | {
    "echo": 2.0,
    "reverse": 2.5,
    "count words": 1.6,
    "weekdays": 1.6,
    "counting": 2.2,
    "Millrace": 3.0,
    "commands": 1.0,
    "small talk": 1.6,
    "refusal": 2.5,
}
HARD = FINAL | {
    "arithmetic": 7.0,
    "reverse": 3.0,
    "capitals": 0.8,
    "counting": 3.5,
    "refusal": 3.0,
}
# From here on sums of two digits are written in columns as well (those of three were learnt to
# perfection, the direct ones not), and counting goes down as often as up.
SETTLE = HARD | {
    "arithmetic": 5.0,
    "reverse": 4.0,
    "capitals": 2.0,
    "counting": 4.0,
    "small talk": 2.2,
    "refusal": 3.5,
}
LAST = SETTLE | {"counting": 6.0, "reverse": 3.5}
POLISH = LAST | {
    "arithmetic": 4.0,
    "count words": 2.5,
    "Millrace": 3.5,
    "small talk": 3.5,
    "refusal": 4.0,
}
PHASES = [
    Phase(200, (1.0, 1.0), Mixture(EVEN)),
    Phase(250, (1.0, 1.0), Mixture(COPYING, name_share=0.35)),
    Phase(250, (1.0, 0.69), Mixture(EVEN)),
    Phase(300, (0.69, 0.41), Mixture(FINAL)),
    Phase(500, (0.45, 0.36), Mixture(FINAL)),
    Phase(750, (0.45, 0.25), Mixture(HARD)),
    Phase(250, (0.42, 0.36), Mixture(SETTLE)),
    Phase(700, (0.37, 0.16), Mixture(LAST)),
    Phase(500, (0.16, 0.0), Mixture(POLISH, name_share=0.3)),
    Phase(160, (0.14, 0.0), Mixture(POLISH, name_share=0.6)),
    Phase(110, (0.12, 0.0), Mixture(POLISH | {"refusal": 9.0, "echo": 4.0, "reverse": 4.0})),
]


def main() -> None:
    """Runs every phase, saving a checkpoint as it goes, then exports and examines the result."""
    arguments = _arguments()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    started = time.monotonic()
    tokenizer = _tokenizer(arguments.checkpoint.with_name("tokenizer.json"), arguments.resume)
    network = DemoNetwork(Shape(vocab_size=tokenizer.get_vocab_size()))
    optimizer = Optimizer(network)
    step, spent = 0, 0.0
    if arguments.resume and arguments.checkpoint.exists():
        step, spent = _load(arguments.checkpoint, network, optimizer)
    average = copy.deepcopy(network)
    crew = Crew(network, arguments.threads)
    for batch in _batches(tokenizer, step):
        phase, rate = _place(step)
        if phase is None:
            break
        loss = _train_step(crew, optimizer, batch, rate)
        _follow(average, network)
        step += 1
        if step % 20 == 0:
            elapsed = spent + time.monotonic() - started
            _say(f"step {step} loss {loss:.4f} rate {rate:.3f} {elapsed:.0f} s")
        if step % arguments.examine_every == 0:
            _save(
                arguments.checkpoint, network, optimizer, step, spent + time.monotonic() - started
            )
            export(average, tokenizer, arguments.checkpoint.parent / "latest")
            _say(summary(examine(average, tokenizer, cases=arguments.cases)))
    spent += time.monotonic() - started
    _save(arguments.checkpoint, network, optimizer, step, spent)
    export(average, tokenizer, arguments.out)
    _write_recipe(arguments.out, step, spent)
    report(arguments.out, arguments.final_cases, write=True)


def _write_recipe(folder: Path, steps: int, seconds: float) -> None:
    """Notes what the training took; the README quotes it."""
    recipe = {"seed": SEED, "steps": steps, "tokens": steps * STEP_TOKENS}
    text = (
        f"seed {SEED}, {steps} steps of {STEP_TOKENS} tokens, "
        f"{seconds / 60:.0f} minutes on two CPU cores."
    )
    note = json.dumps(recipe | {"minutes": round(seconds / 60), "text": text}, indent=2)
    (folder / "training.json").write_text(note + "\n", encoding="utf-8")


class Crew:
    """Threads that share one set of weights and collect gradients apart."""

    def __init__(self, network: DemoNetwork, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads)
        self.replicas = [network] + [DemoNetwork(network.shape) for _ in range(threads - 1)]
        for replica in self.replicas[1:]:
            for own, shared in zip(replica.parameters(), network.parameters(), strict=True):
                own.data = shared.data

    def gather(self) -> None:
        """Adds the gradients of all threads into those of the network."""
        for replica in self.replicas[1:]:
            for main, other in zip(
                self.replicas[0].parameters(), replica.parameters(), strict=True
            ):
                if other.grad is not None:
                    main.grad = other.grad if main.grad is None else main.grad + other.grad
                    other.grad = None


@torch.no_grad()
def _follow(average: DemoNetwork, network: DemoNetwork) -> None:
    """Moves the running average of the weights; it is steadier than the weights themselves."""
    for mean, weight in zip(average.parameters(), network.parameters(), strict=True):
        mean.lerp_(weight, 1 - AVERAGE_DECAY)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=Path("/tmp/millrace-demo/checkpoint.pt"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--examine-every", type=int, default=300)
    parser.add_argument("--cases", type=int, default=6, help="questions while training")
    parser.add_argument("--final-cases", type=int, default=300, help="questions at the end")
    return parser.parse_args()


def _tokenizer(path: Path, resume: bool) -> Tokenizer:
    """Learns the tokenizer; a resumed run keeps its own, whatever became of the generator."""
    if resume and path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = train_tokenizer(_tokenizer_texts())
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def _tokenizer_texts() -> Iterator[str]:
    rng, mixture = Random(SEED), Mixture(dict.fromkeys(SAMPLERS, 1.0))
    for _ in range(40_000):
        for message in conversation(rng, "train", mixture):
            yield message["content"]


def _place(step: int) -> tuple[Phase | None, float]:
    """Finds the phase of a step and its learning rate, as a share of the full one."""
    begin = 0
    for phase in PHASES:
        if step < begin + phase.steps:
            first, last = phase.rate
            done = (step - begin) / phase.steps
            warm = min(1.0, (step + 1) / WARMUP_STEPS)
            return phase, warm * (first + (last - first) * done)
        begin += phase.steps
    return None, 0.0


def _batches(tokenizer: Tokenizer, step: int) -> Iterator[list[Encoded]]:
    """Yields one step's conversations at a time, made one step ahead in a thread."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_draw, tokenizer, step)
        while True:
            batch = ahead.result()
            step += 1
            ahead = pool.submit(_draw, tokenizer, step)
            yield batch


def _draw(tokenizer: Tokenizer, step: int) -> list[Encoded]:
    # Seeded by the step, so that a resumed run sees what an unbroken one would.
    rng = Random(SEED * 1_000_003 + step)
    mixture = (_place(step)[0] or PHASES[-1]).mixture
    batch: list[Encoded] = []
    while sum(len(chat.ids) for chat in batch) < STEP_TOKENS:
        batch += encode_chats(tokenizer, [conversation(rng, "train", mixture) for _ in range(4)])
    return batch


def _train_step(crew: Crew, optimizer: Optimizer, batch: list[Encoded], rate: float) -> float:
    learnt = sum(sum(chat.learn) for chat in batch)
    # One thread per core, each with gradients of its own over shared weights, takes micro-batches
    # as it gets free. Threads inside each product would wait for whichever core is disturbed.
    replicas: SimpleQueue[DemoNetwork] = SimpleQueue()
    for replica in crew.replicas:
        replicas.put(replica)

    def learn(rows: list[Encoded]) -> float:
        replica = replicas.get()
        ids, targets = _padded(rows)
        hidden = replica(ids)
        asked = targets >= 0
        loss = F.cross_entropy(replica.logits(hidden[asked]), targets[asked], reduction="sum")
        (loss / learnt).backward()  # type: ignore[no-untyped-call]
        replicas.put(replica)
        return loss.item()

    total = sum(crew.pool.map(learn, _micro_batches(batch)))
    crew.gather()
    optimizer.step(rate)
    return total / learnt


def _micro_batches(batch: list[Encoded]) -> Iterator[list[Encoded]]:
    """Groups conversations of like length, so that little is spent on padding."""
    ordered = sorted(batch, key=lambda chat: len(chat.ids))
    room = sum(len(chat.ids) for chat in batch) / MICRO_BATCHES
    rows: list[Encoded] = []
    for chat in ordered:
        rows.append(chat)
        if len(rows) * len(chat.ids) >= room:
            yield rows
            rows = []
    if rows:
        yield rows


def _padded(rows: list[Encoded]) -> tuple[Tensor, Tensor]:
    length = max(len(row.ids) for row in rows) - 1
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), -1)
    for i, row in enumerate(rows):
        size = len(row.ids) - 1
        ids[i, :size] = torch.tensor(row.ids[:-1])
        wanted = [t if learn else -1 for t, learn in zip(row.ids[1:], row.learn[1:], strict=True)]
        targets[i, :size] = torch.tensor(wanted)
    return ids, targets


def _save(path: Path, network: DemoNetwork, optimizer: Optimizer, step: int, spent: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"network": network.state_dict(), "optimizer": optimizer.state(), "step": step}
    torch.save(state | {"spent": spent}, path)


def _load(path: Path, network: DemoNetwork, optimizer: Optimizer) -> tuple[int, float]:
    state = torch.load(path, weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load(state["optimizer"])
    return state["step"], state["spent"]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
