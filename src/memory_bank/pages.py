"""HTML pages and drawings from templates: self-contained, everything escaped."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render(template: str | Path, **values: object) -> str:
    """A file of ``templates``, or a file elsewhere, filled in; characters that no page may hold become U+FFFD."""
    if isinstance(template, Path):
        return _environment().from_string(template.read_text("utf-8")).render(**values)
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("memory_bank"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: _NOT_IN_XML.sub("\ufffd", value) if type(value) is str else value,
        keep_trailing_newline=True,
    )
