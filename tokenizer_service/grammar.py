"""The door for structured output: a grammar that cannot be compiled is refused with the reason.

Checks with llguidance, the engine that the workers compile with, in a sandbox: a grammar of deep
rules overflows its stack. The sandbox's stack is a quarter of a worker's, so what passes here does
no harm there. EBNF becomes Lark on the way: the conversion is plain Python, of seconds for the
largest, and a worker that made it would stand still meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import orjson

from common.errors import InvalidRequest, ServiceError, Unprocessable
from protos.common_pb2 import Grammar
from protos.limits import MAX_CHOICES, MAX_GRAMMAR_CHARS
from tokenizer_service.ebnf import plain_ebnf
from tokenizer_service.sandbox import Answer, Overrun, Sandbox, serve
from tokenizer_service.turns import NOBODY, Asker

TIMEOUT_S = 2.0
KEPT = 64
"""Grammars that passed, each of 64 KiB at most: their next requests wait for nobody's check."""
REFUSED_KEPT, REFUSED_S = 256, 60.0
"""Refusals, and for how long: they cost as much to find again. A verdict of time may be wrong of a
busy machine, so none is for ever."""
MOST_WAITING = 128
"""Checks of one tenant that wait."""
STACK_BYTES = 2 * 2**20
EBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
"""A rule as llama.cpp and vLLM write it (`root ::= …`)."""
NAMED_TOKEN = re.compile(r"<[^<>\s\"]+>")
"""As Lark names a special token, or as any other text of a grammar looks."""
CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
"""What these mean here; llguidance reads \\d and \\w of a schema's `pattern` so by itself."""
READ_AS = b"\0"
"""Begins an answer that is no complaint: the text as the workers are to read it."""

Refusal = tuple[type[ServiceError], str, str]
"""What to raise, why, and its code."""


class GrammarDoor:
    """Checks grammars one after the other, and each but once while it is in use.

    Tenants take turns, so that nobody waits for another's heavy ones.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._sandbox = Sandbox(__name__, b"", timeout_s, MOST_WAITING)
        self._passed: OrderedDict[tuple[int, str], str] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, Refusal]] = OrderedDict()

    async def check(self, grammar: Grammar, asker: Asker = NOBODY) -> str:
        """Return the text as the workers read it: of EBNF, Lark; of a regex, classes of ASCII.

        Raises InvalidRequest that says why, Unprocessable when the check takes too much, or
        Overloaded when too many of the asker's wait already.
        """
        param = param_of(grammar)
        if len(grammar.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"{param} has {len(grammar.text)} characters, at most {MAX_GRAMMAR_CHARS} are "
                "allowed",
                param=param,
            )
        key = (grammar.kind, grammar.text)
        if key in self._passed:
            self._passed.move_to_end(key)
            return self._passed[key]
        message = grammar.SerializeToString()
        digest = hashlib.sha256(message).digest()
        refusal = self._known_refusal(digest)
        if refusal is None:
            try:
                answer = await self._sandbox.ask(message, asker)
            except Overrun as overrun:
                refusal = Unprocessable, f"the check {overrun}", "grammar_limit"
            else:
                if not answer or answer.startswith(READ_AS):
                    text = self._passed[key] = answer[1:].decode() or grammar.text
                    trim(self._passed, KEPT)
                    return text
                refusal = InvalidRequest, answer.decode(), "invalid_grammar"
            now_s = asyncio.get_running_loop().time()
            self._refused[digest] = now_s + REFUSED_S, refusal
            trim(self._refused, REFUSED_KEPT)
        error, why, code = refusal
        raise error(f"{param}: {why}", param=param, code=code)

    def _known_refusal(self, digest: bytes) -> Refusal | None:
        until_s, refusal = self._refused.get(digest, (0.0, None))
        if refusal is not None and until_s < asyncio.get_running_loop().time():
            del self._refused[digest]
            return None
        return refusal

    async def close(self) -> None:
        """End the child; checks that wait are cancelled."""
        await self._sandbox.close()


def trim(kept: OrderedDict[Any, Any], size: int) -> None:
    """Leave the last `size` of them."""
    while len(kept) > size:
        kept.popitem(last=False)


def param_of(grammar: Grammar) -> str:
    """Return the field that clients write this kind of grammar in."""
    return "response_format" if grammar.kind == Grammar.JSON_SCHEMA else "structured_outputs"


def fault(grammar: Grammar) -> str:
    """Return why this is no grammar, empty when it is one; blocks."""
    if grammar.kind == Grammar.CHOICE:
        return choice_fault(grammar.text)
    try:
        from llguidance import LLMatcher
    except ImportError:
        return "structured output needs the package llguidance, which is not installed here"
    if grammar.kind == Grammar.JSON_SCHEMA:
        if why := schema_fault(grammar.text):
            return why
        compiled = LLMatcher.grammar_from_json_schema(grammar.text)
    elif grammar.kind == Grammar.REGEX:
        compiled = LLMatcher.grammar_from_regex(grammar.text)
    elif grammar.kind == Grammar.LARK:
        compiled = LLMatcher.grammar_from_lark(grammar.text)
    else:
        return f"grammar kind {grammar.kind} is not known"
    why = str(LLMatcher.validate_grammar(compiled) or "").strip()
    if not why:
        LLMatcher(bytes_and(NAMED_TOKEN.findall(grammar.text)), compiled, log_level=0)
    return why


def bytes_and(names: Iterable[str]) -> Any:
    """Return a vocabulary of the bytes and of tokens so named, which a grammar may ask for.

    With it a matcher can be made as the workers make theirs, which is where a `multipleOf` of six
    digits takes minutes, and nobody could stop it there.
    """
    from llguidance import LLTokenizer
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name) for name in set(names)])
    return LLTokenizer(tokenizer.to_str())


def schema_fault(text: str) -> str:
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"the schema is not valid JSON: {error}"
    return "" if isinstance(schema, dict | bool) else "a schema must be an object"


def choice_fault(text: str) -> str:
    try:
        choices: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"choice is not valid JSON: {error}"
    if not isinstance(choices, list) or not all(isinstance(c, str) and c for c in choices):
        return "choice must be a list of strings that are not empty"
    if not 1 <= len(choices) <= MAX_CHOICES:
        return f"choice has {len(choices)} strings, 1 to {MAX_CHOICES} are allowed"
    return ""


# ── the child ────────────────────────────────────────────────────────────────────────────────


def prepare(setup: bytes) -> Answer:
    """Load the library while memory is not limited yet, and return what answers."""
    fault(Grammar(kind=Grammar.REGEX, text="a"))
    threading.stack_size(STACK_BYTES)
    return answer


def answer(message: bytes) -> bytes:
    """Return why the grammar in `message` is none; empty, or how to read it, when it is one."""
    said: list[bytes] = []
    checking = threading.Thread(target=lambda: said.append(judged(Grammar.FromString(message))))
    checking.start()
    checking.join()
    return said[0] if said else b"llguidance fails on it"


def judged(grammar: Grammar) -> bytes:
    given = grammar.text
    try:
        grammar.text = read_as(grammar)
    except Exception as error:  # gbnf_to_lark raises plain ones, and RecursionError
        return str(error).encode(errors="replace")
    why = fault(grammar).encode(errors="replace")
    return why if why or grammar.text == given else READ_AS + grammar.text.encode()


def read_as(grammar: Grammar) -> str:
    """Return the text in the words of the workers."""
    if grammar.kind == Grammar.REGEX:
        return ascii_classes(grammar.text)
    if grammar.kind == Grammar.LARK and EBNF.search(grammar.text):
        from tokenizer_service.lexemes import lark_of

        return lark_of(plain_ebnf(grammar.text))
    return grammar.text


def ascii_classes(regex: str) -> str:
    r"""Return `regex` with \d, \w, \s and their opposites spelled out.

    To llguidance they are Unicode's, and a model in an Arabic talk would write Arabic digits.
    """

    def spelled(escape: re.Match[str]) -> str:
        letter = escape[1]
        members = CLASSES.get(letter.lower())
        return escape[0] if members is None else f"[{'^' if letter.isupper() else ''}{members}]"

    return re.sub(r"\\(.)", spelled, regex, flags=re.DOTALL)


if __name__ == "__main__":
    serve(prepare)
