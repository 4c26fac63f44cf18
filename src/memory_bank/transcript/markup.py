"""The text of a page of HTML: what its readers see, with its links and forms."""

from __future__ import annotations

import re
from html import unescape

HEAD = 2_000
"""Characters in which a page begins."""
LEAST_SHOWN = 30
"""A page of which less than one part in 30 is text has its content in scripts, which are then kept."""
MOST_SHOWN = 0.9
"""A page of which more than this share is text is shown as it is, with its few tags."""
_PAGE = re.compile(r"^[ \t]*<(?:!doctype html|html|head|body)\b", re.I | re.M)
_SOURCE = re.compile(  # which is copied to the letter: of a component, a template, a document with a sample, a change
    r"^[ \t]*(?:```|~~~|@@ |diff |import |export |const |return\b|function |<\?php)|^[^\n<]*(?:\(|\) ?\{)$|\{%|<%",
    re.M,
)
_TAG = re.compile(
    r"<(?:(!--)|[!?][^<>]*+>|(/?)([a-z][\w:-]{0,40})((?:[\s/](?:[^<>\"']++|\"[^\"<]*+\"|'[^'<]*+'|[\"'])*+)?)>)",
    re.I,
)
_CLOSINGS = {
    "!--": re.compile("-->"),
    **{n: re.compile(rf"</{n}[^<>]*+>", re.I) for n in ("script", "style", "svg", "template")},
}
_ATTRIBUTE = re.compile(r"(?<![\w:-])([a-z]{2,11})\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'>]++))", re.I)
_IN_LINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|nobr|q|s|samp|small|span"
    "|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_CONTROL = re.compile("form|input|select|option|textarea|button|iframe|video|audio|source|embed|object")
_KEPT = ("id", "name", "type", "value", "placeholder", "action", "method", "src", "data")
_STATE = re.compile(r"\b(?:selected|checked|disabled)\b", re.I)
_NOWHERE = ("#", "javascript:")
_HEADING = re.compile(r"h[1-6]")


def page_text(text: str) -> str:
    """Return the text of a page, with links as ``[text](address)``; "" for a text that is no page. Linear.

    Left out are styles, scripts, drawings, comments, what tags say to a browser alone, and menus that are repeated.
    """
    page = _PAGE.search(text, 0, HEAD)
    if page is None or _SOURCE.search(text, 0, page.end()):
        return ""
    shown = _text_of(text, with_scripts=False)
    if LEAST_SHOWN * len(shown) < len(text):
        return _text_of(text, with_scripts=True)
    return shown if len(shown) < MOST_SHOWN * len(text) else ""


def _text_of(text: str, *, with_scripts: bool) -> str:
    out, at, last = list[str](), 0, "\n"
    is_exact = True  # before its first tag, and in <pre>
    link: tuple[int, str] | None = None  # where its label begins in `out`, and its address
    headers = cells = 0  # of the row
    unclosed = set[str]()
    tag = _TAG.search(text)
    while tag:
        words = text[at : tag.start()]
        words = words if is_exact else " ".join(f".{words}.".split())[1:-1]
        out.append(unescape(words[1:] if words[:1] == " " and last.isspace() else words))
        name, closes, at = (tag[1] or tag[3] or "").lower(), bool(tag[2]), tag.end()
        new = ""
        if not closes and name in _CLOSINGS and name not in unclosed and text[at - 2] != "/":
            start, at = at, _end_of(text, name, at)
            unclosed.update([name] if at == start else [])
            new = f"\n{text[start:at]}\n" if with_scripts and name == "script" else ""
        elif name == "a":
            if link is not None:
                label, out[link[0] :] = "".join(out[link[0] :]).strip(), []
                new = f"[{label}]({link[1]})"
            address = "" if closes else _attributes(tag[4]).get("href", "")
            link = (len(out) + 1, address) if address and not address.startswith(_NOWHERE) else None
        elif name == "tr":
            new = "\n" + "|---" * headers if headers > 1 and not cells else "\n"
            headers = cells = 0
        elif name in ("td", "th"):
            new = "" if closes else "| " if last.isspace() else " | "
            headers, cells = headers + (name == "th" and not closes), cells + (name == "td" and not closes)
        else:
            new = _replacement(name, closes, tag[4])
        out.append(new)
        last = (new or out[-2] or last)[-1]
        is_exact = (name in ("pre", "textarea") and not closes) or (
            is_exact and _IN_LINE.fullmatch(name) is not None
        )
        tag = _TAG.search(text, at)
    out.append(text[at:])
    lines, seen = list[str](), set[str]()
    for line in "".join(out).split("\n"):
        if line.strip(" |") and line not in seen:
            lines.append(line.rstrip())
            seen.update([line] if "](" in line else [])
    return "\n".join(lines)


def _end_of(text: str, name: str, at: int) -> int:
    """Where an element ends; one that is cut off before the last empty line, after which a client says so."""
    if close := _CLOSINGS[name].search(text, at):
        return close.end()
    if name in ("svg", "template"):  # never closed: what follows is shown
        return at
    empty = text.rfind("\n\n", at, len(text.rstrip()))
    return len(text) if empty < 0 else empty


def _attributes(written: str) -> dict[str, str]:
    """The attributes of a tag by their names."""
    pairs = _ATTRIBUTE.findall(written)
    return {name.lower(): unescape(a or b or c).strip() for name, a, b, c in pairs}


def _replacement(name: str, closes: bool, written: str) -> str:
    """The text that replaces a tag: a line break, a heading's sign, an image's address, a form's field."""
    if name == "img":
        has = _attributes(written)
        source = has.get("src", "")
        return f"![{has.get('alt', '')}]({source})" if source and not source.startswith("data:") else ""
    if _IN_LINE.fullmatch(name):
        return ""
    if closes:
        return "" if _CONTROL.fullmatch(name) else "\n"
    if name == "meta":
        has = _attributes(written)
        return f"\n{has.get('content', '')}\n" if has.get("name", "").lower() == "description" else ""
    if _CONTROL.fullmatch(name):
        has = _attributes(written)
        fields = [f'{key}="{has[key]}"' for key in _KEPT if has.get(key)]
        states = _STATE.findall(_ATTRIBUTE.sub("", written)) if fields else ()
        return f"\n<{' '.join([name, *fields, *states])}>" if len(fields) > ("type" in has) else ""
    return f"\n{'#' * int(name[1])} " if _HEADING.fullmatch(name) else "\n- " if name == "li" else "\n"
