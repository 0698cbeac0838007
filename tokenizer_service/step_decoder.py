"""One engine step → the text of every session it concerns. The hot path of this tier.

Applies tokens, then stop strings, then the engine's ends. What the pipeline must do about a
choice (end it, send it again) it is told through two callables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from protos.columns import unpack
from protos.common_pb2 import ERROR, LENGTH, STOPPED, Finish, PromptProgress
from protos.engine_pb2 import TokenBatch, TokenLogprobs
from protos.words import REPLICA_LEFT, REPLICA_LOST
from tokenizer_service.bulks import BulkText
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.placement import EngineSeat
from tokenizer_service.step_text import SessionText, StepText
from tokenizer_service.text_model import TextModel
from tokenizer_service.ticket import Choice

End = Callable[[StepText, Choice, Finish], None]
Replay = Callable[[StepText, EngineSeat, Choice, bool], None]


class StepDecoder:
    """Reads TokenBatches of any engine."""

    def __init__(
        self,
        model: TextModel,
        metrics: TokenizerMetrics,
        bulks: BulkText,
        end: End,
        replay: Replay,
    ) -> None:
        self._model = model
        self._bulks = bulks
        self._metrics = metrics
        self._end = end
        self._replay = replay

    def decode(self, seat: EngineSeat, batch: TokenBatch) -> None:
        """Hand each session the TextBatch of this step."""
        started = time.perf_counter()
        step = StepText()
        slots, token_ids = unpack(batch.slots), unpack(batch.token_ids)
        offsets, counts = unpack(batch.token_offsets), unpack(batch.counts) or [1] * len(slots)
        live, at = seat.live, 0
        known = {row.slot: self._num_tokens(live.get(row.slot)) for row in batch.logprobs}
        for told in batch.progress:
            self._add_progress(step, live.get(told.slot), told)
        for slot, offset, count in zip(slots, offsets, counts, strict=True):
            choice = live.get(slot)
            if choice is not None and choice.is_open:
                self._advance(step, choice, offset, token_ids[at : at + count])
            at += count
        for row in batch.logprobs:
            self._add_logprobs(step, live.get(row.slot), row, known[row.slot])
        for finish in batch.finishes:
            choice = live.get(finish.slot)
            if choice is not None:
                self._finish(step, seat, choice, finish)
        step.deliver()
        self._metrics.output_tokens.inc(step.num_tokens)
        self._metrics.detokenize_seconds.inc(time.perf_counter() - started)

    @staticmethod
    def _num_tokens(choice: Choice | None) -> int | None:
        """Return how many tokens an open choice holds."""
        return len(choice.token_ids) if choice is not None and choice.is_open else None

    def _advance(
        self, step: StepText, choice: Choice, offset: int, token_ids: Sequence[int]
    ) -> None:
        """Take new tokens: what is already held is dropped, a gap asks for replay."""
        stream, num_held = choice.stream, len(choice.token_ids)
        assert stream is not None and choice.seat is not None
        if offset != num_held:
            if offset > num_held:
                choice.seat.link.abort(choice.engine_slot)
                self._replay(step, choice.seat, choice, True)
                return
            token_ids = token_ids[num_held - offset :]
            if not token_ids:
                return
        split, text_offset = choice.split, stream.text_bytes
        if split is None:
            new = stream.push(token_ids)
        else:
            segments = split.push(token_ids)
        if stream.matched is not None:
            token_ids = token_ids[: stream.num_tokens - num_held]
        choice.token_ids.extend(token_ids)
        step.num_tokens += len(token_ids)
        choice.replay_until_s = None
        if num_held == choice.num_at_start:
            choice.age.serve(time.monotonic())
        text = step.of(choice.ticket.session)
        if split is None:
            text.add(choice.slot, text_offset, new, num_held, token_ids)
        else:
            text.add_segments(choice.slot, segments, num_held, token_ids)
        if stream.matched is not None:
            self._stop(step, choice, stream.matched)

    def _stop(self, step: StepText, choice: Choice, stop: str) -> None:
        """End a choice on a stop string; it stays in its seat until the engine's own end."""
        assert choice.seat is not None
        num_tokens = len(choice.token_ids)
        choice.seat.link.stop(choice.engine_slot, num_tokens)
        finish = Finish(reason=STOPPED, num_output_tokens=num_tokens, stop_string=stop)
        self._end(step, choice, finish)

    def _add_logprobs(
        self, step: StepText, choice: Choice | None, row: TokenLogprobs, num_held: int | None
    ) -> None:
        """Show a row as text, if its token was taken in this step."""
        if choice is None or num_held is None:
            return
        if not num_held <= row.index < len(choice.token_ids):
            return
        shown = self._bulks.logprobs(choice.slot, row)
        keeps = choice.ticket.request.text.keep_special_tokens
        shown.is_hidden = not keeps and self._model.is_special(row.token_ids[0])
        step.of(choice.ticket.session).logprobs.append(shown)

    @staticmethod
    def _add_progress(step: StepText, choice: Choice | None, told: PromptProgress) -> None:
        """Keep the last word, which comes with the first token; show all to who asked for them."""
        if choice is None or not choice.is_open:
            return
        if told.HasField("timings"):
            choice.begun = told
        if not choice.ticket.request.limits.report_progress:
            return
        shown = PromptProgress()
        shown.CopyFrom(told)
        shown.slot = choice.slot
        step.of(choice.ticket.session).progress.append(shown)

    def _finish(self, step: StepText, seat: EngineSeat, choice: Choice, finish: Finish) -> None:
        """Pass the engine's end on, after the text that was held back; or replay a lost choice."""
        if not choice.is_open:
            del seat.live[finish.slot]
            return
        assert choice.stream is not None
        num_tokens = len(choice.token_ids)
        crashed = is_lost(finish) or is_short(finish, num_tokens)
        has_waited = finish.reason == ERROR and finish.error.code == REPLICA_LEFT
        if crashed or has_waited or was_refused_again(choice, finish):
            self._replay(step, seat, choice, crashed)
            return
        del seat.live[finish.slot]
        self._flush(step.of(choice.ticket.session), choice, num_tokens)
        self._end(step, choice, self._shown(choice, finish))

    @staticmethod
    def _flush(text: SessionText, choice: Choice, num_tokens: int) -> None:
        """Add what was held back."""
        assert choice.stream is not None
        if choice.split is not None:
            text.add_segments(choice.slot, choice.split.flush(), num_tokens, ())
            return
        text_offset = choice.stream.text_bytes
        if held := choice.stream.flush():
            text.append(choice.slot, text_offset, held, num_tokens)

    def _shown(self, choice: Choice, finish: Finish) -> Finish:
        """Return the engine's Finish as the gateway gets it."""
        shown = Finish()
        shown.CopyFrom(finish)
        shown.num_output_tokens = len(choice.token_ids)
        if choice.attempt:  # this engine saw a part of the decoding; who counts it all is above
            shown.timings.ClearField("decode_s")
        if finish.HasField("stop_token_id"):
            completion, request = self._model.completion, choice.ticket.request
            if completion.shown_stop_id(request, finish.stop_token_id) is None:
                shown.ClearField("stop_token_id")
        return shown


def is_lost(finish: Finish) -> bool:
    """Whether the engine's replica died under the choice."""
    return finish.reason == ERROR and finish.error.code == REPLICA_LOST


def is_short(finish: Finish, num_tokens: int) -> bool:
    """Whether tokens of a good end never came: a gap."""
    return finish.reason in (STOPPED, LENGTH) and finish.num_output_tokens > num_tokens


def was_refused_again(choice: Choice, finish: Finish) -> bool:
    """Whether a choice under replay met an engine that is not up yet."""
    return choice.replay_until_s is not None and finish.error.kind == "Unavailable"
