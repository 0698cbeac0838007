"""EBNF of llama.cpp and xgrammar accepts here what it accepts there."""

from __future__ import annotations

import llguidance
import pytest

from protos.common_pb2 import Grammar
from tokenizer_service.grammar import judged, read_as

TOKENIZER = llguidance.LLTokenizer("byte")

GRAMMARS = [
    (r'root ::= "\u0041\u0042\u00A9\u2603"', ["AB©☃"], ["AB©", "A", "\\u0041"]),
    (r'root ::= "\U00000345\xff" [\u00e0-\u00e9\U0001F600]', ["\u0345ÿà", "\u0345ÿ😀"], ["ÿà"]),
    (r'root ::= "\"\\\[\]\n\t\r\?\'"', ["\"\\[]\n\t\r?'"], ['"']),
    ('root ::= "a\tb\x7f"', ["a\tb\x7f"], ["ab"]),
    (r"root ::= [a&&b]+", ["a&b"], ["c"]),
    (r"root ::= [--] [+--] [-a] [a-] [\--\]]", ["--aa[", "-,--]"], ["-b-a[", "-.aa[", "--aa^"]),
    (r"root ::= [a~~b/[] [^\]\[]", ["~x", "[x", "/x"], ["~]", "c["]),
    (r"root ::= [\r\n$\x10-o\]\--] [^]", ["$\n", "]x", "-\n"], ["px"]),
    (r"root ::= .{3}", ["a\nb", "é☃\r"], ["ab"]),
    ('root ::= "a"\n  | "b" # or\n\n  "c"\n| d\nd ::= "d"', ["a", "bc", "d"], ["b", "ac"]),
    ('\n\nroot::="a"  "b" ("c""d"\n"e") |\n\n"f" | "g"\n', ["abcde", "f", "g"], ["ab"]),
    ('root ::= start Item item fooBar foo-bar\nstart ::= "s"\nItem ::= "I"\nitem ::= "i"\n'
     'fooBar ::= "1"\nfoo-bar ::= "2" foo_bar?\nfoo_bar ::= "3"', ["sIi12", "sIi123"], ["sii12"]),
    ('root ::= a b c{0 , 2} # tail\n# between\na ::= "#" [#"]\nb ::= ( ) "" # "x" ::= |\nc ::= "c"',
     ["##", '#"cc'], ["#"]),
    (r'root ::= "-"? ([0-9]+)? (( [x]* ) )* (("y"?){2}){1,2} ("k" "l"?)?',
     ["", "-12xxyyyk", "yyyykl"], ["1-", "yyyyy"]),
    ('root ::= (item+)? ("." | "!"*)+\nitem ::= "(" (item*)? ")"', ["", "(()).", "()!!.!"], ["(."]),
    ('s ::= | " " | "\\n" [ \\t]{0,20}\nroot ::= "{" s "}"', ["{}", "{ }", "{\n\t}"], ["{  }"]),
    (r"""root ::= ([^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}))+""",
     ["é\\n", "\\u00e9"], ["\n", "\\u00g", '"']),
]  # fmt: skip


def accepts(lark: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(TOKENIZER, lark)
    assert not matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


@pytest.mark.parametrize("text, good, bad", GRAMMARS)
def test_what_a_grammar_accepts(text: str, good: list[str], bad: list[str]) -> None:
    lark = read_as(Grammar(kind=Grammar.LARK, text=text))
    assert [one for one in good if not accepts(lark, one)] == []
    assert [one for one in bad if accepts(lark, one)] == []


@pytest.mark.parametrize(
    "text, why",
    [
        (r'root ::= "\d"', r"escape sequence \d"),
        (r'root ::= "\ud83d"', r"\ud83d is no character"),
        (r'root ::= "\U00110000"', "no character"),
        ("root ::= []", "no characters"),
        ('root ::= "a" other-rule', "'other-rule' not found"),
        ('root ::= a\na ::= "x"\n\nb ::= "y" )', "line 4"),
        ('root ::= "a"\n  "b', 'the " of line 2'),
        ("root ::= [a", "the [ of line 1"),
        ('a ::= "a"', "No 'root' rule"),
    ],
)
def test_what_is_none_is_told(text: str, why: str) -> None:
    assert why in judged(Grammar(kind=Grammar.LARK, text=text)).decode()
