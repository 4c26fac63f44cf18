"""Every regular expression of the package takes time in proportion to the text, whatever the text is.

Expressions are found where they are: in the modules' names, also inside tables, in calls of ``re`` inside functions,
and in the data of the forms of secrets. The texts come from each one's own parts: a part many times, and a beginning
that matches with a part that may repeat, many times. Time is this thread's CPU.
"""

import ast
import dataclasses
import importlib
import pkgutil
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as codes
from re import _parser

import pytest

import memory_bank
from memory_bank.service.security import secrets
from tests.examples import first_short
from tests.growth import cpu_seconds

SOURCES = Path(memory_bank.__file__).parent
FIRST, SHORT, LONG = 300, 4_000, 16_000
OF_FORMS = 100, 1_000, 4_000  # there are hundreds of them
ENOUGH = 4e-3  # seconds for the short text, that nothing but a linear expression keeps
GROWTH = 9  # four times the length, so 4 is linear and 16 quadratic
MOST = 16  # texts of one expression
CHARACTERS = "a1 Ax_-/.\"'\n:=\\é中,(<[{\x00"
METHODS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"}
MATCHED = {"_RE", "_SINGLE", "_DOUBLE", "_LABEL", "_BULLET"}  # are matched at a place, by another name
Text = Callable[[int], str]


def patterns_in(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, re.Pattern]]:
    """The expressions in a module's value, also inside tables of them, and whose method a value is."""
    value = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(value, re.Pattern):
        yield name, value
    inner: object = ()
    if depth > 4 or isinstance(value, type):
        return
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = enumerate(value)
    elif dataclasses.is_dataclass(value):
        inner = ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))
    for key, each in inner:
        yield from patterns_in(each, f"{name}[{str(key)[:30]!a}]", depth + 1)


def expressions() -> dict[str, tuple[re.Pattern, str]]:
    """The package's expressions by place, each with the method that it is used by."""
    found: dict[str, tuple[re.Pattern, str]] = {}
    uses: dict[str, set[str]] = defaultdict(set)
    owners: dict[int, tuple[str, str, re.Pattern]] = {}
    for each in pkgutil.walk_packages([str(SOURCES)], "memory_bank."):
        path = SOURCES / Path(*each.name.split(".")[1:])
        path = path / "__init__.py" if each.ispkg else path.with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in METHODS and ast.unparse(node.value) != "re":
                uses[re.split(r"[\[(]", ast.unparse(node.value))[0].split(".")[-1]].add(node.attr)
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{m}" for m in METHODS}
            if is_call and isinstance(node.args[0], ast.Constant):
                place = f"{each.name}:{node.lineno}:{node.col_offset}"
                found[place] = (re.compile(node.args[0].value), node.func.attr)
        if each.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(each.name)
        except ImportError:  # of an extra that is not here
            continue
        for attribute, value in vars(module).items():
            for where, pattern in patterns_in(value, attribute):
                owners.setdefault(id(pattern), (f"{each.name}.{where}", attribute, pattern))
    for where, attribute, pattern in owners.values():
        known = uses[attribute]
        found[where] = (pattern, "finditer" if not known or known - {"match", "fullmatch"} else max(known))
        if attribute in MATCHED:
            found[where] = (pattern, "match")
    return found


CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def is_in(items: list, char: str) -> bool:
    """Whether a set of an expression has a character."""
    negated = items[0][0] is codes.NEGATE
    for code, argument in items:
        if (
            (code is codes.LITERAL and chr(argument) == char)
            or (code is codes.RANGE and argument[0] <= ord(char) <= argument[1])
            or (code is codes.CATEGORY and re.match(CATEGORIES[argument], char))
        ):
            return not negated
    return negated


def characters_of(node: tuple) -> list[str]:
    """Characters that one item of an expression takes: those of the table, or one of its own."""
    code, argument = node
    if code is codes.LITERAL:
        return [chr(argument)]
    if code is codes.ANY:
        return [c for c in CHARACTERS if c != "\n"]
    if code is codes.NOT_LITERAL:
        return [c for c in CHARACTERS if c != chr(argument)]
    first = argument[0]
    own = {codes.LITERAL: lambda: chr(first[1]), codes.RANGE: lambda: chr(first[1][0])}.get(
        first[0], lambda: "b"
    )
    return [c for c in CHARACTERS if is_in(argument, c)] or [own()]


class Parts:
    """Samples of an expression's parts, and ``pumps``: what matches before a part that may repeat, and that part."""

    def __init__(self, pattern: re.Pattern) -> None:
        self.parts: dict[str, None] = {}
        self.pumps: dict[tuple[str, str], None] = {}
        source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        self.sequence(
            _parser.parse(source, pattern.flags & ~re.U if pattern.flags & re.A else pattern.flags), ""
        )

    def sequence(self, nodes: object, before: str) -> str:
        """A sample of a sequence that follows a sample."""
        sample = literal = ""
        for node in nodes:
            if node[0] is codes.LITERAL:
                literal += chr(node[1])
            elif literal:
                self.parts[literal] = None
                literal = ""
            sample += self.node(node, before + sample)
        self.parts.update(dict.fromkeys(part for part in (literal, sample) if part))
        return sample

    def node(self, node: tuple, before: str) -> str:
        code, argument = node
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return characters_of(node)[0]
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            low, high, inner = argument
            sample = self.sequence(inner, before)
            if high > 8:
                taken = [sample]
                if len(inner) == 1 and inner[0][0] in (codes.NOT_LITERAL, codes.ANY, codes.IN):
                    taken = characters_of(inner[0])
                    taken = ["".join(taken), *taken[:3]]
                self.pumps.update(dict.fromkeys((before, part) for part in taken if part))
            return sample * max(low, min(1, high))
        if code is codes.BRANCH:
            return [self.sequence(each, before) for each in argument[1]][0]
        if code is codes.SUBPATTERN:
            return self.sequence(argument[3], before)
        if code is codes.ATOMIC_GROUP:
            return self.sequence(argument, before)
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            self.sequence(argument[1], before)
        return ""


def texts_of(pattern: re.Pattern, most: int = MOST) -> dict[str, Text]:
    """Functions from a length to a text, by a name: at most so many, from all parts of an expression."""
    made = Parts(pattern)
    out: dict[str, Text] = {}
    words = [p for p in made.parts if p.isalpha() and len(p) > 2][3:]  # a few stand for all
    for before, part in made.pumps:
        out[f"{before!a} + {part!a} * n"] = lambda n, b=before, p=part: b + p * (n // len(p)) + "\x00"
    for part in (p for p in made.parts if p not in words):
        out[f"{part!a} * n"] = lambda n, p=part: p * (n // len(p))
    names = list(out)
    return {name: out[name] for name in names[:: -(-len(names) // most)]}


def search_of(pattern: re.Pattern, method: str) -> Callable[[str], object]:
    """What is done with a text; a search that finds something goes on, as one that finds nothing does."""
    if method in ("match", "fullmatch"):
        return getattr(pattern, method)
    return lambda text: sum(1 for _ in pattern.finditer(text))


def slow(
    work: Callable[[str], object],
    texts: dict[str, Text],
    form: Callable[[str], object] = str,
    lengths: tuple[int, int, int] = (FIRST, SHORT, LONG),
) -> list[str]:
    """The first text on which some work takes more than in proportion to its length, in a list."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for name, text in texts.items():
            work(form(text(FIRST // 10)))
            short = 0.0
            for length in lengths:
                given = form(text(length))
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)  # of this process's CPU
                try:
                    took = cpu_seconds(lambda given=given: work(given))
                    if length == lengths[2] and took > GROWTH * short:  # or something came between
                        took = cpu_seconds(lambda given=given: work(given))
                except TimeoutError:
                    return [f"{name}: more than half a second for {length} characters"]
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                if length == lengths[1] and took < ENOUGH:
                    break
                if length == lengths[2] and took > GROWTH * short:
                    return [f"{name}: {short:.4f} s, {took:.4f} s"]
                short = took
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return []


def forms() -> dict[str, tuple[re.Pattern, Callable[[str], object]]]:
    """The forms of secrets: each is looked for wherever its word is in a text, tokens not inside the one before.

    One stands for all that differ in their word alone, which is fixed.
    """
    out: dict[str, tuple[re.Pattern, Callable[[str], object]]] = {}
    for search in (secrets._TOKENS, secrets._PLACED, secrets._FOREIGN):
        for form in (f for each in search.forms.values() for f in each):

            def work(text: str, form: secrets._Form = form, skips: bool = search is secrets._TOKENS) -> None:
                end = 0
                for found in re.finditer(re.escape(form.word), text):
                    if found.start() >= end and (span := form.found(text, found.start())) and skips:
                        end = span[1]

            rest = form.pattern.replace(re.escape(form.word), "WORD", 1)
            name = f"{rest}, from {form.before} before, if {form.is_secret.__name__}"
            out.setdefault(name, (secrets._compiled(form.pattern), work))
    for word, _, *patterns in secrets._DATA_FILE["tables"]:
        for each in patterns:
            pattern = secrets._compiled(each, re.I)
            out[f"table {word}: {each}"] = (pattern, search_of(pattern, "finditer"))
    return out


def whole() -> dict[str, tuple[re.Pattern, Callable[[str], object]]]:
    """The expressions by which the forms are found, each in the search as a whole."""
    given = {n: e for n, e in secrets._EXPRESSIONS.items() if n != "body"}
    spaced = ("escapes", "backslashes")
    return {n: (re.compile(e, re.X if n in spaced else 0), secrets.secrets_in) for n, e in given.items()}


@pytest.mark.parametrize("most", first_short([MOST // 3, MOST]))
def test_expressions_of_the_package(most):
    found = expressions()
    assert len(found) > 100
    bad = {}
    for place, (pattern, method) in found.items():
        if "security.secrets._TOKENS" in place or "security.secrets._PLACED" in place:  # fixed words
            continue
        form = (lambda text: text.encode("latin-1", "replace")) if isinstance(pattern.pattern, bytes) else str
        if names := slow(search_of(pattern, method), texts_of(pattern, most), form):
            bad[place] = names
    assert bad == {}


@pytest.mark.parametrize("those", [forms, whole])
def test_expressions_of_secrets(those):
    bad = {
        name[:100]: names
        for name, (p, work) in those().items()
        if (names := slow(work, texts_of(p, 4), lengths=OF_FORMS))
    }
    assert bad == {}


def test_a_slow_expression_is_noticed():
    for pattern in (r"a[^b]*b", r"(?:/[a-z]?[a-z]+)+:", r"x{3,}.*x{3,}:"):
        made = re.compile(pattern, re.S)
        assert slow(search_of(made, "finditer"), texts_of(made, 8)), pattern
    for pattern in (r"a[^b]{0,20}b", r"[^\n]*+\n", r"\b\d+-"):
        made = re.compile(pattern)
        assert not slow(search_of(made, "match"), texts_of(made, 8)), pattern
