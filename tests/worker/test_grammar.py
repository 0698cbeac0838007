"""Grammars: every output parses, a state is a function of the tokens, errors say what was wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken

from api_gateway.parsers.call_grammar import spaced
from protos import common_pb2
from protos import worker as wire
from tests.support.tiny_tokenizer import tiny_library
from tests.worker.plans import columns, generate, sampling, start
from worker.build import LoadedModel, load_model
from worker.errors import GrammarLimit, RowError
from worker.grammar import MAX_COMPILED, Grammars
from worker.rows import Row
from worker.sampler import Sampler

VOCAB_SIZE = 320
"""More than the tokenizer has, as embeddings are padded."""
DEMO = Path(__file__).resolve().parents[2] / "millrace" / "demo_model"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blü"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LIBRARY = tiny_library()
STOP: int = LIBRARY.token_to_id("<|im_end|>")
THOUGHT: int = LIBRARY.token_to_id("</think>")


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    LIBRARY.save(str(path))
    return Grammars(path, VOCAB_SIZE)


def grammar(
    kind: str, text: Any, start_after: Sequence[int] = (), opener: int | None = None
) -> common_pb2.Grammar:
    return common_pb2.Grammar(
        kind=common_pb2.Grammar.Kind.Value(kind),
        text=text if isinstance(text, str) else json.dumps(text),
        start_after=columns(start_after),
        opener=opener,
    )


def constrained(
    grammars: Grammars, rule: common_pb2.Grammar, output: Sequence[int] = (), **fields: Any
) -> Row:
    """Return a row of one prompt token and this output so far."""
    params = sampling(**{"temperature": 2.0} | fields, grammar=rule)
    begin = start(
        1, [1, *output], (), sampling=params, num_prompt_tokens=1, stop_token_ids=(STOP,)
    )  # fmt: skip
    return Row(begin, VOCAB_SIZE, grammars)


def logits_at(index: int, seed: int) -> Any:
    """Return what a model that knows nothing might say."""
    return np.random.default_rng([seed, index]).standard_normal((1, VOCAB_SIZE)).astype(np.float32)


def run(row: Row, seed: int, limit: int = 400) -> list[int]:
    """Draw until the stop id and return the output before it."""
    sampler = Sampler(VOCAB_SIZE)
    while row.num_output_tokens < limit:
        drawn = sampler.sample(logits_at(row.num_output_tokens, seed), [row])[0]
        assert drawn.error is None
        if drawn.token_id == STOP:
            return row.history.output_ids.tolist()
        row.append(drawn.token_id)
    raise AssertionError("the grammar let the output run on")


def text_of(token_ids: Sequence[int]) -> str:
    return LIBRARY.decode(token_ids)


@pytest.mark.parametrize("seed", range(12))
def test_an_output_is_valid_whatever_the_model_says(grammars: Grammars, seed: int) -> None:
    row = constrained(grammars, grammar("JSON_SCHEMA", SCHEMA), seed=seed)
    jsonschema.validate(json.loads(text_of(run(row, seed))), SCHEMA)


CASES: list[tuple[str, Any, str]] = [
    ("REGEX", r"[a-c]{2,5}-[0-9]{3}", r"[a-c]{2,5}-[0-9]{3}"),
    ("LARK", 'start: "x" num ("," num)*\nnum: /[0-9]{1,2}/', r"x[0-9]{1,2}(,[0-9]{1,2})*"),
    ("CHOICE", ["yes", 'a "quoted"\n\\ one', "\x7f你|好"], r"yes|a \"quoted\"\n\\ one|\x7f你\|好"),
]


@pytest.mark.parametrize(("kind", "text", "pattern"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_other_kinds_match(
    grammars: Grammars, kind: str, text: Any, pattern: str, seed: int
) -> None:
    got = text_of(run(constrained(grammars, grammar(kind, text), seed=seed), seed))
    assert re.fullmatch(pattern, got), got


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_that_wants_no_free_blanks_gets_none(grammars: Grammars, seed: int) -> None:
    """What bounds white space elsewhere allowed it here."""
    schema = spaced({"type": "array", "items": {"const": {"a": 1}}, "minItems": 2, "maxItems": 4})
    got = text_of(run(constrained(grammars, grammar("JSON_SCHEMA", schema), seed=seed), seed))
    assert got == json.dumps(json.loads(got))


def test_an_empty_schema_is_any_object(grammars: Grammars) -> None:
    follower = constrained(grammars, grammar("JSON_SCHEMA", "{}")).draw.grammar
    assert follower is not None
    allowed = follower.allowed(np.zeros(0, np.int32))
    assert allowed is not None
    assert ord("{") in allowed and not set(allowed) & set(map(ord, '["0tnf'))


def test_padded_ids_and_special_tokens_are_never_allowed(grammars: Grammars) -> None:
    follower = constrained(grammars, grammar("REGEX", "(?s:.*)")).draw.grammar
    assert follower is not None
    allowed = follower.allowed(np.zeros(0, np.int32))
    assert allowed is not None and STOP in allowed
    size = LIBRARY.get_vocab_size()
    others = [LIBRARY.token_to_id(t) for t in ("<|endoftext|>", "<|im_start|>")]
    assert allowed.max() < size and not set(others) & set(allowed.tolist())


@pytest.mark.parametrize("word", ["<|im_end|>", "a<|im_start|>b", "<|endoftext|><|im_end|>"])
@pytest.mark.parametrize("kind", ["CHOICE", "JSON_SCHEMA"])
def test_the_text_of_a_special_token_is_spelled(grammars: Grammars, kind: str, word: str) -> None:
    """llguidance would name the token: an end without the text, or one that it then refuses."""
    rule = grammar(kind, [word] if kind == "CHOICE" else {"const": word})
    got = text_of(run(constrained(grammars, rule), 1))
    assert got == (word if kind == "CHOICE" else json.dumps(word))


def test_a_special_token_that_a_grammar_names_is_a_token(grammars: Grammars) -> None:
    row = constrained(grammars, grammar("LARK", 'start: <|im_start|> "a"'))
    assert run(row, 1) == [LIBRARY.token_to_id("<|im_start|>"), ord("a")]


def test_stop_ids_are_allowed_exactly_when_the_grammar_is_complete(grammars: Grammars) -> None:
    follower = constrained(grammars, grammar("REGEX", "ab?")).draw.grammar
    assert follower is not None
    expected = [[ord("a")], sorted([ord("b"), STOP]), [STOP], [STOP]]
    output = np.array([ord("a"), ord("b"), STOP], np.int32)
    for count, ids in enumerate(expected):
        allowed = follower.allowed(output[:count])
        assert allowed is not None
        known = [i for i in allowed.tolist() if i < 256 or i == STOP]
        assert known == ids


def test_a_complete_grammar_outranks_min_tokens(grammars: Grammars) -> None:
    rule = grammar("CHOICE", ["a"])
    params = sampling(temperature=1.0, grammar=rule)
    begin = start(
        1, [1, ord("a")], (), sampling=params, num_prompt_tokens=1, min_tokens=9,
        stop_token_ids=(STOP,),
    )  # fmt: skip
    row = Row(begin, VOCAB_SIZE, grammars)
    assert Sampler(VOCAB_SIZE).sample(logits_at(0, 0), [row])[0].token_id == STOP


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (b"</think>", b"o"),
        (b".</think>\n\n", b"o"),
        (b".</think>o", b"k"),
        (b"</thin</think>", b"o"),
    ],
)
def test_a_grammar_acts_behind_a_tag_in_whatever_tokens(
    tmp_path: Path, end: bytes, left: bytes
) -> None:
    """Of Qwen2.5's vocabulary `</think>\n\n` ends with the token `>\\n\\n`: ids say nothing."""
    library = tiny_library()
    tokens = [".</", "think", ">\n\n", ">o", "</thin"]
    library.add_tokens([AddedToken(one, normalized=False) for one in tokens])
    library.save(str(tmp_path / "tokenizer.json"))
    spelled = library.encode(end.decode(), add_special_tokens=False).ids
    rule = grammar("CHOICE", ["ok"], list(b" </think>"))
    follower = constrained(Grammars(tmp_path / "tokenizer.json", VOCAB_SIZE), rule).draw.grammar
    assert follower is not None
    output = np.array([*b"Hm", *spelled], np.int32)
    seen = [follower.allowed(output[:n]) for n in range(len(output) + 1)]
    assert [ids is None for ids in seen] == [True] * len(output) + [False]
    assert seen[-1] is not None and seen[-1].tolist() == list(left)


@pytest.mark.parametrize("begun", [b"</think", b"Hm.</think"])
def test_no_token_ends_the_tag_and_begins_what_the_grammar_refuses(
    tmp_path: Path, begun: bytes
) -> None:
    """R1-like fine-tunes of Qwen2.5 write `</think><answer>`, with the token `><`."""
    library = tiny_library()
    library.add_tokens([AddedToken(one, normalized=False) for one in ("><", ">o", ">\n<", ">\n")])
    wrong = {library.token_to_id("><"), library.token_to_id(">\n<")}
    library.save(str(tmp_path / "tokenizer.json"))
    rule = grammar("CHOICE", ["ok"], list(b"</think>"))
    follower = constrained(Grammars(tmp_path / "tokenizer.json", VOCAB_SIZE), rule).draw.grammar
    assert follower is not None
    allowed = follower.allowed(np.array([*begun], np.int32))
    assert allowed is not None and set(range(VOCAB_SIZE)) - {*allowed.tolist()} == wrong
    assert follower.allowed(np.array([*begun, ord("!")], np.int32)) is None


def test_a_grammar_acts_only_after_its_id_sequence(grammars: Grammars) -> None:
    rule = grammar("CHOICE", ["ok"], [THOUGHT, 10])
    output = [ord("h"), THOUGHT, ord("m"), THOUGHT, 10, ord("o")]
    follower = constrained(grammars, rule).draw.grammar
    assert follower is not None
    seen = [follower.allowed(np.array(output[:n], np.int32)) for n in range(len(output) + 1)]
    assert [ids is None for ids in seen] == [True] * 5 + [False] * 2
    assert [ids.tolist() for ids in seen[5:] if ids is not None] == [[ord("o")], [ord("k")]]


def test_a_grammar_acts_at_once_on_an_output_without_thoughts(grammars: Grammars) -> None:
    """A model that may think, and does not, is bound all the same."""
    opener: int = LIBRARY.token_to_id("<think>")
    rule = grammar("CHOICE", ["ok"], [THOUGHT], opener)
    bound = [sorted([ord("o"), opener]), [ord("k")], [STOP]]
    free = [bound[0], None, None, [ord("o")], [ord("k")]]
    for output, expected in ([*b"ok"], bound), ([opener, ord("x"), THOUGHT, ord("o")], free):
        follower = constrained(grammars, rule).draw.grammar
        assert follower is not None
        ids = [follower.allowed(np.array(output[:n], np.int32)) for n in range(len(output) + 1)]
        assert [None if known is None else known.tolist() for known in ids] == expected


def test_a_resumed_output_goes_on_as_if_undisturbed(grammars: Grammars) -> None:
    rule = grammar("JSON_SCHEMA", SCHEMA, [THOUGHT])
    whole = [5, 6, THOUGHT, *run(constrained(grammars, rule, [5, 6, THOUGHT], seed=3), 3)[3:]]
    for cut in range(0, len(whole), 5):
        if cut < 3:
            continue
        again = constrained(grammars, rule, whole[:cut], seed=3)
        assert run(again, 3) == whole, cut


def test_a_trace_tells_what_the_grammar_has_left(grammars: Grammars) -> None:
    row = constrained(grammars, grammar("CHOICE", ["x", "y"]), return_sampler_trace=True)
    trace = json.loads(Sampler(VOCAB_SIZE).sample(logits_at(0, 0), [row])[0].trace)
    counts = {stage["stage"]: stage["count"] for stage in trace["stages"]}
    assert counts == {"logits": VOCAB_SIZE, "grammar": 2, "temperature": 2}


def test_a_mask_that_was_computed_ahead_is_the_same(grammars: Grammars) -> None:
    rule = grammar("JSON_SCHEMA", SCHEMA)
    row, other = (constrained(grammars, rule) for _ in range(2))
    first, second = row.draw.grammar, other.draw.grammar
    assert first is not None and second is not None
    output = np.frombuffer(b'{"name":"x', np.uint8).astype(np.int32)
    for count in range(len(output) + 1):
        if count % 3:
            first.prefetch(output[: count - 1])  # an older one is not taken for the new
            first.prefetch(output[:count])
        assert np.array_equal(first.allowed(output[:count]), second.allowed(output[:count]))


# ── errors and the cache ─────────────────────────────────────────────────────────────────────

BAD: list[tuple[str, Any, str]] = [
    ("JSON_SCHEMA", '{"type": ', "not JSON"),
    ("JSON_SCHEMA", "[" * 100_000, "not JSON"),
    ("JSON_SCHEMA", [1], "an object or a boolean"),
    ("JSON_SCHEMA", {"type": "strin"}, "strin"),
    ("JSON_SCHEMA", {"$ref": "http://example.com/a"}, "cannot be compiled"),
    ("JSON_SCHEMA", {"$ref": "#"}, "leads only to itself"),
    ("LARK", "start: a\na: start", "leads only to itself"),
    ("REGEX", "a(b", "unclosed group"),
    ("LARK", "start: X\nX: /(.*a.{20})/ & /(.*b.{21})/ & ~/(.*c.{22})/", "fuel exhausted"),
    ("LARK", "start: nothing", "unknown name"),
    ("CHOICE", [], "not empty"),
    ("CHOICE", ["a", 3], "list of strings"),
]


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
def test_a_grammar_that_cannot_be_is_an_error_of_its_request(
    grammars: Grammars, kind: str, text: Any, words: str
) -> None:
    rule = grammar(kind, text)
    assert words in grammars.prepare(sampling(grammar=rule))
    with pytest.raises(RowError, match=words):
        constrained(grammars, rule)


def test_an_output_that_breaks_its_grammar_is_a_fault(grammars: Grammars) -> None:
    row = constrained(grammars, grammar("REGEX", "abc"), [ord("a"), ord("x")])
    error = Sampler(VOCAB_SIZE).sample(logits_at(0, 0), [row])[0].error
    assert str(error) == f"token {ord('x')} does not follow the grammar"


def test_a_grammar_that_meets_a_limit_on_its_way_is_its_requests_own(grammars: Grammars) -> None:
    """Every choice goes on as the whole: more ways at once than the parser follows."""
    rule = grammar("LARK", "start: " + " | ".join(f'"a{i}" start' for i in range(3000)))
    row = constrained(grammars, rule, [ord("a")])
    drawn = Sampler(VOCAB_SIZE).sample(logits_at(0, 0), [row])[0]
    assert isinstance(drawn.error, GrammarLimit) and drawn.error.code == "grammar_limit"
    assert "items" in str(drawn.error)


def test_a_limit_is_met_by_what_an_output_needs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever else has used the same grammar: copies of one matcher count their states together."""
    monkeypatch.setattr("worker.grammar.MAX_LEXER_STATES", 500)
    LIBRARY.save(str(tmp_path / "tokenizer.json"))
    rule = grammar("REGEX", "(.|\n)*[aeiou](.|\n){9}b(.|\n)*[xsn](.|\n){6}")

    def walk(grammars: Grammars, seed: int) -> list[int]:
        """Return a random output, as far as it goes."""
        follower, draw = grammars.follow(rule, np.array([STOP])), np.random.default_rng(seed)
        output: list[int] = []
        while len(output) < 150:
            try:
                allowed = follower.allowed(np.array(output, np.int32))
            except GrammarLimit:
                return [*output, -1]
            assert allowed is not None
            output.append(int(draw.choice(allowed[allowed != STOP])))
        return output

    path = tmp_path / "tokenizer.json"
    alone = [walk(Grammars(path, VOCAB_SIZE), seed) for seed in range(8)]
    shared = Grammars(path, VOCAB_SIZE)
    assert [walk(shared, seed) for seed in range(8)] == alone


def test_an_end_of_the_models_that_is_text_to_the_grammar_waits_for_it(grammars: Grammars) -> None:
    """It is drawn inside only where there is no other way, as a stop id of the client's may be."""
    end = LIBRARY.encode("b").ids[0]
    for text, has_other in (("ab", False), ("a[b-z]c", True)):
        rule = grammar("REGEX", text)
        rule.end_token_ids = columns([end, VOCAB_SIZE + 5])
        follower = grammars.follow(rule, np.array([STOP, end]))
        allowed = follower.allowed(np.array(LIBRARY.encode("a").ids, np.int32))
        assert allowed is not None and (end in allowed) is not has_other
    whole = follower.allowed(np.array(LIBRARY.encode("axc").ids, np.int32))
    assert whole is not None and {STOP, end} == set(whole)


def test_a_rule_without_an_end_is_said_where_it_is_met(grammars: Grammars) -> None:
    loop = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
    row = constrained(grammars, grammar("JSON_SCHEMA", loop))
    with pytest.raises(AssertionError, match="leads only to itself"):
        run(row, 0)


def test_no_tokenizer_or_library_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grammars: Grammars
) -> None:
    rule = grammar("REGEX", "only here")
    assert "tokenizer.json" in Grammars(tmp_path / "tokenizer.json", 9).prepare(
        sampling(grammar=rule)
    )
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert "llguidance, it is not installed" in grammars.prepare(sampling(grammar=rule))


def test_a_tokenizer_that_puts_a_blank_before_a_text_puts_none_into_it(tmp_path: Path) -> None:
    """Where text can go on in one way only, llguidance tokenizes it."""
    path = tmp_path / "tokenizer.json"
    plain = LIBRARY.to_str()
    path.write_text(plain.replace('"add_prefix_space":false', '"add_prefix_space":true'))
    assert path.read_text() != plain
    grammars = Grammars(path, VOCAB_SIZE)
    for word in ("nein", " the the", '{"the": 1}'):
        assert text_of(run(constrained(grammars, grammar("CHOICE", [word])), 0)) == word


DECOMPOSED = ["cafe\u0301", "\u2126", "10 \u212b", "\u212a", "\u1112\u1161\u11ab", "\uf900"]
"""Texts that the tokenizer's NFC would write otherwise."""


@pytest.mark.parametrize("word", DECOMPOSED)
def test_a_text_that_is_not_normalized_comes_as_it_is_asked_for(
    word: str, grammars: Grammars
) -> None:
    assert '"normalizer":{"type":"NFC"}' in LIBRARY.to_str()
    schema = {
        "type": "object",
        "properties": {word: {"enum": [word]}},
        "required": [word],
        "additionalProperties": False,
    }
    assert text_of(run(constrained(grammars, grammar("CHOICE", [word])), 0)) == word
    assert text_of(run(constrained(grammars, grammar("REGEX", word)), 0)) == word
    answer = text_of(run(constrained(grammars, grammar("JSON_SCHEMA", schema)), 0))
    assert json.loads(answer) == {word: word}


def test_a_vocabulary_larger_than_the_models_is_cut(tmp_path: Path) -> None:
    LIBRARY.save(str(tmp_path / "tokenizer.json"))
    follower = Grammars(tmp_path / "tokenizer.json", 200).follow(
        grammar("REGEX", "(?s:.*)"), np.zeros(0, np.int64)
    )
    allowed = follower.allowed(np.zeros(0, np.int32))
    assert allowed is not None and 100 < len(allowed) <= 200 and allowed.max() < 200


def test_only_the_last_grammars_are_kept(grammars: Grammars) -> None:
    for number in range(MAX_COMPILED + 5):
        assert grammars.prepare(sampling(grammar=grammar("CHOICE", [f"n{number}"]))) == ""
    assert len(grammars._compiled) == MAX_COMPILED


# ── the runner ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model(DEMO, num_threads=1)


def test_rows_with_grammars_in_a_batch_and_with_guesses(demo: LoadedModel) -> None:
    """In company, alone, and with guesses: the same ids, and they parse."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    stop = library.token_to_id("<|im_end|>")
    small = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
             "additionalProperties": False}  # fmt: skip
    params = sampling(temperature=2.0, seed=5, grammar=grammar("JSON_SCHEMA", small))
    fields: dict[str, Any] = {"sampling": params, "stop_token_ids": (stop,)}
    prompt = library.encode("Say something.").ids
    together = generate(demo.runner(40), {1: prompt, 2: prompt[:2], 3: prompt[1:]}, 45, **fields)
    alone = generate(demo.runner(40), {1: prompt}, 45, **fields).token_ids[1]
    assert together.token_ids[1] == alone
    for ids in together.token_ids.values():
        answer = ids[: ids.index(stop)] if stop in ids else ids
        jsonschema.validate(json.loads(library.decode(answer)), small)
    assert guessed(demo, prompt, alone, fields) == alone


def guessed(
    demo: LoadedModel, prompt: Sequence[int], known: Sequence[int], fields: dict[str, Any]
) -> list[int]:
    """Generate as many ids as are `known`, three guesses a step, some of them wrong."""
    runner, got = demo.runner(40), list[int]()
    result = runner.execute(wire.ExecutePlan(0, (start(1, prompt, range(20), **fields),)))
    got += result.token_ids
    while len(got) < len(known):
        guesses = [*known[len(got) : len(got) + 2], 0]
        step = wire.SequenceStep(1, 1 + len(guesses), (), tuple(guesses))
        result = runner.execute(wire.ExecutePlan(len(got), steps=(step,)))
        assert not result.faults and result.token_ids
        got += result.token_ids
    return got[: len(known)]
