"""Steps as one self-contained HTML page: nothing is loaded from anywhere, every text is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from memory_bank.history.replaying import facts, told
from memory_bank.history.steps import Step, TaskStep

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
details { border-left: 4px solid var(--soft); margin: .6rem 0; padding: .2rem .8rem; }
summary { cursor: pointer; } summary small, dt { color: var(--soft); }
.system_prompt { border-color: #888; } .task { border-color: #27a; } .planning { border-color: #85c; }
.action { border-color: #2a7; } .failed { border-color: #c33; } .scratchpad { border-color: #c80; }
.final_answer { border-color: #27a; }
pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
dd { margin: 0 0 .5rem 1rem; } img { max-width: 16rem; max-height: 12rem; }
"""


def render_page(steps: Sequence[Step], tokens: int, counter: str) -> str:
    """HTML of a run. Images that are data are shown; images elsewhere are named by their URL."""
    kinds = Counter(s.type for s in steps)
    said = ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in kinds.items())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>A run, step by step</title>",
        "<meta name=viewport content='width=device-width'>",
        f"<style>{_STYLE}</style><h1>A run, step by step</h1>",
        f"<p><b>{len(steps):,}</b> steps ({escape(said)}), "
        f"<b>{tokens:,}</b> tokens by {escape(counter)}.</p>",
    ]
    parts += [_step(s) for s in steps]
    return _encodable("\n".join([*parts, "</html>"]))


def _step(step: Step) -> str:
    title, rows = told(step)
    kind = escape(step.type) + (" failed" if getattr(step, "error", None) is not None else "")
    opened = " open" if step.type not in ("system_prompt", "planning") else ""
    items = "".join(f"<dt>{escape(label)}<dd><pre>{escape(text)}</pre>" for label, text in rows)
    images = "".join(_image(url) for url in step.images) if isinstance(step, TaskStep) else ""
    return (
        f"<details class='{kind}'{opened}><summary>{escape(title)} <small>{escape(facts(step))}</small>"
        f"</summary><dl>{items}</dl>{images}</details>"
    )


def _image(url: str) -> str:
    if url.startswith("data:image/"):
        return f"<img alt='an image of the task' src='{escape(url)}'>"
    return f"<p><code>{escape(url)}</code></p>"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
