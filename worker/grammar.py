"""Grammars: what an output must match, compiled by llguidance to masks over the vocabulary.

A matcher's state is a function of the output ids alone: it is built again from them after a
preemption, and follows them however many come in a step. So is the verdict that it has met a limit:
copies of one matcher share its lexer and what counts there, so that a follower that meets one
begins again with a matcher of its own, and only what this one says is told. llguidance is imported
when the first grammar is asked for; a worker without it refuses such requests alone.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from protos import common_pb2
from worker.end_tag import EndTag
from worker.errors import GrammarLimit, RowError
from worker.kernels.checks import Ints
from worker.noise import Ids
from worker.sampling.candidates import Flags, column
from worker.tokenizer_json import verbatim

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

log = logging.getLogger(__name__)

MAX_COMPILED = 64
WHITESPACE = r"( |\n{1,2}[ \t]{0,20})"
"""Between the tokens of JSON, as llama.cpp bounds it: a model in doubt likes blanks best."""
MAX_LEXER_STATES = 50_000
"""At 1 to 2 kB each. All other limits are llguidance's own."""
WRONG_TOKEN = "doesn't satisfy the grammar"
"""llguidance's words for a token that its mask does not allow; its other errors are limits."""
DEAD_END = "NoExtensionBias"

Kind = common_pb2.Grammar.Kind


class Grammars:
    """Compiles grammars for one model folder and keeps the last ones. Thread-safe."""

    def __init__(self, tokenizer_json: Path, vocab_size: int) -> None:
        self._path = tokenizer_json
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[int, str], LLMatcher] = OrderedDict()
        self._executor = ThreadPoolExecutor(1, "grammar")

    def warm_up(self) -> None:
        """Read the tokenizer now: of a large one that takes a second, in which no thread runs.

        Where there is none, a request with a grammar will be told so.
        """
        try:
            self._open()
        except RowError as error:
            log.info("no grammars", extra={"reason": str(error)})

    def prepare(self, sampling: bytes) -> str:
        """Compile what these SamplingParams ask for; return why that is not possible, or ""."""
        try:
            self._matcher(common_pb2.SamplingParams.FromString(sampling).grammar)
        except RowError as error:
            return str(error)
        return ""

    def follow(self, grammar: common_pb2.Grammar, stop_token_ids: Ids) -> Follower:
        """Return a follower of an output that is still empty; raise RowError when it cannot be."""
        matcher = self._matcher(grammar)
        assert self._tokenizer is not None
        ends = np.array(self._tokenizer.eos_tokens, np.int64)
        stops = stop_token_ids if len(stop_token_ids) else ends[ends < self._vocab_size]
        vocabulary = _Vocabulary(self._vocab_size, ends, stops, self._tokenizer)
        own_ends = column(grammar.end_token_ids)
        own_ends = np.unique(own_ends[own_ends < self._vocab_size])

        def make_own() -> LLMatcher:
            with self._lock:  # others may have filled the one that is shared: no more of them
                self._compiled.pop(_key(grammar), None)
            return self._compile(grammar)

        return Follower(matcher, make_own, _Wait.of(grammar), vocabulary, own_ends, self._executor)

    def _matcher(self, grammar: common_pb2.Grammar) -> LLMatcher:
        key = _key(grammar)
        with self._lock:
            known = self._compiled.get(key)
        matcher = self._compile(grammar) if known is None else known  # no step waits for another's
        with self._lock:
            self._compiled[key] = matcher
            self._compiled.move_to_end(key)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _compile(self, grammar: common_pb2.Grammar) -> LLMatcher:
        tokenizer = self._open()
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, to_llguidance(grammar), log_level=0, limits=_limits())
        first = matcher.deep_copy()
        if not first.is_error():
            first.compute_bitmask()  # some limits are only met at the first token
        if first.is_error():
            raise RowError(f"the grammar cannot be compiled: {_why(first)}")
        return matcher

    def _open(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ModuleNotFoundError as error:
            raise RowError("grammars need the package llguidance, it is not installed") from error
        with self._opening:
            if self._tokenizer is None:
                self._tokenizer = _read(LLTokenizer, self._path, self._vocab_size)
            return self._tokenizer


def _key(grammar: common_pb2.Grammar) -> tuple[int, str]:
    return int(grammar.kind), grammar.text


def _read(make: Callable[..., LLTokenizer], path: Path, vocab_size: int) -> LLTokenizer:
    try:
        text = verbatim(path.read_text(encoding="utf-8"))
        try:
            return make(text, n_vocab=vocab_size)  # padded ids are never allowed
        except ValueError:  # it has more ids than the model, or it is none: that is said now
            return make(text)
    except Exception as error:
        raise RowError(f"grammars need {path}: {error}") from error


def _why(matcher: LLMatcher) -> str:
    """Return why it has failed."""
    error = matcher.get_error()
    dead_end = "a rule leads only to itself, or to text that no token spells"
    return dead_end if error.startswith(DEAD_END) else error


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def to_llguidance(grammar: common_pb2.Grammar) -> str:
    """Return the grammar in llguidance's words; raise RowError when it is not what it claims."""
    from llguidance import LLMatcher

    kind, text = grammar.kind, grammar.text
    if kind == Kind.LARK:
        return LLMatcher.grammar_from_lark(text)
    if kind == Kind.REGEX:
        return LLMatcher.grammar_from_regex(text)
    value = _json(text)
    if kind == Kind.CHOICE:
        if not isinstance(value, list) or not value or not all(isinstance(s, str) for s in value):
            raise RowError("a choice must be a list of strings, and not empty")
        words = (json.dumps(word).replace("\x7f", "\\u007f") for word in value)
        return LLMatcher.grammar_from_lark("start: " + " | ".join(words))
    if kind != Kind.JSON_SCHEMA or not isinstance(value, dict | bool):
        raise RowError("a JSON schema must be an object or a boolean")
    schema = msgspec.json.encode({"type": "object"} if value == {} else value).decode()
    if _wants_no_blanks(value):
        return LLMatcher.grammar_from_json_schema(schema)
    return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})


def _wants_no_blanks(schema: Any) -> bool:
    """Tell whether a schema forbids free white space: a pattern would allow it again."""
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    return isinstance(options, dict) and options.get("whitespace_flexible") is False


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowError(f"the grammar is not JSON: {error}") from error


class _Vocabulary:
    """Ids by their role in an output: `ends` belong to the tokenizer, `stops` to the request."""

    def __init__(self, size: int, ends: Ids, stops: Ids, tokenizer: LLTokenizer) -> None:
        self.size = size
        self.ends = ends[ends < size]
        self.stops = stops
        self.tokenizer = tokenizer

    def flags(self, bits: bytes) -> Flags:
        """Unpack one bit per id, as many as the model has."""
        packed = np.frombuffer(bits, np.uint8)
        flags = np.zeros(self.size, np.uint8)
        known = np.unpackbits(packed, bitorder="little")[: self.size]
        flags[: len(known)] = known
        return flags.view(bool)


class _Wait(NamedTuple):
    """When a grammar begins to act: behind the text of `after`, at once when there is none."""

    after: tuple[int, ...]
    opener: int | None
    """If told, it waits only for an output that begins with this id, and acts on all others."""

    @classmethod
    def of(cls, grammar: common_pb2.Grammar) -> _Wait:
        after = tuple(column(grammar.start_after).tolist())
        return cls(after, grammar.opener if grammar.HasField("opener") else None)


class Follower:
    """Where one output stands in its grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        make_own: Callable[[], LLMatcher],
        wait: _Wait,
        vocabulary: _Vocabulary,
        own_ends: Ids,
        executor: Executor,
    ) -> None:
        """`own_ends` of the model may be text to the grammar, and would cut it in the middle.

        `make_own` makes a matcher that shares nothing with others, as `matcher` may.
        """
        self._own_ends = own_ends
        self._executor = executor
        self._make_own = make_own
        self._wait = wait
        self._vocabulary = vocabulary
        self._end_tag = EndTag(vocabulary.tokenizer, wait.after)
        self._begin(matcher)
        self._ahead: tuple[int, Future[Ids | None]] | None = None

    def _begin(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_seen = 0
        self._has_started = not self._wait.after or self._wait.opener is not None
        self._has_ended = False

    def prefetch(self, output_ids: Ints) -> None:
        """Begin to compute, in a thread, what `allowed` will be asked for after these ids."""
        ids = output_ids.copy()
        self._ahead = (len(ids), self._executor.submit(self._allowed, ids))

    def allowed(self, output_ids: Ints) -> Ids | None:
        """Return the ids that may come next, rising; None while the grammar does not act yet.

        `output_ids` are those of the last call and any that have come since. When the grammar is
        complete only stop ids are left. Raises RowError when an id does not follow the grammar.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            known = ahead[1].result()
            if ahead[0] == len(output_ids):
                return known
        return self._allowed(output_ids)

    def _allowed(self, output_ids: Ints) -> Ids | None:
        try:
            return self._after(output_ids)
        except GrammarLimit:
            self._begin(self._make_own())
            return self._after(output_ids)

    def _after(self, output_ids: Ints) -> Ids | None:
        opener = self._wait.opener
        for place in range(self._num_seen, len(output_ids)):
            if place == 0 and opener is not None and output_ids[0] == opener:
                self._has_started = False
            elif self._has_started:
                self._consume(int(output_ids[place]))
            else:
                self._has_started = self._begins_behind(output_ids[: place + 1])
        self._num_seen = len(output_ids)
        if not self._has_started:
            return self._unspoilt(output_ids)
        if opener is not None and not self._num_seen:
            return np.union1d(self._next(), [opener])
        return self._next()

    def _begins_behind(self, output_ids: Ints) -> bool:
        """Whether the last id completes what the grammar waits for; what it holds behind it counts.

        So does `>{"`, which ends a tag and begins the answer.
        """
        begun = self._end_tag.begun(output_ids)
        for token_id in begun or ():
            self._consume(token_id)
        return begun is not None

    def _unspoilt(self, output_ids: Ints) -> Ids | None:
        """Return the ids that may come before the grammar acts; None = all.

        What would end the tag and begin an answer as none may begin is none of them: `><` of JSON.
        """
        endings = self._end_tag.endings(output_ids)
        wrong = [token_id for token_id, begun in endings if not self._may_begin(begun)]
        return np.setdiff1d(np.arange(self._vocabulary.size), wrong) if wrong else None

    def _may_begin(self, begun: Sequence[int]) -> bool:
        return bool(self._matcher.validate_tokens(list(begun)) == len(begun))

    def _consume(self, token_id: int) -> None:
        matcher, stops = self._matcher, self._vocabulary.stops
        if self._has_ended or (token_id in stops and matcher.is_accepting()):
            self._has_ended = True
        elif not matcher.consume_token(token_id):
            if WRONG_TOKEN not in matcher.get_error():
                self._check()  # a limit that is met looks as if the token were wrong
            raise RowError(f"token {token_id} does not follow the grammar")

    def _next(self) -> Ids:
        vocabulary, matcher = self._vocabulary, self._matcher
        if self._has_ended or matcher.is_stopped():
            self._check()
            return np.unique(vocabulary.stops)
        flags = vocabulary.flags(matcher.compute_bitmask())
        self._check()
        if np.count_nonzero(flags) == 1:
            self._spell(flags)
        flags[vocabulary.ends] = False
        if matcher.is_accepting():
            flags[vocabulary.stops] = True
        elif np.count_nonzero(flags) > np.count_nonzero(flags[self._own_ends]):  # or no way is left
            flags[self._own_ends] = False
        return np.flatnonzero(flags)

    def _spell(self, flags: Flags) -> None:
        """Put the begin of a special token's text in the place of the token, which is no text.

        Where text can only go on in one way, llguidance reads it as its tokenizer does, special
        tokens and all, and refuses the token when it comes.
        """
        matcher, tokenizer = self._matcher, self._vocabulary.tokenizer
        token_id = int(flags.argmax())
        if not matcher.validate_tokens([token_id]):
            text = matcher.compute_ff_bytes().decode(errors="ignore")
            if begin := tokenizer.greedy_tokenize(text)[:1]:
                flags[token_id] = False
                flags[begin] = True

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarLimit(f"the grammar failed: {_why(self._matcher)}")
