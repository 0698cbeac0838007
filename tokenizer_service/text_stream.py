"""One choice's tokens → the text a client may see: decoding, stop ids, stop strings, offsets.

Knows neither slots nor engines.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizer_service.detokenizer import Detokenizer
from tokenizer_service.stop_strings import StopScan, StopStrings


class TextStream:
    """Text grows only at its end; `text_bytes` is what has been returned so far, in UTF-8."""

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_scan",
        "_silent_ids",
        "_skip_bytes",
        "num_tokens",
        "text_bytes",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStrings,
        stop_token_ids: frozenset[int],
        min_tokens: int = 0,
        resume_bytes: int = 0,
    ) -> None:
        """`resume_bytes`: text before this offset is never returned again."""
        self._detokenizer = detokenizer
        self._scan = StopScan(stops) if stops.first_chars else None
        self._silent_ids = frozenset() if stops.include else stop_token_ids
        self._min_tokens = min_tokens
        self._skip_bytes = resume_bytes
        self.num_tokens = 0
        self.text_bytes = resume_bytes

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._scan.matched if self._scan is not None else None

    @property
    def held(self) -> bool:
        """Whether settled characters wait because they may become a stop string."""
        return self._scan is not None and bool(self._scan.held)

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text these tokens settle; tokens after a stop string are not taken."""
        if len(token_ids) == 1:
            return self._returned(self._settle(token_ids[0]))
        texts: list[str] = []
        for token_id in token_ids:
            texts.append(self._settle(token_id))
            if self.matched is not None:
                break
        return self._returned("".join(texts))

    def _settle(self, token_id: int) -> str:
        self.num_tokens += 1
        if token_id in self._silent_ids:
            return ""
        text = self._detokenizer.step(token_id)
        if self._scan is None or not text:
            return text
        return self._scan.feed(text, self.num_tokens > self._min_tokens)

    def flush(self) -> str:
        """Return what was held back, at the end of the stream; empty after a stop string."""
        if self.matched is not None:
            return ""
        held = self._scan.held if self._scan is not None else ""
        return self._returned(held + self._detokenizer.flush())

    def _returned(self, text: str) -> str:
        if self._skip_bytes and text:
            text, self._skip_bytes = without(text, self._skip_bytes)
        self.text_bytes += utf8_length(text)
        return text


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def without(text: str, num_bytes: int) -> tuple[str, int]:
    """Return `text` without so many first bytes, and how many of these it did not have."""
    raw = text.encode()
    return raw[num_bytes:].decode("utf-8", "replace"), max(0, num_bytes - len(raw))
