"""Words of a request → the token ids that samplers work on, and the grammar's own begin.

`bad_words` as vLLM resolves them, breaker strings of DRY as llama.cpp does. Encodes in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from common.errors import InvalidRequest
from protos.columns import pack, unpack
from protos.common_pb2 import Grammar, SamplingParams
from protos.tokenizer_pb2 import TextRequest
from tokenizer_service.breakers import Breakers
from tokenizer_service.grammar import GrammarDoor
from tokenizer_service.reasoning import CLOSE, INSIDE, OPEN, Place
from tokenizer_service.tokenizer import Tokenizer
from tokenizer_service.turns import asker_of

MAX_BREAKER_BYTES = 256 * 1024
"""Of all breakers of a request; llama.cpp's four take 18 kB in Qwen2's vocabulary."""


class Resolution:
    """Resolves the words of one model's requests."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        executor: Executor,
        door: GrammarDoor,
        vocab_size: int = 0,
    ) -> None:
        """`vocab_size`: that of the model; 0 = unknown."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._executor = executor
        self._door = door
        self._breakers: Breakers | None = None
        self._heads: bytes | None = None

    async def sampling(self, request: TextRequest, place: Place | None) -> SamplingParams:
        """Return the request's SamplingParams with all ids.

        `place` is where its text begins, None when thoughts are not parted. Raises InvalidRequest.
        """
        text = request.text
        has_budget = text.HasField("thinking_token_budget")
        if not (text.bad_words or text.dry_breakers or text.grammar.kind or has_budget):
            return request.sampling
        found = SamplingParams()
        found.CopyFrom(request.sampling)
        if text.grammar.kind != Grammar.NONE:
            found.grammar.CopyFrom(text.grammar)
            found.grammar.text = await self._door.check(text.grammar, asker_of(request))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._encode, request, found, place)
        return found

    def _encode(self, request: TextRequest, found: SamplingParams, place: Place | None) -> None:
        tokenizer = self._tokenizer
        text = request.text
        if tokenizer is None:
            field = "bad_words" if text.bad_words else "dry_sequence_breakers"
            if text.bad_words or text.dry_breakers:
                raise InvalidRequest(f"{field} need a tokenizer: the folder has none", param=field)
            return
        for word in text.bad_words:
            found.bad_words.extend(filter(self._can_be_drawn, bad_word_ids(tokenizer, word)))
        if text.dry_breakers:
            found.dry.breakers[:] = self._breaker_columns(tokenizer, text.dry_breakers)
        if place is not Place.START and place not in INSIDE:
            return
        end = behind_a_line(tokenizer, CLOSE)
        opener = tokenizer.id_of(OPEN) if place is Place.START else None
        # At the start it may answer without a thought. Where no token says which, it is to do so.
        if text.grammar.kind != Grammar.NONE and (place is not Place.START or opener is not None):
            found.grammar.start_after = end
            if opener is not None:
                found.grammar.opener = opener
        if text.HasField("thinking_token_budget"):
            found.thinking.max_tokens, found.thinking.end = text.thinking_token_budget, end
            found.thinking.end_heads = self._end_heads(tokenizer, end)
            if place is Place.START:
                found.thinking.begin = behind_a_line(tokenizer, OPEN)

    def _end_heads(self, tokenizer: Tokenizer, end: bytes) -> bytes:
        """Return the column of the tokens that end as a spelled end tag begins; the same always."""
        first, *others = unpack(end)
        if others and self._heads is None:
            begin = tokenizer.piece(first).lstrip()
            pieces = enumerate(tokenizer.pieces())
            self._heads = pack([token_id for token_id, text in pieces if text.endswith(begin)])
        return self._heads or b""

    def _can_be_drawn(self, column: bytes) -> bool:
        """Whether the model has all these tokens: a tokenizer may have more."""
        return not self._vocab_size or max(unpack(column), default=0) < self._vocab_size

    def _breaker_columns(self, tokenizer: Tokenizer, breakers: Sequence[str]) -> list[bytes]:
        if self._breakers is None:
            self._breakers = Breakers(tokenizer)
        found: set[bytes] = set()
        for breaker in breakers:
            found |= self._breakers.columns(breaker)
            if sum(map(len, found)) > MAX_BREAKER_BYTES:
                raise InvalidRequest(
                    f"dry_sequence_breakers stand in too many ways in tokens, with {breaker!r:.70} "
                    f"in more than {MAX_BREAKER_BYTES // 4} ids; give fewer or shorter ones",
                    param="dry_sequence_breakers",
                )
        return sorted(found)


def behind_a_line(tokenizer: Tokenizer, tag: str) -> bytes:
    """Return the column of a tag as models write it: not as the first words of a text.

    SentencePiece puts a blank before those; a budget would wait for thoughts that begin so.
    """
    line, whole = (tokenizer.encode(text, add_special_tokens=False) for text in ("\n", f"\n{tag}"))
    is_apart = whole.startswith(line)
    return whole[len(line) :] if is_apart else tokenizer.encode(tag, add_special_tokens=False)


def bad_word_ids(tokenizer: Tokenizer, word: str) -> list[bytes]:
    """Return the columns of a word: at the begin of a text, and in the middle after a space.

    The second only when it is one token for another, as in vLLM's `update_from_tokenizer`.
    """
    bare = word.lstrip()
    if not bare:
        raise InvalidRequest(f"bad_words has {word!r}, which no text is left of", param="bad_words")
    first = tokenizer.encode(bare, add_special_tokens=False)
    spaced = tokenizer.encode(f" {bare}", add_special_tokens=False)
    if not (first and spaced):
        raise InvalidRequest(f"bad_words has {word!r:.70}, which has no token", param="bad_words")
    is_new = len(spaced) == len(first) and unpack(spaced)[0] != unpack(first)[0]
    return [first, spaced] if is_new else [first]
