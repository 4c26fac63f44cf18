"""An agent's own files, in a folder called ``/memories``.

An agent works on them with the six commands of Anthropic's memory tool (``memory_20250818``). Answers and errors have
the texts of Anthropic's SDK, to the byte (``anthropic/lib/tools/_beta_builtin_memory_tool.py``, version 2.12). A
folder is always listed with a size of 4K.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database, as_database
from memory_bank.bank.keys import DEFAULT
from memory_bank.bank.rows import is_name
from memory_bank.bank.schema import files
from memory_bank.errors import ConfigError, FileError
from memory_bank.transcript.quoting import sendable

ROOT = "/memories"
COMMANDS = {
    "view": ("path",), "create": ("path", "file_text"), "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"), "delete": ("path",), "rename": ("old_path", "new_path"),
}  # fmt: skip
"""The parameters that each command needs; ``view`` may have ``view_range`` besides."""
MOST_BYTES, MOST_FILES = 2**20, 1_000
"""Bytes of all files of a project; files and folders of a project."""
LONGEST_PATH, LONGEST_NAME = 1_000, 255
"""Bytes of a path, and of each name in it."""
MOST_PLACES, LONGEST_QUOTE = 200, 2_000
"""Lines named, and characters quoted, of an ``old_str`` that is not unique or not in the file."""
_LIMITS = f"at most {MOST_BYTES:,} bytes in {MOST_FILES:,} files and folders"
_FULL = f"A project has {_LIMITS}: delete or shorten some first."
_PATHS = (
    f"A path has at most {LONGEST_PATH:,} bytes, each name in it {LONGEST_NAME}, and only characters that can be "
    "printed: choose another one."
)
Tree = dict[str, str | None]
"""The texts of all files of a project by path; None: a folder."""
_f = files.c


class MemoryFiles:
    """The files of one project of a namespace; no path leads to the files of another. Several processes may use them.

    ``redact`` returns a text without what must not be stored. Raises ConfigError for a name that is not 1 to 180
    printable characters.
    """

    def __init__(
        self,
        database: Database | str | Path | None = None,
        project: str = "default",
        *,
        namespace: str | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        if not is_name(project, 180) or not project.isprintable():
            raise ConfigError("the name of a project is 1 to 180 printable characters.")
        self.database = as_database(database)
        self._key = {"namespace": namespace or DEFAULT, "project": project}
        self._mine = sa.and_(*(_f[name] == value for name, value in self._key.items()))
        self._redact = redact

    def run(self, parameters: Mapping[str, Any]) -> str:
        """The answer to a command with its parameters. Raises FileError for the model, StorageError."""
        name = parameters.get("command")
        if not isinstance(name, str) or name not in COMMANDS:
            raise FileError(f"Unknown command: {str(name)[:80]}")
        values = {p: parameters.get(p) for p in COMMANDS[name]}
        for parameter, value in values.items():
            kind, kind_name = (int, "whole number") if parameter == "insert_line" else (str, "text")
            if not isinstance(value, kind) or isinstance(value, bool):
                raise FileError(f"{name} needs the parameter {parameter}, a {kind_name}.")
            longest = 4 * LONGEST_PATH if parameter.endswith("path") else MOST_BYTES
            if isinstance(value, str) and len(value) > longest:
                raise FileError(_PATHS if parameter.endswith("path") else _FULL)
        needed = [self._redact(v) if isinstance(v, str) else v for v in values.values()]
        if name == "view":
            with self.database.read() as c:
                tree = self._load(c)
            return _view(tree, str(needed[0]), parameters.get("view_range"))
        with self._changing(erase=name == "delete") as tree:
            answer = getattr(self, f"_{name}")(tree, *needed)
        return str(answer)

    def restore(self, path: str, text: str | None, changed: float) -> bool:
        """Store a file, or a folder (None), that was exported; False if there is one. Raises FileError."""
        with self._changing(changed) as tree:
            if is_new := path not in tree:
                _make_folders(tree, path)
                tree[path] = text
        return is_new

    def _load(self, c: Connection) -> Tree:
        return {ROOT: None, **dict(map(tuple, c.execute(sa.select(_f.path, _f.content).where(self._mine))))}

    @contextmanager
    def _changing(self, changed: float | None = None, *, erase: bool = False) -> Iterator[Tree]:
        """Yield the files to be changed, and store them, also where a command is refused. Raises FileError."""
        refused = None
        with self.database.erase() if erase else self.database.write() as c:
            self.database.lock_name(c, f"files {self._key}")
            tree = self._load(c)
            before = {**tree}
            try:
                yield tree
            except FileError as e:
                refused = e
            new = {p: text for p, text in tree.items() if p not in before or before[p] != text}
            size = sum(len(text.encode()) for text in tree.values() if text)
            if new and (len(tree) - 1 > MOST_FILES or size > MOST_BYTES):
                raise FileError(_FULL)
            stale = [p for p in before if p in new or p not in tree]
            c.execute(sa.delete(files).where(self._mine, _f.path.in_(stale)))
            if new:
                row = {**self._key, "changed": changed or time.time()}
                c.execute(sa.insert(files), [{**row, "path": p, "content": text} for p, text in new.items()])
        if refused:
            raise refused

    def _create(self, tree: Tree, path: str, text: str) -> str:
        place = place_of(path)
        _make_folders(tree, place)
        if place in tree:
            raise FileError(f"File {path} already exists")
        self._put(tree, place, text)
        return f"File created successfully at: {path}"

    def _str_replace(self, tree: Tree, path: str, old: str, new: str) -> str:
        place, text = _entry(tree, path)
        failed, quoted = "No replacement was performed", old
        if len(old) > LONGEST_QUOTE:
            quoted = f"{old[:LONGEST_QUOTE]}[… {len(old) - LONGEST_QUOTE:,} characters]"
        at = text.find(old)
        if at < 0:
            raise FileError(f"{failed}, old_str `{quoted}` did not appear verbatim in {path}.")
        line = 1 + text.count("\n", 0, at)
        if text.find(old, at + max(1, len(old))) >= 0:  # one that only overlaps does not count
            numbers = ", ".join(map(str, _lines_with(text, old)))
            places = f"Multiple occurrences of old_str `{quoted}` in lines: {numbers}"
            raise FileError(f"{failed}. {places}. Please ensure it is unique")
        lines = self._put(tree, place, text.replace(old, new)).split("\n")
        snippet = _numbered(lines[max(0, line - 3) : line + 2], max(1, line - 2))
        head = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
        return f"{head}\n{snippet}"

    def _insert(self, tree: Tree, path: str, number: int, text: str) -> str:
        place, before = _entry(tree, path)
        lines = before.removesuffix("\n").split("\n") if before else []
        if not 0 <= number <= len(lines):
            allowed = f"It should be within the range [0, {len(lines)}]."
            raise FileError(f"Invalid `insert_line` parameter: {number}. {allowed}")
        lines.insert(number, text.rstrip("\n"))
        self._put(tree, place, "\n".join(lines).removesuffix("\n") + "\n")
        return f"The file {path} has been edited."

    def _delete(self, tree: Tree, path: str) -> str:
        if (place := place_of(path)) == ROOT:
            raise FileError("Cannot delete the /memories directory itself")
        if place not in tree:
            raise FileError(f"The path {path} does not exist")
        for gone in [p for p in tree if f"{p}/".startswith(f"{place}/")]:
            del tree[gone]
        return f"Successfully deleted {path}"

    def _rename(self, tree: Tree, old_path: str, new_path: str) -> str:
        old, new = place_of(old_path), place_of(new_path)
        if old == ROOT:
            raise FileError("Cannot rename the /memories directory itself")
        if new in tree:
            raise FileError(f"The destination {new_path} already exists")
        _make_folders(tree, new)
        if old not in tree:
            raise FileError(f"The path {old_path} does not exist")
        if new.startswith(f"{old}/"):
            raise FileError(f"{old_path} cannot be moved into itself: choose another destination.")
        moved = {p: place_of(new + p[len(old) :]) for p in tree if f"{p}/".startswith(f"{old}/")}
        tree |= {becomes: tree.pop(p) for p, becomes in moved.items()}
        return f"Successfully renamed {old_path} to {new_path}"

    def _put(self, tree: Tree, place: str, text: str) -> str:
        text = self._redact(text)
        if text != sendable(text):
            raise FileError("The text holds half a character (a lone surrogate): write it anew.")
        tree[place] = text
        return text


def place_of(path: str) -> str:
    """A path without ``.``, ``..`` and doubled slashes, nothing decoded. Raises FileError outside ``/memories``."""
    if not path.startswith(ROOT):
        raise FileError(f"Path must start with /memories, got: {path}")
    place = "/" + posixpath.normpath(f"memories/{path[len(ROOT) :].lstrip('/')}")
    if not f"{place}/".startswith(f"{ROOT}/"):
        raise FileError(f"Path {path} would escape /memories directory")
    data = place.encode("utf-8", "replace")
    if not place.isprintable() or len(data) > LONGEST_PATH or max(map(len, data.split(b"/"))) > LONGEST_NAME:
        raise FileError(_PATHS)
    return place


def _make_folders(tree: Tree, place: str) -> None:
    for folder in accumulate(place.split("/")[2:-1], "{}/{}".format, initial=ROOT):
        if tree.setdefault(folder, None) is not None:
            raise FileError(f"{folder} is a file, nothing can be below it: choose another path.")


def _entry(tree: Tree, path: str, *, folders: bool = False) -> tuple[str, Any]:
    """The place of a file and its text; with ``folders`` also of a folder, whose text is None."""
    if (place := place_of(path)) not in tree:
        raise FileError(f"The path {path} does not exist. Please provide a valid path.")
    if tree[place] is None and not folders:
        raise FileError(f"The path {path} is not a file.")
    return place, tree[place]


def _view(tree: Tree, path: str, view_range: Any) -> str:
    place, text = _entry(tree, path, folders=True)
    if text is None:
        title = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        lines = [title, f"4K\t{path}"]
        below = ((p[len(place) + 1 :].split("/"), t) for p, t in tree.items() if p.startswith(f"{place}/"))
        for names, content in sorted(below, key=lambda entry: entry[0]):
            if len(names) <= 2 and not any(n.startswith(".") for n in names):
                size, end = ("4K", "/") if content is None else (_size(len(content.encode())), "")
                lines.append(f"{size}\t{path}/{'/'.join(names)}{end}")
        return "\n".join(lines)
    lines, start = text.split("\n"), 0
    if not (view_range is None or (isinstance(view_range, list) and {*map(type, view_range)} <= {int})):
        raise FileError("view_range is a list of two whole numbers: the first and the last line.")
    if view_range and len(view_range) == 2:
        start = max(1, view_range[0]) - 1
        lines = lines[start : len(lines) if view_range[1] == -1 else view_range[1]]
    return f"Here's the content of {path} with line numbers:\n{_numbered(lines, start + 1)}"


def _lines_with(text: str, old: str) -> Iterator[int | str]:
    """The line of each occurrence of a text, also where one overlaps the next: the first MOST_PLACES, then a mark."""
    at, line, before = text.find(old), 1, 0
    for _ in range(MOST_PLACES):
        line += text.count("\n", before, at)
        yield line
        before, at = at, text.find(old, at + 1)
        if at < 0:
            return
    yield "…"


def _numbered(lines: list[str], start: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, start))


def _size(size: int) -> str:
    power = min(3, max(0, size.bit_length() - 1) // 10)
    number = size / 1024**power
    return (f"{number:.0f}" if number == int(number) else f"{number:.1f}") + "BKMG"[power]
