"""EBNF → Lark of which each part means what it says, and is one automaton where it can be.

llguidance takes the longest text that any lexeme of a place goes on with, and never turns back:
`name " is "` would not end where `name ::= [a-z ]+`. A rule that names no others (or such ones
alone) is one lexeme, for that is fast. But where a lexeme may be at its end, and the next character
is also one that it, or another of its place, goes on with, the one that goes on is opened: its
parts are lexemes instead of it; in the end single characters, of which none goes on.
"""

from __future__ import annotations

from functools import reduce
from itertools import count
from operator import or_

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
    resolve,
)

from tokenizer_service.automaton import Automaton, Budget, Node, Part, TooLarge, Walk, bits
from tokenizer_service.ebnf import characters, spelled


class Lexemes(Walk):
    """The lexemes of one grammar. What is one, and what is opened, is known by the ids of nodes."""

    def __init__(self, text: str) -> None:
        super().__init__(1, Budget())
        self._rules = GrammarParser().parse(text)
        resolve(self._rules)
        self._opened: set[int] = set()
        self._runs: dict[int, tuple[str, Node]] = {}
        """Lexemes that are parts of rules, and the names they get."""
        self._names = (f"RUN_{number}" for number in count() if not self._is_rule(f"RUN_{number}"))
        self._letters: dict[int, list[Node]] = {}
        self._automata: dict[int, Automaton] = {}
        self._beside: dict[tuple[int, int], tuple[bool, int]] = {}
        for rule in self._rules.values():
            leave_out_none(rule)
            make_a_loop(rule)
            if not rule.rule_is_terminal:
                self._join_runs(rule.alternatives)

    def _is_rule(self, name: str) -> bool:
        return name in self._rules or name.lower() in self._rules

    def _join_runs(self, node: Node) -> None:
        if isinstance(node, RepetitionNode) and isinstance(node.node, RegexNode):
            self._name(node)
        for child in node.children():
            self._join_runs(child)

    def _name(self, node: Node) -> None:
        if not isinstance(node, LiteralNode | RegexNode | RuleRefNode):
            self._runs[id(node)] = next(self._names), node

    def open_confused(self) -> None:
        """Open lexemes until none takes what belongs to another.

        Where that is too much to look through, each rule of no others' names stays one.
        """
        try:
            while opened := self._confused():
                for lexeme in opened:
                    self._opened.add(id(lexeme))
                    self._runs.pop(id(lexeme), None)
                    for child in body_of(lexeme).children():
                        self._name(child)
        except (TooLarge, RecursionError):
            self._opened, self._runs = set(), {}

    def _lexeme(self, node: Node) -> Node | None:
        """Return the lexeme that `node` is, or a rule that it names; None when it has parts."""
        thing = node.target if isinstance(node, RuleRefNode) else node
        if isinstance(thing, RuleNode):
            is_one = thing.rule_is_terminal
        else:
            is_one = isinstance(thing, LiteralNode | RegexNode) or id(thing) in self._runs
        return thing if is_one and id(thing) not in self._opened else None

    def _letters_of(self, node: LiteralNode) -> list[Node]:
        if id(node) not in self._letters:
            letters = [LiteralNode(spelled(char)) for char, _ in characters(node.value)]
            self._letters[id(node)] = letters
        return self._letters[id(node)]

    def _reached(self) -> tuple[list[RuleNode], list[Node]]:
        """Return the rules that are none, those that others name before these, and the lexemes."""
        rules: dict[int, RuleNode] = {}
        lexemes: dict[int, Node] = {}
        seen: set[int] = set()
        stack = [self._rules["start"]]
        while stack:
            rule = stack[-1]
            if id(rule) in seen:
                rules.setdefault(id(rule), stack.pop())
                continue
            seen.add(id(rule))
            nodes = [rule.alternatives]
            while nodes:
                node = nodes.pop()
                self._budget.spend()
                if (lexeme := self._lexeme(node)) is not None:
                    lexemes[id(lexeme)] = lexeme
                elif isinstance(node, RuleRefNode):
                    assert node.target is not None
                    stack += [node.target] if id(node.target) not in seen else []
                elif isinstance(node, LiteralNode):
                    nodes += self._letters_of(node)
                else:
                    nodes += node.children()
        return list(rules.values()), list(lexemes.values())

    def known(self, node: Node) -> Part | None:
        if (lexeme := self._lexeme(node)) is not None:
            bit = 1 << self._numbers[id(lexeme)]
            return Part(self._automata[id(lexeme)].whole.may_be_empty, bit, bit)
        if isinstance(node, RuleRefNode):
            return self._wholes[id(node.target)]
        if isinstance(node, LiteralNode):
            return self.joined([self.part(letter) for letter in self._letters_of(node)])
        return None

    def follows_itself(self, part: Part, least: int) -> None:
        """Note it; but `[a-z]+` behind itself is one, where nothing asks for two."""
        for thing in bits(part.last):
            is_one = least < 2 and self._is_run[thing] and not part.behind_more >> thing & 1
            self.follow[thing] |= part.first & ~(is_one << thing)

    def _confused(self) -> list[Node]:
        """Return the lexemes that would take what belongs to others, or to none."""
        rules, lexemes = self._reached()
        for lexeme in lexemes:
            if id(lexeme) not in self._automata:
                self._automata[id(lexeme)] = Automaton(body_of(lexeme), self._budget)
        self._numbers = {id(lexeme): number for number, lexeme in enumerate(lexemes)}
        self._is_run = [is_run(body_of(lexeme), 1) for lexeme in lexemes]
        self.follow = [0] * len(lexemes)
        self._wholes = {id(rule): Part(False, 0, 0) for rule in rules}
        known: dict[int, Part] = {}
        while known != self._wholes:
            known = dict(self._wholes)
            for rule in rules:
                self._wholes[id(rule)] = self.part(rule.alternatives)
        return self._taking_too_much(lexemes, self._wholes[id(self._rules["start"])].first)

    def _taking_too_much(self, lexemes: list[Node], begin: int) -> list[Node]:
        automata = [self._automata[id(lexeme)] for lexeme in lexemes]
        heads = [automaton.bytes_of(automaton.whole.first) for automaton in automata]
        beginning = {
            byte: sum(1 << number for number, head in enumerate(heads) if head >> byte & 1)
            for byte in bits(reduce(or_, heads, 0))
        }
        rivals = [reduce(or_, (beginning[byte] for byte in bits(head)), 0) for head in heads]
        ahead = []
        for number, lexeme in enumerate(lexemes):
            others = self.follow[number] & ~(is_run(body_of(lexeme), 0) << number)
            ahead.append(sum(1 << byte for byte, some in beginning.items() if others & some))
        together = [0] * len(lexemes)
        pairs: list[tuple[int, int]] = []
        found = 0

        def meet(ones: int, others: int) -> None:
            for one in bits(ones):
                fresh = others & rivals[one] & ~together[one]
                together[one] |= fresh
                self._budget.spend(1 + fresh.bit_count())
                pairs.extend((one, other) for other in bits(fresh))

        meet(begin, begin)
        while pairs:
            one, other = pairs.pop()
            key = id(lexemes[one]), id(lexemes[other])
            if key not in self._beside:
                self._beside[key] = automata[one].beside(automata[other])
            is_shared, beyond = self._beside[key]
            found |= bool(beyond & ahead[one]) << other
            if is_shared:
                meet(self.follow[one], self.follow[other])
        return [lexemes[number] for number in bits(found)]

    def lark(self) -> str:
        lines = ["%llguidance {}"]
        for rule in self._rules.values():
            if rule.rule_is_terminal:
                lines.append(f"{rule.name}: {rule.alternatives}")
            if not rule.rule_is_terminal or id(rule) in self._opened:
                lines.append(f"{rule.name.lower()}: {self._shown(rule.alternatives)}")
        return "\n".join([*lines, *(f"{name}: {node}" for name, node in self._runs.values()), ""])

    def _shown(self, node: Node) -> str:
        lexeme = self._lexeme(node)
        if lexeme is not None:
            return self._runs[id(lexeme)][0] if id(lexeme) in self._runs else str(node)
        if isinstance(node, RuleRefNode):
            return str(node).lower()
        if isinstance(node, LiteralNode):
            return f"({' '.join(map(str, self._letters_of(node)))})"
        if isinstance(node, RepetitionNode):
            times = str(RepetitionNode(LiteralNode(""), node.min_times, node.max_times))
            return f"({self._shown(node.node)}){times.removeprefix(str(LiteralNode('')))}"
        parts = [self._shown(child) for child in node.children()]
        if isinstance(node, AlternativeNode):
            return f"({' | '.join(parts)})"
        return " ".join(parts) or '""'


def leave_out_none(node: Node) -> None:
    """Write what comes no times, `x{0}`, in words that llguidance has: an empty text."""
    for child in node.children():
        leave_out_none(child)
    if isinstance(node, RepetitionNode) and node.max_times == 0:
        node.node, node.max_times = LiteralNode(""), 1


def make_a_loop(rule: RuleNode) -> None:
    """Write `x ::= y x | z` as `(y)* z`, for then two of y may be one, and masks are faster."""
    body = rule.alternatives
    ways: list[Node] = body.alternatives if isinstance(body, AlternativeNode) else [body]
    steps: list[Node] = [SequenceNode(way.nodes[:-1]) for way in ways if is_again(way, rule)]
    ends = [way for way in ways if not is_again(way, rule)]
    if steps and ends:
        is_same = {str(end) for end in ends} == {str(step) for step in steps}
        loop = RepetitionNode(AlternativeNode(steps), int(is_same), None)
        rule.alternatives = SequenceNode([loop] + ([] if is_same else [AlternativeNode(ends)]))


def is_again(way: Node, rule: RuleNode) -> bool:
    last = way.nodes[-1:] if isinstance(way, SequenceNode) else []
    return bool(last) and isinstance(last[0], RuleRefNode) and last[0].target is rule


def body_of(lexeme: Node) -> Node:
    return lexeme.alternatives if isinstance(lexeme, RuleNode) else lexeme


def is_run(node: Node, least: int) -> bool:
    """Whether two of it behind each other may be one, the first with the text of both."""
    is_endless = isinstance(node, RepetitionNode) and node.max_times is None
    return is_endless and node.min_times <= least


def lark_of(text: str) -> str:
    """Return Lark of EBNF in plain words."""
    lexemes = Lexemes(text)
    lexemes.open_confused()
    return lexemes.lark()
