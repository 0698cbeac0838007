"""From the mailboxes of a session to the pieces of one request."""

from __future__ import annotations

from array import array
from collections.abc import Generator

from api_gateway.sessions import Choice
from millrace.client import Piece


class Taker:
    """Remembers how many token ids of each choice were taken, to return only new ones."""

    def __init__(self, choices: list[Choice]) -> None:
        self._choices = choices
        self._taken = dict.fromkeys((choice.number for choice in choices), 0)

    @property
    def num_open(self) -> int:
        """Choices whose end was not taken."""
        return len(self._taken)

    def take(self, news: list[Choice]) -> Generator[Piece, None, None]:
        """Yield one piece per choice with news.

        What comes for a choice while its turn is awaited is in its piece, and is news once more: an
        end that was taken is not told again.
        """
        prompt_ids = max(choice.prompt_ids for choice in self._choices)  # one of them has it
        for choice in news:
            if choice.number not in self._taken:
                continue
            held, begin = len(choice.token_ids), self._taken[choice.number]
            self._taken[choice.number] = held
            if choice.finish is not None:
                del self._taken[choice.number]
            yield Piece(
                choice=choice.number,
                text=choice.take_text(),
                reasoning=choice.take_reasoning(),
                token_ids=array("I", bytes(choice.token_ids[begin:held])),
                logprobs=choice.take_logprobs(),
                bulks=choice.take_bulks(),
                prompt_ids=prompt_ids,
                finish=choice.finish,
            )
