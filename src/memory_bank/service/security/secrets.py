"""Finds secrets in text: makers' keys and tokens, private keys, and values after a name such as ``password``.

The forms are data (``secrets.toml``). They are looked for in a text as it is written and, where it has escapes or
colours, also as it is meant; spans are always those of the text as written. A search starts at a fixed word (a
beginning such as ``sk-``), and continues with an expression of bounded length, so that the time is linear in the
length of any text. docs/redaction.md lists what is found.
"""

from __future__ import annotations

import base64
import html
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

Span = tuple[int, int, str]  # from, to, kind
_Matches = list[re.Match[str]]

_LONGEST = 4_000  # characters of a value that follows its name
_MARKED = "[redacted: "
_PIECE = 250_000  # characters searched at once: Python runs no other thread during a search
_DATA_FILE = tomllib.loads(Path(__file__).with_name("secrets.toml").read_text("utf-8"))
_EXPRESSIONS = _DATA_FILE["expressions"]
_RE = {name: re.compile(expression) for name, expression in _EXPRESSIONS.items()}


class _Form(NamedTuple):
    """One rule: the word that a search looks for, the expression, and how far before the word it may start."""

    word: str
    kind: str
    pattern: str
    before: int
    is_secret: Callable[[str], bool]

    def found(self, text: str, at: int) -> Span | None:
        search = _compiled(self.pattern)
        match = (
            search.search(text, max(0, at - self.before), at + 200) if self.before else search.match(text, at)
        )
        if not match or not match.start() <= at < match.end() or text.endswith(_MARKED, 0, match.start()):
            return None
        start, end = _unquoted(text, *match.span(match.lastindex or 0))
        is_secret = end > start and self.is_secret(text[start:end])
        return (match.start() if match.lastgroup == "all" else start, end, self.kind) if is_secret else None


class _Search(NamedTuple):
    """A search for the first words of forms: an expression for any of them, and the forms by that part of a word."""

    words: re.Pattern[str]
    forms: dict[str, list[_Form]]

    def hits(self, text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
        """Where which first words are in a part of a text."""
        while match := self.words.search(text, start, end):
            yield match.start(), match[0]
            start = match.start() + 1


@cache
def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """An expression whose quotes may be escaped."""
    return re.compile(pattern.replace("[\"']", "(?:\\\\{0,64}[\"'])"), re.ASCII | flags)


def _one_of(words: Collection[str]) -> str:
    """An expression for the shortest of some words, branched at each letter: one pass over a text for all of them."""
    tails: dict[str, list[str]] = {}
    for word in sorted(words):
        tails.setdefault(word[:1], []).append(word[1:])
    if "" in tails:
        return ""
    branches = [re.escape(letter) + _one_of(rest) for letter, rest in tails.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _search(forms: list[_Form], others: Collection[str] = ()) -> _Search:
    words = {*others, *(form.word for form in forms)}
    shortest = {word for word in words if not any(word[:n] in words for n in range(1, len(word)))}
    behind = {form.word for form in forms if form.before}
    inside = {word for word in words if others or word in behind or not word[0].isalnum()}
    first = rf"|(?:\b|(?<=_)){_one_of(words - inside)}" if words - inside else ""
    return _Search(
        re.compile(_one_of(inside) + first, re.ASCII),
        {word: [form for form in forms if form.word.startswith(word)] for word in words if word in shortest},
    )


def _forms(rows: list[list[Any]]) -> list[_Form]:
    """The forms in rows of the data file."""
    checks = {"?": _is_password, "#": _is_strong, "!": _is_random, "@": _is_basic}
    return [
        _Form(
            word,
            kind.rstrip("?#!@"),
            pattern.replace("WORD", re.escape(word)),
            before[0] if before else 0,
            checks.get(kind[-1], _is_value),
        )
        for kind, words, pattern, *before in rows
        for word in (words.split() if isinstance(words, str) else words)
    ]


_LONGEST_WORD = 40
_NAMES = {kind: "|".join(names.split()) for kind, names in _DATA_FILE["names"].items()}
_NAMES["password"] += "|" + "".join(c for c in _NAMES["password"].casefold() if c.isalnum() or c == "|")
_CORES = set(_NAMES.pop("cores").split("|"))  # parts of fields' names
_NAME_PARTS = _CORES | {  # other names, from their first foreign letter on
    re.sub(r"\A[ -~]+(?=[^ -~])", "", name)
    for name in _NAMES["password"].split("|")
    if not any(core in name for core in _CORES)
}

# --- names and values

_PASSWORD = re.compile(rf"(?:{_NAMES['password']})(?:{_NAMES['after']})?\d{{0,3}}\Z")
_SECRET = re.compile(rf"(?:{_NAMES['secret']})(?:{_NAMES['after']}){{0,2}}\d{{0,3}}\Z")
_MAKER = re.compile(rf"(?:{_NAMES['maker']})[a-z0-9]{{0,20}}(?:key|token|secret|sk|pat|auth)\d{{0,2}}\Z")
_NO_TOKEN = re.compile(rf"(?:{_NAMES['no_token']})tokens?\Z")
_VALUE_FIRST = _compiled(_EXPRESSIONS["value_first"], re.I)
_NO_WORDS = frozenset(_DATA_FILE["no_secrets"]["words"].split())
_NO_SECRET = re.compile("|".join(_DATA_FILE["no_secrets"]["forms"]), re.S | re.I)

# --- escapes

_MAY_ESCAPE = ("\\u", "\\U", "\\x", "\\0", "\\e[", "\\/", "\\`", "\\&", "\\=", "\\:", "\\\n")
_ALIKE = {"\xa0": " ", "\u3000": " ", "＝": "=", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"}
_FLAT = (
    ("\\n", " \n"), ("\\r", " \r"), ("\\t", "\t\t"), ("<![CDATA[", " " * 9), ("]]>", " " * 3),
    ("^[[", "\x1b\x1b["), ("␛", "\x1b"),
)  # fmt: skip
_AROUND = 600  # characters around an escape, in which a secret may be


def secrets_in(text: str) -> list[Span]:
    """Return the spans of secrets in a text; they may overlap."""
    for written, meant in () if text.isascii() else _ALIKE.items():
        text = text.replace(written, meant)
    flat = text
    for written, meant in _FLAT:  # as it is meant, at the same places
        if written in flat:
            flat = flat.replace(written, meant)
    spans = list(_found(text, flat))
    for start, end, escapes in _around_escapes(flat):
        plain, starts, ends = _unescaped(flat, start, end, escapes)
        spans += [(starts[a], ends[b - 1], kind) for a, b, kind in _found(plain, plain) if a < b]
    return [span for span in spans if span[0] < span[1]]


@cache
def _escape(backslashes: bool, invisible: bool) -> re.Pattern[str]:
    """An expression for the escapes that a text may have: the fewer, the faster."""
    names = ["escapes", *["backslashes"] * backslashes, *["invisible"] * invisible]
    return re.compile("|".join(_EXPRESSIONS[name] for name in names), re.X)


def _around_escapes(text: str) -> Iterator[tuple[int, int, _Matches]]:
    """The parts of a text around escapes, and the escapes in each."""
    escapes: _Matches = []
    escape = _escape(any(written in text for written in _MAY_ESCAPE), not text.isascii())
    for start, end in _pieces(text):
        for match in escape.finditer(text, start, end):
            if escapes and match.start() < escapes[-1].end():  # where two pieces meet
                continue
            if escapes and match.start() - escapes[-1].end() > 2 * _AROUND:
                yield max(0, escapes[0].start() - _AROUND), escapes[-1].end() + _AROUND, escapes
                escapes = []
            escapes.append(match)
    if escapes:
        yield max(0, escapes[0].start() - _AROUND), min(len(text), escapes[-1].end() + _AROUND), escapes


def _unescaped(text: str, at: int, end: int, escapes: _Matches) -> tuple[str, list[int], list[int]]:
    """A part of a text without its escapes, and where each of its characters begins and ends in the whole text."""
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for m in [*escapes, None]:
        upto = m.start() if m else end
        out.append(text[at:upto])
        starts += range(at, upto)
        ends += range(at + 1, upto + 1)
        if m and (meant := _meant(m)):
            out.append(meant)
            starts.append(m.start())
            ends.append(m.end())
        at = m.end() if m else end
    return "".join(out), starts, ends


def _meant(escape: re.Match[str]) -> str:
    """The character that an escape stands for, or nothing for a colour or an invisible character."""
    groups = escape.groupdict()
    if code := groups.get("u") or groups.get("x") or escape["p"]:
        meant = chr(int(code, 16))
        return "" if "\u200b" <= meant <= "\u206f" else _ALIKE.get(meant, meant)
    return html.unescape(f"&{escape['e']}")[:1] if escape["e"] else (groups.get("c") or "").replace("\n", "")


def _found(text: str, flat: str) -> Iterator[Span]:
    """Secrets in a text; ``flat``: the same with line ends for their escapes."""
    lowered = (flat.replace("İ", "i") if "İ" in flat else flat).lower()
    if len(lowered) != len(flat):  # no other letter changes its length
        lowered = flat
    yield from _tokens(flat)
    for search in (_PLACED,) if lowered.isascii() else (_PLACED, _FOREIGN):
        yield from _after_names(text, flat, lowered, search)
    if "alue" in flat:
        for m in _VALUE_FIRST.finditer(flat):
            group = next(n for n in (1, 2, 3) if m[n])
            if kind := named_secret(m[4], m[group]):
                yield *m.span(group), kind
    for word, separator, table, row in _DATA_FILE["tables"]:
        for m in _compiled(table, re.I).finditer(flat) if word in lowered else ():
            rows = [(m.start(2) + r.start(1), r[1]) for r in re.compile(row).finditer(m[2])]
            yield from _below(m[1], rows, separator)
    if "PRIVATE KEY" in flat:
        yield from _private_keys(flat)
    if "ecret" in flat and "kind" in flat:
        yield from _kubernetes(flat)


def _after_names(text: str, flat: str, lowered: str, search: _Search) -> Iterator[Span]:
    """Secrets at places that words tell, and after fields' names."""
    done = below = 0
    for piece in _pieces(lowered):
        for at, first in search.hits(lowered, *piece):
            yield from (span for _, span in _formed(flat, lowered, at, search.forms[first]))
            if first not in _NAME_PARTS:
                continue
            if at >= below and _RE["head"].match(flat, at):
                below, spans = _table(flat, at)
                yield from spans
            if at >= done and (keyed := _RE["keyed"].match(flat, at)):
                yield from _keyed(flat, at, keyed)
            if at >= done and (named := _RE["assigned"].match(flat, at)):
                done = named.start("quote" if named["quote"] else "value")
                for span in _named(text, flat, at, named):
                    done = span[1]
                    yield span


def known_form(text: str) -> str | None:
    """The kind of the first secret with a fixed beginning (a provider's key or token) in a text, or None."""
    return next((kind for _, _, kind in _tokens(text)), None)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """The parts of a text that are searched at once. Other threads can run in between, however long it is."""
    return ((at, at + _PIECE + _LONGEST_WORD) for at in range(0, len(text), _PIECE))


def _tokens(text: str) -> Iterator[Span]:
    done: dict[_Form, int] = {}  # where the last token of a form ends: none of that form begins inside it
    for piece in _pieces(text):
        for long in _RE["long"].finditer(text, *piece):
            for at, first in _TOKENS.hits(text, *long.span()):
                forms = (
                    [f for f in _TOKENS.forms[first] if at >= done.get(f, 0)]
                    if done
                    else _TOKENS.forms[first]
                )
                for form, span in _formed(text, text, at, forms):
                    done[form] = span[1]
                    yield span


def _formed(text: str, where: str, at: int, forms: list[_Form]) -> Iterator[tuple[_Form, Span]]:
    for form in forms:
        if where.startswith(form.word, at) and (span := form.found(text, at)):
            yield form, span


def _unquoted(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the backslashes of the quote after it."""
    while text[end - 1] == "\\" and text[end : end + 1] in ('"', "'"):
        end -= 1
    return start, end


def _is_basic(value: str) -> bool:
    """Return whether a value is ``name:password`` in base64."""
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except ValueError:
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode().isprintable()


# --- private keys


def _private_keys(text: str) -> Iterator[Span]:
    """Private keys from their first to their last line, whatever stands around the lines, also if one is missing."""
    start = end = lines = 0
    is_private = False
    for line in _RE["key_line"].finditer(text):
        is_near = line.start() - end <= 400 and text.count("\n", end, line.start()) <= 6
        if not is_near or line["begin"]:
            if is_private and lines:
                yield start, end, "private key"
            start, lines, is_private = line.start(), 0, False
        is_private |= "PRIVATE" in line[0]
        lines += not (line["begin"] or line["end"])
        if line["end"]:
            if is_private and (lines or re.fullmatch(r"[\sA-Za-z0-9+/=]{9,}", text[end : line.start()])):
                yield start, line.end(), "private key"
            start, lines, is_private = line.end(), 0, False
        end = line.end()
    if is_private and lines:
        yield start, end, "private key"


_DATA = _compiled(_EXPRESSIONS["data"], re.M | re.X)
_ENTRY = _compiled(_EXPRESSIONS["entry"], re.M)


def _kubernetes(text: str) -> Iterator[Span]:
    """The values of Secrets of Kubernetes, as YAML and as JSON."""
    kind = ""
    for block in _DATA.finditer(text):
        kind = block["kind"] or kind
        if not block["kind"] and (block["after"] or kind) == "Secret":
            for entry in _ENTRY.finditer(text, *block.span("yaml" if block["yaml"] else "json")):
                start, end = _unquoted(text, *entry.span(entry.lastindex)) if entry.lastindex else (0, 0)
                if end > start and _is_value(text[start:end]):
                    yield start, end, "secret"


# --- tables


def _table(text: str, at: int) -> tuple[int, Iterator[Span]]:
    """Secrets below the names in the first line of a table, in which ``at`` is; and where the table ends."""
    head = _RE["line"].match(text, text.rfind("\n", max(0, at - 1_000), at) + 1)
    separator = next((s for s in ("|", "│", "\t", ",", ";", "  ") if head and s in head[1]), "")
    above = text[max(0, head.start() - 200) : max(0, head.start() - 1)].rpartition("\n")[2] if head else ""
    ruled = _RE["ruler"].fullmatch(above) is not None
    if not head or not separator or (separator in above and not ruled):
        return at, iter(())
    rows = []
    end = head.end()
    while line := _RE["line"].match(text, end):
        is_ruler = _RE["ruler"].fullmatch(line[1]) is not None
        if not is_ruler and separator not in line[1]:
            break
        ruled |= is_ruler
        rows += [] if is_ruler else [(line.start(), line[1])]
        end = line.end()
    return max(at, end), _below(head[1], rows if ruled or separator not in "|│" else [], re.escape(separator))


def _below(head: str, rows: list[tuple[int, str]], separator: str) -> Iterator[Span]:
    cell = re.compile(rf""" {{0,40}}("[^"]*"|'[^']*'|.*?) {{0,40}}(?:{separator}|\Z)""")
    names = [_RE["column"].fullmatch(cell_of[1].strip("\\\"'`* ")) for cell_of in cell.finditer(head)]
    if not all(names) or not any(part in head.lower() for part in _NAME_PARTS):
        return
    for at, row in rows:
        cells = list(cell.finditer(row))
        extra = len(cells) - len(names)  # an index before the row, the end of a text in JSON after it
        for name, cell_of in (
            zip(names * 2, cells[: len(names)] + cells[extra:], strict=True) if 0 <= extra < 3 else ()
        ):
            value = re.split(r"(?<!\\)\\*[\"'`]", cell_of[1].strip("\\\"'`"))[0]
            if name and name[1] and _is_password(value) and (kind := named_secret(name[1], value)):
                first = at + cell_of.start(1) + cell_of[1].index(value)
                yield first, first + len(value), kind


# --- values after names


def named_secret(name: str, value: object, *, sure: bool = True) -> str | None:
    """The kind of secret that a field's value is, or None; ``sure``: it can be no word of a program or sentence."""
    plain = "".join(c for c in name[-60:].casefold() if c.isalnum())
    is_password = _PASSWORD.search(plain) is not None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "password" if is_password and abs(value) >= 1_000 else None
    if not isinstance(value, str) or _MARKED in value or not _is_value(value):
        return None
    if is_password:
        return "password"
    if plain.endswith("authorization") and sure:
        return "authorization" if len(value) >= 16 and any(c.isdigit() for c in value) else None
    if plain.endswith(("cookie", "cookies")) and sure:
        return "cookie" if re.match(r"[\w.-]{1,100}=\S{8}", value) else None
    if any(c.isspace() for c in value):
        return None
    if plain in ("pass", "pw", "psw", "passe", "clave"):
        return "password" if _is_password(value) and (sure or value[:4] != "Test") else None  # PASS: TestName
    if re.search(r"[_.-](?:pass|pw|psw)\Z", name, re.I):
        return "password" if _is_mixed(value) or (sure and len(value) > 5 and not value.isdigit()) else None
    if plain.endswith("auth"):
        return "credentials" if len(value) >= 8 and _is_basic(value) else None
    if _SECRET.search(plain):
        if _RE["key_ids"].search(plain) and (_RE["slug"].match(value) or len(value) < 16):
            return None
        is_secret = len(value) >= 8 and (sure or _is_mixed(value))
    elif plain.endswith(("secret", "secrets")):
        is_secret = (
            len(value) >= 8 and _is_mixed(value) and (not _RE["slug"].match(value) or _is_strong(value))
        )
    elif plain.endswith(("token", "tokens")):
        is_secret = len(value) >= (28 if plain == "token" else 20) and _is_mixed(value)
        is_secret = is_secret and not _NO_TOKEN.search(plain) and not _RE["slug"].match(value)
    elif _MAKER.search(plain) and not plain.endswith("publickey"):
        is_secret = len(value) >= 16 and _is_random(value)
    else:
        is_env = name.isupper() and name.endswith("_KEY") and not name.endswith(("PUBLIC_KEY", "PRIMARY_KEY"))
        is_secret = is_env and len(value) >= 20 and _is_mixed(value) and not _RE["slug"].match(value)
    return "secret" if is_secret else None


def keyed_secret(name: str, value: object) -> str | None:
    """The kind of secret that a value is in an object with a name in the plural, such as ``passwords``, or None."""
    is_several = name.casefold().endswith(("s", "ter", "ren")) and "cred" not in name.casefold()
    is_made = is_several and isinstance(value, str) and _is_password(value)
    return named_secret(name, value) if is_made else None


def _named(text: str, flat: str, at: int, match: re.Match[str]) -> Iterator[Span]:
    """Values after a name: ``password=…``, ``"api_key": "…"``."""
    start = _start_of_name(flat, at)
    if flat.endswith(_MARKED, 0, start):
        return
    name = re.sub(r"\[\w*\]\Z", "", flat[start:at] + match["rest"])
    is_call = match["call"] is not None
    for first, last in _values(text, flat, match, name, start):
        value = re.sub(r"\s+", "", text[first:last]) if match["block"] else text[first:last]
        kind = named_secret(name, value, sure=match["quote"] is not None and not is_call)
        if kind is None or ((is_call or match["strict"]) and not _is_password(text[first:last])):
            continue
        if (
            kind == "secret"
            and name.lower() == "token"
            and _RE["passing"].search(flat[max(0, start - 80) : start])
        ):
            continue
        yield first, last, kind


def _keyed(text: str, at: int, match: re.Match[str]) -> Iterator[Span]:
    """Values in an object or a block below a name in the plural: ``passwords: {root: …}``."""
    group = "braces" if match["braces"] else "lines"
    name = text[_start_of_name(text, at) : match.start(group)].rstrip("\\\"' \t\r\n:=>{")
    for each in _RE["keyed_value"].finditer(text, *match.span(group)):
        if kind := keyed_secret(name, each[2] or each[3]):
            yield *each.span(2 if each[2] else 3), kind


def _values(text: str, flat: str, match: re.Match[str], name: str, start: int) -> Iterator[tuple[int, int]]:
    """The spans of what is assigned to a name; none for a word of a program or a sentence."""
    quote = match["quote"]
    at = match.end("block" if match["block"] else 0)
    if match["block"]:  # of YAML: the lines that are indented alike
        lines = re.compile(rf"[^\n]*(?:\n[+]?{re.escape(match['indent'])}[^\n]*)*").match(flat, at)
        yield at, min(lines.end() if lines else at, at + _LONGEST)
    elif quote is None:
        whole = re.compile(r"[^\s\"'`\x00-\x1f]{1,400}").match(
            flat, match.start("value")
        )  # of a list of variables
        if whole and name.isupper() and match["sign"] == "=" and not re.search(r"[(<{&]", whole[0]):
            yield whole.span()
            return
        if _is_loose(flat, match, start):
            yield match.span("value")
    else:
        quoted = _quoted(quote).match(text, at)
        while quoted:
            yield quoted.span()
            rest = _RE["list_item" if match["list"] else "part"].match(text, quoted.end() + len(quote))
            quoted = _quoted(rest[1]).match(text, rest.end()) if rest else None


@cache
def _quoted(quote: str) -> re.Pattern[str]:
    """An expression for what ends at a quote, which may be escaped."""
    inside = rf"(?:[^{quote}\\\n]|\\.)" if len(quote) == 1 else "."
    return re.compile(rf"{inside}{{0,{_LONGEST}}}?(?={re.escape(quote)})", re.S)


def _start_of_name(text: str, at: int) -> int:
    """Where a field's name begins, of which a part is at a position."""
    start = at
    while at - start < 30 and start and (text[start - 1].isalnum() or text[start - 1] in "_-."):
        start -= 1
    words = _RE["named_before"].search(text, max(0, at - 30), at) if start == at else None
    return words.start() if words else start


def _is_loose(text: str, match: re.Match[str], start: int) -> bool:
    """Return whether the unquoted text after a name is a value, not a word of a program or a sentence."""
    value, sign, after = match["value"], match["sign"], match["after"]
    if len(value) < 3 or after in ("(", "[") or sign in ("==", "===", "->") or match["call"] is not None:
        return False
    is_word = _RE["identifier"].match(value) is not None
    if "://" in value or _is_code(value) or (after and is_word and (" " in match[0] or after in ",)")):
        return False
    plain = re.sub(r"[^a-z0-9]", "", value.lower())
    if _PASSWORD.search(plain) and (is_word or "_" in value):  # password=new_password
        return False
    ends = _RE["ends"].match(text, match.end("value")) is not None
    if sign != ":":
        return ends or not (is_word and " " in match[0])
    if text[start - 1 : start] == ":" and ": " not in match[0]:  # of an ARN
        return False
    is_route = text[start - 1 : start] == "/" or value.isdigit()
    return not (value.isalpha() and not ends) and not (
        is_route and (len(value) < 4 or (value.isdigit() and not ends))
    )


def _is_value(value: str) -> bool:
    """Return whether a value is something, and not known to be harmless; of a long one the beginning tells."""
    bare = value.strip()[:_LONGEST]
    return bool(bare) and bare.lower().strip("!?.") not in _NO_WORDS and not _NO_SECRET.fullmatch(bare)


def _is_password(value: str) -> bool:
    """Return whether a value is made up, not a word of a sentence or of a program."""
    is_mixed = _is_mixed(value) or re.search(r"\w[!#$%^&*+]+\w", value) is not None
    return len(value) > 4 and is_mixed and _is_value(value) and not _is_code(value)


def _is_code(value: str) -> bool:
    return _RE["code"].match(value) is not None and not _is_random(value)


def _is_strong(value: str) -> bool:
    """Return whether a value is a password where words are as likely: it has signs, numbers or several changes."""
    is_varied = len(_RE["changes"].findall(value)) > 1 or _RE["strong"].search(value)
    return len(value) > 7 and bool(is_varied) and _is_password(value)


def _is_mixed(value: str) -> bool:
    """Return whether letters and digits, or upper and lower case, are mixed as in keys."""
    has_both = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return (has_both or _is_random(value)) and not any(map(str.isspace, value))


def _is_random(value: str) -> bool:
    """Return whether upper case, lower case and digits change as often as in keys, and not as in words."""
    changes = len(_RE["changes"].findall(value))
    return changes > 2 and 6 * changes > len(value)


_BEGINNINGS = [[f"{kind}!", words, _EXPRESSIONS["body"]] for kind, words in _DATA_FILE["beginnings"].items()]
_TOKENS = _search(_forms([*_DATA_FILE["tokens"], *_BEGINNINGS]))
_PLACED = _search(
    [f for f in _forms(_DATA_FILE["placed"]) if f.word.isascii()], {n for n in _NAME_PARTS if n.isascii()}
)
_FOREIGN = _search(  # apart, because most texts have none of these letters
    [f for f in _forms(_DATA_FILE["placed"]) if not f.word.isascii()],
    {n for n in _NAME_PARTS if not n.isascii()},
)
