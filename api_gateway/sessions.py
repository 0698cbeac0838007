"""One tokenizer session seen from its receiver: slots in, mailboxes out.

Knows `TextBatch` and nothing of its transport: the gateway feeds a `Demux` from a gRPC stream, the
offline interface from the text tier in its own process. One event loop owns all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import repeat

from protos.columns import unpack
from protos.common_pb2 import Finish, PromptProgress
from protos.limits import Age
from protos.tokenizer_pb2 import TextBatch, TextBulk, TextLogprobs


class Mailbox:
    """Collects the choices of one request that have news and wakes its one consumer once."""

    __slots__ = ("_news", "_waiter", "alarm")

    def __init__(self) -> None:
        self._news: list[Choice] = []
        self._waiter: asyncio.Future[None] | None = None
        self.alarm: str | None = None
        """Why the consumer was woken without news; the consumer clears it."""

    def post(self, choice: Choice) -> None:
        if not choice.has_news:
            choice.has_news = True
            self._news.append(choice)
        self._wake()

    def ring(self, alarm: str) -> None:
        """Wake the consumer for something that is no news of a choice; the last alarm stands."""
        self.alarm = alarm
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> list[Choice]:
        """Return the choices with news, waiting for some; none while an alarm stands.

        To answer it takes time: what ends meanwhile must not be in news that were taken before.
        """
        if not self._news and self.alarm is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.alarm is not None:
            return []
        news, self._news = self._news, []
        for choice in news:
            choice.has_news = False
        return news


class Choice:
    """One token stream of a request: all that arrived, and what of it nobody has taken yet.

    `token_ids` is a column; with `text_bytes`, the bytes of answer and reasoning together, it is
    what a replay needs. `finish` is set once.
    """

    __slots__ = (
        "age",
        "begun_slot",
        "bulks",
        "finish",
        "has_news",
        "index",
        "last_arrival_s",
        "logprobs",
        "mailbox",
        "model_hash",
        "next_logprob",
        "num_at_send",
        "num_moves",
        "sent_s",
        "num_prompt_tokens",
        "num_reasoning",
        "num_seen",
        "number",
        "progress",
        "prompt",
        "prompt_ids",
        "reasoning",
        "slot",
        "text_bytes",
        "texts",
        "token_ids",
    )

    def __init__(self, mailbox: Mailbox, prompt: int = 0, number: int = 0, index: int = 0) -> None:
        """`number` counts the choices of one prompt, `index` those of the whole request."""
        self.mailbox = mailbox
        self.prompt = prompt
        self.number = number
        self.index = index
        self.slot = -1
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        """Texts between the model's think tags, when these were asked for apart."""
        self.num_reasoning = 0  # tokens up to their end: thoughts come first
        self.bulks: list[TextBulk] = []
        self.progress: PromptProgress | None = None
        self.text_bytes = 0
        self.token_ids = bytearray()
        self.num_prompt_tokens = 0
        self.begun_slot = -1  # the slot that an engine has got
        self.num_moves = 0  # times that another one got it, as the last was lost
        self.model_hash = ""  # of the engine that has it, or had it last
        self.prompt_ids = b""  # column, of one choice of a prompt, where they are asked for
        self.logprobs: list[TextLogprobs] = []
        self.next_logprob = 0
        self.finish: Finish | None = None
        self.has_news = False
        self.last_arrival_s = 0.0
        self.num_seen = 0  # tokens the consumer has noticed
        self.num_at_send = 0  # tokens that there were when a tokenizer got it for the last time
        self.sent_s = 0.0  # and when that was, monotonic
        self.age = Age(time.monotonic())  # a tokenizer serves it from its first token there

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4

    def take_text(self) -> str:
        """Return the text that arrived since the last call."""
        return joined(self.texts)

    def take_reasoning(self) -> str:
        """Return the reasoning that arrived since the last call; it stands before the text."""
        return joined(self.reasoning)

    def take_bulks(self) -> list[TextBulk]:
        """Return what came beside the columns since the last call."""
        taken, self.bulks = self.bulks, []
        return taken

    def take_logprobs(self) -> list[TextLogprobs]:
        """Return the logprobs that arrived since the last call."""
        taken, self.logprobs = self.logprobs, []
        return taken

    def add(
        self, text_offset: int, text: str, token_offset: int, token_ids: bytes, channel: int = 0
    ) -> bool:
        """Take one entry, dropping what is already here; return False when a part is missing."""
        held = len(self.token_ids)
        if text_offset > self.text_bytes or token_offset * 4 > held:
            return False
        if text_offset < self.text_bytes:
            text = text.encode()[self.text_bytes - text_offset :].decode()
        if text:
            (self.reasoning if channel else self.texts).append(text)
            self.text_bytes += len(text) if text.isascii() else len(text.encode())
        self.token_ids += token_ids[held - token_offset * 4 :]
        if held == self.num_at_send * 4 < len(self.token_ids):
            self.age.serve(time.monotonic())
        if channel and len(self.token_ids) > held:  # with those before, which spelled the tag
            self.num_reasoning = len(self.token_ids) // 4
        return True

    def end(self, finish: Finish) -> None:
        """Set the one terminal event and tell the consumer."""
        if self.finish is None:
            finish.num_prompt_tokens = finish.num_prompt_tokens or self.num_prompt_tokens
            self.finish = finish
            self.mailbox.post(self)


class Demux:
    """The slots of one session. A new connection gets a new Demux: that is the fencing."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.next_slot = 1

    def add(self, choices: Iterable[Choice]) -> int:
        """Give `choices` consecutive new slots; return the first."""
        first = self.next_slot
        for choice in choices:
            choice.slot = self.next_slot
            self.choices[choice.slot] = choice
            self.next_slot += 1
        return first

    def remove(self, choice: Choice) -> bool:
        """Forget a choice; return whether it was live here. What still comes for it is dropped."""
        if self.choices.get(choice.slot) is not choice:
            return False
        del self.choices[choice.slot]
        return True

    def deliver(self, batch: TextBatch) -> list[Choice]:
        """Fan `batch` out to the mailboxes; return the choices that miss something.

        Those are forgotten here and wait for a replay. Raises ValueError on ragged columns.
        """
        choices = self.choices
        for started in batch.started:
            if (begun := choices.get(started.slot)) is not None:
                begun.num_moves += begun.begun_slot == started.slot
                begun.begun_slot = started.slot
                begun.num_prompt_tokens = started.num_prompt_tokens
                begun.model_hash = started.model_hash
                begun.prompt_ids = started.prompt_token_ids or begun.prompt_ids
        broken = self._deliver_columns(batch)
        for row in batch.logprobs:
            if (choice := choices.get(row.slot)) is not None:
                self._deliver_logprobs(choice, row)
        for told in batch.progress:
            if (choice := choices.get(told.slot)) is not None:
                choice.progress = told
                choice.mailbox.post(choice)
        for finish in batch.finishes:
            if (ended := choices.pop(finish.slot, None)) is not None:
                ended.end(finish)
        return broken

    def deliver_bulk(self, bulk: TextBulk) -> None:
        """Hand on what came beside the columns."""
        if (choice := self.choices.get(bulk.slot)) is not None:
            choice.bulks.append(bulk)
            choice.mailbox.post(choice)

    def _deliver_columns(self, batch: TextBatch) -> list[Choice]:
        choices, broken = self.choices, []
        token_ids, at = batch.token_ids, 0
        columns = (batch.slots, batch.text_offsets, batch.counts, batch.token_offsets)
        slots, offsets, counts, token_offsets = (unpack(c) for c in columns)
        channels = unpack(batch.channels) if batch.channels else repeat(0, len(slots))
        for slot, offset, text, count, token_offset, channel in zip(
            slots, offsets, batch.texts, counts, token_offsets, channels, strict=True
        ):
            end = at + 4 * count
            choice = choices.get(slot)
            if choice is not None:
                if choice.add(offset, text, token_offset, token_ids[at:end], channel):
                    choice.mailbox.post(choice)
                else:
                    del choices[slot]
                    broken.append(choice)
            at = end
        if at != len(token_ids):
            raise ValueError(f"{len(token_ids)} bytes of token ids, the counts say {at}")
        return broken

    def _deliver_logprobs(self, choice: Choice, row: TextLogprobs) -> None:
        """Keep a row unless a replay sends it a second time."""
        if row.index >= choice.next_logprob:
            choice.next_logprob = row.index + 1
            choice.logprobs.append(row)
            choice.mailbox.post(choice)


def joined(texts: list[str]) -> str:
    """Return `texts` as one and empty the list."""
    if len(texts) == 1:
        return texts.pop()
    text = "".join(texts)
    texts.clear()
    return text
