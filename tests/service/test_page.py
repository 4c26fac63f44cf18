"""The page's files: sent with a policy that lets in nothing else, cached by their content, readable in any light."""

import re
from pathlib import Path

import pytest
from tests.service.serving import serve_here

import memory_bank
from memory_bank.service.page.files import POLICY

STATIC = Path(memory_bank.__file__).parent / "service" / "page" / "static"
STYLE = (STATIC / "style.css").read_text()
SCRIPTS = {p.name: p.read_text() for p in STATIC.glob("*.js")}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serve_here(tmp_path_factory.mktemp("page") / "bank.db") as service:
        yield service


def test_the_page_comes_with_a_strict_policy(service):
    answer = service.ask("/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "'unsafe" not in POLICY and "default-src 'none'" in POLICY and "frame-ancestors 'none'" in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert service.ask("/", "HEAD").body == b""


@pytest.mark.parametrize("name", sorted(p.name for p in STATIC.iterdir()))
def test_every_file_is_served_and_known_again_by_its_content(service, name):
    answer = service.ask(f"/static/{name}")
    assert answer.status == 200
    assert answer.body == (STATIC / name).read_bytes()
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-cache"
    again = service.ask(f"/static/{name}", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert service.ask(f"/static/{name}", if_none_match='"another"').status == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Fpage.py", "%2e%2e/page.py", "..%5Cpage.py", "%00", "__init__.py"]
)
def test_nothing_else_is_served(service, name):
    answer = service.ask(f"/static/{name}")
    assert answer.status == 404
    assert b"import" not in answer.body


def test_the_page_loads_nothing_from_elsewhere_and_has_no_script_or_style_within():
    text = (STATIC / "index.html").read_text()
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", text)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=|javascript:", text)
    everything = "\n".join([text, STYLE, *SCRIPTS.values()])
    assert not re.search(r"@import|url\(|importScripts|//cdn", everything)
    assert set(re.findall(r"https?://[^\s\"'`]+", everything)) == {"http://www.w3.org/2000/svg"}
    for name in re.findall(r"from \"\./([\w.]+)\"", everything):
        assert name in SCRIPTS


def test_no_script_ever_makes_markup_of_text():
    for name, text in SCRIPTS.items():
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc"
            r"|createContextualFragment|setHTML|parseFromString",
            text,
        )
        assert not found, (name, found)


# -- contrast: WCAG 2.2, 1.4.3 (text, 4.5:1) and 1.4.11 (parts of controls and graphics, 3:1)


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


LIGHT = colours(STYLE[STYLE.index(":root") : STYLE.index("@media (prefers-color-scheme: dark)")])
DARK = LIGHT | colours(
    STYLE[STYLE.index("@media (prefers-color-scheme: dark)") : STYLE.index("* { box-sizing")]
)


def channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(rgb: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: list[float], b: list[float]) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(colour: str, share: float, below: str) -> list[float]:
    return [share * a + (1 - share) * b for a, b in zip(channels(colour), channels(below), strict=True)]


SURFACES = ("paper", "panel", "raised", "chosen")
TEXTS = ("ink", "dim", "accent", "kept", "part", "listed", "left", "new", "error")
GRAPHICS = ("edge", "accent", "kept", "part", "listed", "left", "new", "focus")


@pytest.mark.parametrize(("name", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_texts_and_graphics_have_enough_contrast(name, theme):
    assert contrast(channels("#000000"), channels("#ffffff")) == pytest.approx(21)
    assert contrast(channels("#777777"), channels("#ffffff")) == pytest.approx(4.478, abs=0.01)
    weak = []

    def check(what, foreground, background, least=4.5):
        if (found := contrast(foreground, background)) < least:
            weak.append(f"{what}: {found:.2f}")

    for surface in SURFACES:
        for text in TEXTS:
            check(f"{text} on {surface}", channels(theme[text]), channels(theme[surface]))
        for graphic in GRAPHICS:
            check(f"graphic {graphic} on {surface}", channels(theme[graphic]), channels(theme[surface]), 3)
    for fate in ("kept", "part", "listed", "left"):
        for share, texts in ((0.07, ("ink", "dim")), (0.14, ("ink", "dim")), (0.26, ("ink",))):
            below = mixed(
                theme[fate], share, theme["raised"]
            )  # a line of memory, under the pointer, its worth
            for text in texts:
                check(f"{text} on {share:.0%} of {fate}", channels(theme[text]), below)
    check("what was found", channels(theme["mark-ink"]), channels(theme["mark"]))
    assert not weak, f"{name}: {weak}"


def test_the_tints_are_those_that_are_checked():
    assert set(re.findall(r"var\(--fate\) (\d+)%", STYLE)) == {"7", "14", "26", "45"}
    used = set(re.findall(r"(?<![-\w])color: var\(--([\w-]+)\)", STYLE))
    assert used <= {*TEXTS, "fate", "mark-ink"}
    assert not re.findall(r"(?<![-\w])#[0-9a-f]{3,8}\b", STYLE[STYLE.index("* { box-sizing") :])


def test_motion_and_focus_are_as_users_ask():
    assert "prefers-reduced-motion: reduce" in STYLE
    assert ":focus-visible { outline: 2px solid var(--focus)" in STYLE
    assert STYLE.count("outline: none") == 1  # a heading that was only given the focus to be read
