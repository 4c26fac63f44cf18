"""Drives a headless Chromium over the DevTools protocol: real keys and clicks, nothing installed.

Whatever a page logs as an error, throws, or asks for against its content security policy fails the test that
looks (``Page.trouble``); Chromium is told to reach nothing but loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_KEYS = {  # name → (code, key code, text)
    "Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowUp": ("ArrowUp", 38, ""), "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""), "Home": ("Home", 36, ""), "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""), "PageDown": ("PageDown", 34, ""), "Backspace": ("Backspace", 8, ""),
    " ": ("Space", 32, " "),
}  # fmt: skip


def why_not() -> str | None:
    """Why no browser can be driven here, or None."""
    try:
        import websockets.sync.client  # noqa: F401
    except ImportError:
        return "driving Chromium needs the package websockets (extra dev)"
    return None if _binary() else "there is no Chromium here: install it, or name one by CHROMIUM"


def _binary() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((p for n in NAMES if (p := shutil.which(n))), None)


class Browser:
    """One Chromium; ``page`` opens a page of its own storage in it."""

    def __init__(self) -> None:
        from websockets.sync.client import connect

        self.folder = Path(tempfile.mkdtemp(prefix="chromium-"))
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={self.folder}", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--font-render-hinting=none", "--hide-scrollbars", "--force-color-profile=srgb",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
        ]  # fmt: skip
        command = [str(_binary()), *flags, "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = self.folder / "DevToolsActivePort"
        until = time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n")):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.02)
        port, path = told.read_text().split()
        self.socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, ping_interval=None)
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """A command's result; events that come meanwhile are kept."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            got = json.loads(self.socket.recv(timeout=60))
            if got.get("id") == number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']['message']}")
                result: dict[str, Any] = got["result"]
                return result
            if "method" in got:
                self._events.append(got)

    def events(self, session: str) -> list[dict[str, Any]]:
        """The events of a page so far."""
        return [e for e in self._events if e.get("sessionId") == session]

    def page(self, url: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> Page:
        """A page with nothing stored, shown at a size."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            page.send(f"{domain}.enable")
        page.size(width, height)
        page.look(dark=dark)
        page.go(url)
        return page

    def close(self) -> None:
        """End it."""
        try:
            self.send("Browser.close")
            self.socket.close()
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    """A page as its user has it: keys, clicks, what is to be seen."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser = browser
        self.session = session
        self.context = context
        self.expected: tuple[str, ...] = ()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A DevTools command to this page."""
        return self.browser.send(method, self.session, **params)

    def go(self, url: str) -> None:
        """Load a URL."""
        before = self._loads()
        self.send("Page.navigate", url=url)
        eventually(lambda: self.js("1") and self._loads() > before, 60)

    def _loads(self) -> int:
        return sum(e["method"] == "Page.loadEventFired" for e in self.browser.events(self.session))

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        got = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in got:
            raise AssertionError(f"{expression}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def wait(self, condition: str, timeout: float = 20.0) -> Any:
        """The value of an expression as soon as it is true."""
        until = time.monotonic() + timeout
        while not (value := self.js(f"(v => v instanceof Node || v)({condition})")):
            if time.monotonic() > until:
                raise AssertionError(f"never came true: {condition}\n{self.text()[:600]}")
            time.sleep(0.03)
        return value

    def text(self, selector: str = "body") -> str:
        """What is to be read there."""
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''") or ""

    def texts(self, selector: str) -> list[str]:
        """What is to be read in each of them."""
        found: list[str] = self.js(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)"
        )
        return found

    def press(self, key: str, times: int = 1, *, shift: bool = False) -> None:
        """Press a key by its name."""
        code, number, text = _KEYS.get(key, ("", ord(key[0].upper()), key))
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        for _ in range(times):
            down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            self.send("Input.dispatchKeyEvent", **common, **down)
            self.send("Input.dispatchKeyEvent", **common, type="keyUp")

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def click(self, selector: str, index: int = 0) -> None:
        """A mouse click in the middle of an element."""
        self.wait(f"document.querySelectorAll({json.dumps(selector)}).length > {index}")
        x, y = self.js(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{index}];"
            " e.scrollIntoView({block: 'nearest', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def focused(self) -> str:
        """The focused element: its tag, its id or class, what is to be read there."""
        return str(
            self.js(
                "(e => `${e.tagName.toLowerCase()}#${e.id}.${e.className} ${e.getAttribute('aria-label') ??"
                " e.innerText ?? ''}`)(document.activeElement)"
            )
        )

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """The size of what is shown; ``phone``: as a phone shows it, at two dots a pixel."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip

    def look(self, *, dark: bool, still: bool = True) -> None:
        """Colours and motion as a user asks for them."""
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce" if still else "no-preference"
        self.send(
            "Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in features.items()]
        )

    def requests(self, part: str = "") -> list[str]:
        """The URLs that were asked for so far, those with ``part`` in them."""
        self.js("0")  # so that what has happened has arrived
        sent = [e for e in self.browser.events(self.session) if e["method"] == "Network.requestWillBeSent"]
        return [u for e in sent if part in (u := str(e["params"]["request"]["url"]))]

    def trouble(self) -> list[str]:
        """What went wrong: errors logged or thrown, policies violated, requests beyond this host."""
        sent = self.requests()
        found = []
        for event in self.browser.events(self.session):
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] == "error":
                found.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
                found.append(json.dumps(told["args"])[:500])
        found += [url for url in sent if not url.startswith(("http://127.0.0.1", "data:", "about:"))]
        return [t for t in found if not any(e in t for e in self.expected)]

    def close(self) -> None:
        """Close it, with what it stored."""
        self.browser.send("Target.disposeBrowserContext", browserContextId=self.context)


def eventually(condition: Callable[[], Any], timeout: float = 20.0) -> Any:
    """What ``condition`` returns, as soon as that is true."""
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.03)
    return value
