"""From a request to its place in an engine: prompt ids, limits, ids of words, begin of its text.

Raises what refuses a request. Ends nothing by itself but a replayed choice that had ended already.
"""

from __future__ import annotations

from collections.abc import Callable

from protos.columns import pack, unpack
from protos.common_pb2 import LENGTH, STOPPED, Finish
from protos.tokenizer_pb2 import Started
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.placement import EngineSeats
from tokenizer_service.reasoning import Place, SplitStream
from tokenizer_service.step_text import StepText
from tokenizer_service.stop_strings import StopStrings
from tokenizer_service.text_model import TextModel
from tokenizer_service.ticket import Choice, Ticket

End = Callable[[StepText, Choice, Finish], None]


class Opening:
    """Opens the requests of one model."""

    def __init__(
        self,
        model: TextModel,
        metrics: TokenizerMetrics,
        seats: EngineSeats,
        engine_wait_s: float,
        replay_timeout_s: float,
        end: End,
    ) -> None:
        """A new request waits `engine_wait_s` for an engine, a replayed one `replay_timeout_s`."""
        self._model = model
        self._metrics = metrics
        self._seats = seats
        self._engine_wait_s = engine_wait_s
        self._replay_timeout_s = replay_timeout_s
        self._end = end

    async def open(self, ticket: Ticket) -> None:
        """Start a ticket's choices in an engine; raise ServiceError when it cannot run."""
        model, request = self._model, ticket.request
        model.completion.check(request)
        prompt = await model.prompts.build(request)
        place = model.thoughts_place(request, prompt)
        sampling = await model.resolution.sampling(request, place)
        ticket.prompt = prompt.token_ids
        # A replay's client may have text already: it waits as one whose engine alone was lost.
        wait_s = self._replay_timeout_s if request.attempt else self._engine_wait_s
        seat = await self._seats.ready(wait_s, model_hash=ticket.begun_by)
        state = seat.link.state
        assert state is not None  # it is ready
        ticket.limits = model.completion.limits(
            request, ticket.num_prompt_tokens, state.max_model_len
        )
        ticket.sampling = model.completion.sampling(sampling)
        self._metrics.prompt_tokens.inc(ticket.num_prompt_tokens)
        ticket.model_hash = seat.model_hash
        self._begin_text(ticket, place)
        choices = [choice for choice in ticket.choices if choice.is_open]
        if choices:
            seat.start(ticket, choices, ticket.remaining_ms())

    def tell(self, choice: Choice) -> None:
        """Tell the gateway where a choice is under way again: perhaps with other weights."""
        step = StepText()
        step.of(choice.ticket.session).started.append(started(choice))
        step.deliver()

    def _begin_text(self, ticket: Ticket, place: Place | None) -> None:
        """Tell the gateway that its choices are under way, and bring replayed ones to their place.

        A replayed choice may turn out to have ended already: then its Finish was lost, not it.
        """
        request, step = ticket.request, StepText()
        stops = StopStrings(request.text.stop, request.text.include_stop)
        first = next((choice for choice in ticket.choices if choice.is_open), None)
        for position, choice in enumerate(ticket.choices):
            resumed = request.resumed[position] if position < len(request.resumed) else None
            resume_bytes = resumed.text_bytes if resumed is not None else 0
            if place is None:
                choice.stream = self._model.stream(request, stops, ticket.prompt, resume_bytes)
            else:
                choice.stream = self._model.stream(request, stops, ticket.prompt, 0)
                choice.split = SplitStream(choice.stream, place, resume_bytes)
            if not choice.is_open:
                continue
            text = step.of(choice.ticket.session)
            begin = started(choice)
            if request.text.return_prompt_ids and choice is first:
                begin.prompt_token_ids = pack(ticket.prompt)
            text.started.append(begin)
            if resumed is not None and resumed.token_ids:
                self._resume(step, choice, resumed.token_ids)
        step.deliver()

    def _resume(self, step: StepText, choice: Choice, token_ids: bytes) -> None:
        """Decode again what the gateway holds; send only text that it does not have."""
        assert choice.stream is not None
        held, text = unpack(token_ids), step.of(choice.ticket.session)
        choice.token_ids.extend(held)
        if choice.split is not None:
            segments = choice.split.push(held)
            finish = self._known_end(choice)
            segments += choice.split.flush() if finish is not None else []
            for segment in segments:
                segment.num_tokens = 0
            fresh = [segment for segment in segments if segment.text]
            text.add_segments(choice.slot, fresh, len(held), ())
        else:
            offset, fresh_text = choice.stream.text_bytes, choice.stream.push(held)
            finish = self._known_end(choice)
            fresh_text += choice.stream.flush() if finish is not None else ""
            if fresh_text:
                text.add(choice.slot, offset, fresh_text, len(held), ())
        if finish is not None:
            self._end(step, choice, finish)

    def _known_end(self, choice: Choice) -> Finish | None:
        """Return the Finish of a resumed choice whose tokens already are all there is."""
        ticket, stream = choice.ticket, choice.stream
        assert stream is not None and ticket.limits is not None
        num_tokens = len(choice.token_ids)
        if stream.matched is not None:
            return Finish(
                reason=STOPPED, num_output_tokens=stream.num_tokens, stop_string=stream.matched
            )
        last = choice.token_ids[-1]
        is_enough = num_tokens > ticket.limits.min_tokens or ticket.limits.has_grammar
        if is_enough and last in self._model.completion.stop_token_ids(ticket.request):
            shown = self._model.completion.shown_stop_id(ticket.request, last)
            return Finish(reason=STOPPED, num_output_tokens=num_tokens, stop_token_id=shown)
        if num_tokens >= ticket.limits.max_tokens:
            return Finish(reason=LENGTH, num_output_tokens=num_tokens)
        return None


def started(choice: Choice) -> Started:
    """Return what the gateway keeps of a choice that an engine gets."""
    ticket = choice.ticket
    return Started(
        slot=choice.slot,
        num_prompt_tokens=ticket.num_prompt_tokens,
        model_hash=ticket.model_hash,
    )
