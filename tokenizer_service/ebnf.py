"""EBNF as llama.cpp and xgrammar (vLLM) write it → the part of it that llguidance converts right.

llguidance's `gbnf_to_lark` loses the zeros of `\\u0041`, hands control characters, `&&` and `--` of
a class on to readers that mean something else by them, ends a rule at a line's end where `|`
follows, drops the brackets of `([0-9]+)?`, and folds names (`Item`, `item`) until two are one. So
characters are spelled here, each rule is one line, brackets hold more, and names stay apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

PIECE = re.compile(
    r"""
    (?P<comment> \#[^\r\n]* ) | (?P<space> \s+ ) |
    (?P<literal> "(?:[^"\\]|\\.)*" ) | (?P<chars> \[(?:[^\]\\]|\\.)*\] ) |
    (?P<open> ["\[] ) | (?P<any> \. ) | (?P<times> \{[\d\s,]*\} ) |
    (?P<rule> [\w-]+(?=\s*::=) ) | (?P<name> [\w-]+ ) | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)
CHAR = re.compile(
    r"\\x([\da-fA-F]{2}) | \\u([\da-fA-F]{4}) | \\U([\da-fA-F]{8}) | \\(.) | (.)",
    re.VERBOSE | re.DOTALL,
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "0": "\0"}
ANY = "[\0-\U0010ffff]"
"""What a dot stands for: newlines are characters, too."""


def plain_ebnf(text: str) -> str:
    """Return `text` in the plain words; raise ValueError for what no reader of EBNF knows."""
    pieces = list(pieces_of(text))
    names = kept_apart([piece for kind, piece in pieces if kind == "rule"])
    too_bare = brackets_of_one(pieces)
    out: list[str] = []
    num_lines = 0  # so that a complaint tells the line that its rule begins in
    for number, (kind, piece) in enumerate(pieces):
        if kind == "rule":
            out.append("\n" * num_lines + names[piece])
            num_lines = 0
        elif kind == "space":
            num_lines += piece.count("\n")
            out.append(" ")
        elif kind == "name":
            if piece not in names:
                raise ValueError(f"Rule '{piece}' not found")
            out.append(names[piece])
        elif kind == "literal":
            out.append('"' + "".join(spelled(char) for char, _ in characters(piece[1:-1])) + '"')
        elif kind in ("chars", "any"):
            out.append(spelled_class(piece if kind == "chars" else ANY))
        elif kind != "comment":
            out.append(f'{piece}"" ' if number in too_bare else piece)
    return "".join(out)


def pieces_of(text: str) -> Iterator[tuple[str | None, str]]:
    for found in PIECE.finditer(text):
        if found.lastgroup == "open":
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"the {found[0]} of line {line} is not closed")
        yield found.lastgroup, found[0]


def brackets_of_one(pieces: list[tuple[str | None, str]]) -> set[int]:
    """Return where brackets open that hold one repeated thing and nothing else."""
    found: set[int] = set()
    opened: list[tuple[int, int, bool]] = []  # where, things so far, whether the last repeats
    for number, (kind, piece) in enumerate(pieces):
        if kind in ("space", "comment"):
            continue
        if piece == "(":
            opened.append((number, 0, False))
            continue
        if not opened:
            continue
        at, num_things, repeats = opened.pop()
        if piece == ")":
            if num_things == 1 and repeats:
                found.add(at)
            if opened:
                at, num_things, _ = opened.pop()
                opened.append((at, num_things + 1, False))
        elif kind == "times" or piece in ("*", "+", "?"):
            opened.append((at, num_things, True))
        else:
            opened.append((at, num_things + 1 + (piece == "|"), False))
    return found


def kept_apart(rules: list[str]) -> dict[str, str]:
    """Return a name for each rule that is still its own when all are folded; `root` is `start`."""
    taken, names, numbers = {"start"}, {"root": "root"}, Counter[str]()
    for rule in rules:
        if rule in names:
            continue
        name, alike = rule, folded(rule)
        while folded(name) in taken:
            numbers[alike] += 1
            name = f"{rule}-{numbers[alike]}"
        taken.add(folded(name))
        names[rule] = name
    return names


def folded(name: str) -> str:
    """Return what the converter makes of a rule's name."""
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).replace("-", "_").lower()


def characters(body: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters that `body` spells, and whether each stands there as it is."""
    for found in CHAR.finditer(body):
        if code := found[1] or found[2] or found[3]:
            number = int(code, 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise ValueError(f"{found[0]} is no character")
            yield chr(number), False
        elif escape := found[4]:
            if escape.isalnum() and escape not in ESCAPES:
                raise ValueError(f"Invalid escape sequence \\{escape}")
            yield ESCAPES.get(escape, escape), False
        else:
            yield found[5], True


def spelled(char: str) -> str:
    """Return `char` so that it means itself in a literal and in a class, in Lark and in a regex."""
    return f"\\x{ord(char):02x}" if char < " " or char in '"\\[]^-&~/\x7f' else char


def spelled_class(piece: str) -> str:
    """Return a class `[...]` with all its characters spelled; raise ValueError for an empty one."""
    is_negated, ranges = members_of(piece)
    if not ranges:
        if is_negated:
            return spelled_class(ANY)
        raise ValueError("[] has no characters")
    members = ("-".join(map(spelled, one)) for one in ranges)
    return f"[{'^' * is_negated}{''.join(members)}]"


def members_of(piece: str) -> tuple[bool, list[str]]:
    """Return whether a class `[...]` is negated, and its characters and ends of ranges."""
    chars = list(characters(piece[1:-1]))
    is_negated = chars[:1] == [("^", True)]
    del chars[: int(is_negated)]
    ranges, at = [], 0
    while at < len(chars):
        is_range = at + 2 < len(chars) and chars[at + 1] == ("-", True)
        ranges.append(chars[at][0] + (chars[at + 2][0] if is_range else ""))
        at += 3 if is_range else 1
    return is_negated, ranges


def first_bytes(piece: str) -> int:
    """Return the bytes, as bits, that the characters of a class begin with."""
    is_negated, ranges = members_of(piece)
    ends = sorted((ord(one[0]), ord(one[-1])) for one in ranges)
    if is_negated:
        gaps, begin = [], 0
        for low, high in ends:
            gaps.append((begin, low - 1))
            begin = max(begin, high + 1)
        ends = [*gaps, (begin, 0x10FFFF)]
    found = 0
    for low, high in ends:
        if low <= high:
            found |= (2 << first_byte(high)) - (1 << first_byte(low))
    return found


def first_byte(code: int) -> int:
    return chr(code).encode(errors="surrogatepass")[0]
