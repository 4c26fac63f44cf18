"""Every regular expression of the package takes time in proportion to the text, whatever the text is.

Expressions are found where they are: in the modules' names, in calls of ``re`` inside functions, and in the data of
the secrets' forms. From each one's own parts come the texts that are tried: a part many times, a beginning that
matches and then a part many times, and mixtures of what its sets take. Time is this thread's CPU.
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
from tests.growth import cpu_seconds

import memory_bank
from memory_bank.service.security import secrets

SOURCES = Path(memory_bank.__file__).parent
SHORT, LONG = 8_000, 32_000
ENOUGH = 5e-3  # seconds for the short text, that nothing but a linear expression keeps
GROWTH = 9  # four times the length, so 4 is linear and 16 quadratic
CHARACTERS = "a1 Ax_-/.\"'\n:=\\é中,(<[{\x00"
ENDS = ("\x00", "\n!", "")
METHODS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"}

MATCHED = {"_RE"}  # names of tables whose expressions are only matched at a place
# --- the expressions


def patterns_in(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, re.Pattern]]:
    """The expressions in a module's value, also inside tables of them, and whose method a value is."""
    value = getattr(value, "__self__", value) if callable(value) else value
    if isinstance(value, re.Pattern):
        yield name, value
    if depth > 4 or isinstance(value, (str, bytes, type)):
        return
    inner: object = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = enumerate(value)
    elif dataclasses.is_dataclass(value):
        inner = vars(value).items() if hasattr(value, "__dict__") else ()
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
            if not isinstance(node, ast.Attribute) or node.attr not in METHODS:
                continue
            owner = ast.unparse(node.value)
            if owner != "re":
                uses[re.split(r"[\[(]", owner)[0].split(".")[-1]].add(node.attr)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{m}" for m in METHODS}:
                if isinstance(node.args[0], ast.Constant):
                    where = f"{each.name}:{node.lineno}:{node.col_offset}"
                    found[where] = (re.compile(node.args[0].value), node.func.attr)
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
        method = "finditer" if not known or known - {"match", "fullmatch"} else max(known)
        if attribute in MATCHED:
            method = "match"
        found[where] = (pattern, method)
    return found


# --- the texts


def characters(test: Callable[[str], bool]) -> list[str]:
    return [c for c in CHARACTERS if test(c)]


def _set_of(node: tuple, flags: int) -> list[str]:
    """The characters of a table that one item of an expression takes, or one of its own."""
    code, argument = node
    if code is codes.LITERAL:
        return [chr(argument)]
    if code is codes.ANY:
        return characters(lambda c: c != "\n" or bool(flags & re.S))
    if code is codes.NOT_LITERAL:
        return characters(lambda c: c != chr(argument))
    tree = _parser.parse("a", flags)
    tree.data[:] = [node]
    one = re._compiler.compile(tree) if False else None
    assert one is None
    taken = characters(lambda c: _in(argument, c))
    if not taken:
        first = argument[0]
        taken = [chr(first[1] if first[0] is codes.LITERAL else first[1][0])] if first[0] in (codes.LITERAL, codes.RANGE) else ["b"]
    return taken


CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _in(items: list, char: str) -> bool:
    negated = items[0][0] is codes.NEGATE
    for code, argument in items:
        if (
            (code is codes.LITERAL and chr(argument) == char)
            or (code is codes.RANGE and argument[0] <= ord(char) <= argument[1])
            or (code is codes.CATEGORY and re.match(CATEGORIES[argument], char))
        ):
            return not negated
    return negated


class Texts:
    """Samples of an expression's parts: ``parts`` of it, and the ``pumps``: what matches before a part that repeats, and it."""

    def __init__(self, pattern: re.Pattern) -> None:
        self.flags = pattern.flags
        self.parts: dict[str, None] = {}
        self.pumps: dict[tuple[str, str], None] = {}
        source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        self.sequence(_parser.parse(source, pattern.flags & ~re.U if pattern.flags & re.A else pattern.flags), "")

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
        for part in (literal, sample):
            if part:
                self.parts[part] = None
        return sample

    def node(self, node: tuple, before: str) -> str:
        code, argument = node
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            taken = _set_of(node, self.flags)
            if code is not codes.LITERAL:
                self.parts.update(dict.fromkeys(taken[:3]))
            return taken[0]
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            low, high, inner = argument
            sample = self.sequence(inner, before)
            if high > 20:
                self.pumps[before, sample] = None
                if len(inner) == 1 and inner[0][0] in (codes.NOT_LITERAL, codes.ANY, codes.IN):
                    taken = _set_of(inner[0], self.flags)
                    self.pumps.update(dict.fromkeys((before, c) for c in [*taken[:6], "".join(taken)]))
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
        if code is codes.GROUPREF_EXISTS:
            return self.sequence(argument[1], before)
        return ""

    def of(self, length: int) -> Iterator[tuple[str, Callable[[int], str]]]:
        """For each text its name, and a function from a length to it."""


def texts(pattern: re.Pattern) -> dict[str, Callable[[int], str]]:
    made = Texts(pattern)
    out: dict[str, Callable[[int], str]] = {}
    words = [p for p in made.parts if p.isalpha() and len(p) > 2]  # one is as good as another
    for part in [p for p in made.parts if p not in words[3:]]:
        for around in (part, f"{part} "):
            out[ascii(around)] = lambda n, a=around: a * (n // len(a))
    for before, part in made.pumps:
        out[f"{before!a} + {part!a} * n"] = lambda n, b=before, p=part: b + p * (n // len(p)) + "\x00"
    return out


def run(pattern: re.Pattern, method: str) -> Callable[[str], object]:
    if method in ("sub", "subn"):
        return lambda text: pattern.sub("", text)
    if method in ("match", "fullmatch", "search"):
        # a search that finds nothing has looked at the whole text, one that finds something stops
        if method == "search":
            return lambda text: sum(1 for _ in pattern.finditer(text))
        return getattr(pattern, method)
    return lambda text: sum(1 for _ in pattern.finditer(text))


def slow(work: Callable[[str], object], tried: dict[str, Callable[[int], str]], encode: bool = False) -> list[str]:
    """The names of the texts on which some work takes more than in proportion to their length."""
    found = []

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for name, text in tried.items():
            for length in (300, SHORT, LONG):
                made = text(length)
                arg = made.encode("latin-1", "replace") if encode else made
                signal.setitimer(signal.ITIMER_VIRTUAL, 3)
                try:
                    took = cpu_seconds(lambda arg=arg: work(arg))
                    if length == SHORT:
                        short = took
                        if took < ENOUGH:
                            break
                    if length == LONG and took > GROWTH * min(short, cpu_seconds(lambda t=text(SHORT): work(t.encode("latin-1", "replace") if encode else t), 3)):
                        found.append(f"{name}: {short:.4f} s, {took:.4f} s")
                except TimeoutError:
                    found.append(f"{name}: more than 3 s for {length}")
                    break
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return found


def forms() -> dict[str, tuple[re.Pattern, Callable[[str], object]]]:
    """The forms of secrets, each with its search: at all places of its word in a text."""
    out = {}
    for search in (secrets._TOKENS, secrets._PLACED, secrets._FOREIGN):
        for form in {f for forms in search.forms.values() for f in forms}:
            def work(text: str, form=form) -> None:
                at = text.find(form.word)
                while at >= 0:
                    form.found(text, at)
                    at = text.find(form.word, at + 1)
            out.setdefault(f"{form.kind}: {form.pattern}", (secrets._compiled(form.pattern), work))
    for word, _, table, row in secrets._DATA_FILE["tables"]:
        for each in (table, row):
            pattern = secrets._compiled(each, re.I)
            out[f"table {word}: {each}"] = (pattern, run(pattern, "finditer"))
    for name in secrets._EXPRESSIONS:
        if name != "body":
            out[name] = (re.compile(secrets._EXPRESSIONS[name], re.X if name in ("escapes", "backslashes") else 0), secrets.secrets_in)
    return out


if __name__ == "__main__":
    import sys, time
    t0 = time.process_time()
    n = 0
    if sys.argv[1] == "forms":
        for k, (pattern, work) in forms().items():
            tt = texts(pattern)
            n += len(tt)
            t1 = time.process_time()
            bad = slow(work, tt)
            dt = time.process_time() - t1
            if bad or dt > 2:
                print(f"{k[:100]!a} {len(tt)} texts {dt:.1f} s", flush=True)
                for b in bad[:6]:
                    print("      ", b[:160])
        print(n, time.process_time() - t0)
        sys.exit()
    for k, v in sorted(expressions().items()):
        if '.lab.' in k: continue
        if len(sys.argv) > 1 and not re.search(sys.argv[1], k):
            continue
        tt = texts(v[0])
        n += len(tt)
        t1 = time.process_time()
        bad = slow(run(*v), tt, isinstance(v[0].pattern, bytes))
        dt = time.process_time() - t1
        if bad or dt > .4:
            print(f"{k} {v[1]} {ascii(v[0].pattern)[:300]} {len(tt)} texts {dt:.1f} s", flush=True)
            for b in bad[:6]:
                print("      ", b[:160])
    print(n, time.process_time() - t0)
