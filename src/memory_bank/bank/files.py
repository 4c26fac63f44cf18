"""Files that an agent keeps below ``/memories``, by the six commands of Anthropic's tool ``memory_20250818``.

Answers and errors are to the byte those of the SDK's reference for a folder of the file system,
``anthropic/lib/tools/_beta_builtin_memory_tool.py`` (2.12). Every folder has the size of an empty one of ext4.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database, as_database
from memory_bank.bank.keys import DEFAULT
from memory_bank.bank.rows import is_name
from memory_bank.bank.schema import byte_length, count_of, files
from memory_bank.errors import ConfigError, FileCommandError
from memory_bank.transcript.quoting import sendable

ROOT = "/memories"
DEFAULT_PROJECT = "default"
COMMANDS: dict[str, dict[str, type]] = {
    "view": {"path": str},
    "create": {"path": str, "file_text": str},
    "str_replace": {"path": str, "old_str": str, "new_str": str},
    "insert": {"path": str, "insert_line": int, "insert_text": str},
    "delete": {"path": str},
    "rename": {"old_path": str, "new_path": str},
}
"""The parameters that each command needs; ``view`` may have ``view_range`` besides."""
LONGEST_FILE = 256 * 2**10
"""Bytes of a file."""
LONGEST_PATH, LONGEST_NAME = 1_000, 255
"""Bytes of a path, and of each name in it."""
MOST_FILES = 1_000
"""Files and folders of a project."""
_f = files.c


class MemoryFiles:
    """The files of one project of a namespace; those of others cannot be named. Safe between threads and processes.

    ``redact`` returns a text without what must not be stored. Raises ConfigError for a name that is not 1 to 180
    printable characters.
    """

    def __init__(
        self,
        database: Database | str | Path | None = None,
        project: str = DEFAULT_PROJECT,
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

    def run(self, given: Mapping[str, Any]) -> str:
        """The answer to a command: its name is the member ``command``, its parameters are other members.

        Raises FileCommandError with the text for the model, StorageError.
        """
        name = given.get("command")
        if not isinstance(name, str) or name not in COMMANDS:
            raise FileCommandError(f"Unknown command: {str(name)[:80]}")
        needed: list[Any] = []
        for parameter, kind in COMMANDS[name].items():
            value = given.get(parameter)
            if not isinstance(value, kind) or isinstance(value, bool):
                what = "text" if kind is str else "whole number"
                raise FileCommandError(f"{name} needs the parameter {parameter}, a {what}.")
            needed.append(self._redact(value) if isinstance(value, str) else value)
        if name == "view":
            with self.database.read() as c:
                return self._view(c, needed[0], given.get("view_range"))
        with self.database.erase() if name == "delete" else self.database.write() as c:
            self.database.lock_name(c, f"files {self._key}")
            try:
                return str(getattr(self, f"_{name}")(c, *needed))
            except FileCommandError as e:  # folders that were made for it stay, as in the reference
                refused = e
        raise refused

    def clear(self) -> str:
        """Delete all files of the project. Raises StorageError."""
        with self.database.erase() as c:
            c.execute(sa.delete(files).where(self._mine))
        return "All memory cleared"

    def restore(self, place: str, text: str | None, **times: float) -> bool:
        """Store a file, or a folder (None), that was exported; False if there is one. Raises FileCommandError."""
        with self.database.write() as c:
            self.database.lock_name(c, f"files {self._key}")
            if self._exists(c, place):
                return False
            self._make_folders(c, place)
            self._write(c, place, text, **times)
        return True

    def _view(self, c: Connection, path: str, view_range: Any) -> str:
        place, text = self._entry(c, path, folders=True)
        if text is None:
            below = sa.select(_f.path, byte_length(_f.content)).where(
                self._mine, _within(place), _f.path != place
            )
            shown = [
                f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:",
                f"4K\t{path}",
            ]
            for names, size in sorted((p[len(place) + 1 :].split("/"), size) for p, size in c.execute(below)):
                if len(names) <= 2 and not any(n.startswith(".") for n in names):
                    kind = ("4K", "/") if size is None else (_shown_size(size), "")
                    shown.append(f"{kind[0]}\t{path}/{'/'.join(names)}{kind[1]}")
            return "\n".join(shown)
        lines, start = text.split("\n"), 0
        if not (view_range is None or (isinstance(view_range, list) and {*map(type, view_range)} <= {int})):
            raise FileCommandError("view_range is a list of two whole numbers: the first and the last line.")
        if view_range and len(view_range) == 2:
            start = max(1, view_range[0]) - 1
            lines = lines[start : len(lines) if view_range[1] == -1 else view_range[1]]
        return f"Here's the content of {path} with line numbers:\n{_numbered(lines, start + 1)}"

    def _create(self, c: Connection, path: str, text: str) -> str:
        place = place_of(path)
        self._make_folders(c, place)
        if self._exists(c, place):
            raise FileCommandError(f"File {path} already exists")
        self._write(c, place, text)
        return f"File created successfully at: {path}"

    def _str_replace(self, c: Connection, path: str, old: str, new: str) -> str:
        place, text = self._entry(c, path)
        failed = "No replacement was performed"
        if old not in text:
            raise FileCommandError(f"{failed}, old_str `{old}` did not appear verbatim in {path}.")
        at = text.find(old)
        line = 1 + text.count("\n", 0, at)
        if text.count(old) > 1:
            numbers = []
            while at != -1:
                numbers.append(str(line))
                following = text.find(old, at + 1)
                line, at = line + text.count("\n", at, max(at, following)), following
            raise FileCommandError(
                f"{failed}. Multiple occurrences of old_str `{old}` in lines: {', '.join(numbers)}. "
                "Please ensure it is unique"
            )
        lines = self._write(c, place, text.replace(old, new)).split("\n")
        return (
            "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
            + _numbered(lines[max(0, line - 3) : line + 2], max(1, line - 2))
        )

    def _insert(self, c: Connection, path: str, number: int, inserted: str) -> str:
        place, text = self._entry(c, path)
        lines = text.removesuffix("\n").split("\n") if text else []
        if not 0 <= number <= len(lines):
            raise FileCommandError(
                f"Invalid `insert_line` parameter: {number}. It should be within the range [0, {len(lines)}]."
            )
        lines.insert(number, inserted.rstrip("\n"))
        self._write(c, place, "\n".join(lines).removesuffix("\n") + "\n")
        return f"The file {path} has been edited."

    def _delete(self, c: Connection, path: str) -> str:
        if (place := place_of(path)) == ROOT:
            raise FileCommandError("Cannot delete the /memories directory itself")
        if not c.execute(sa.delete(files).where(self._mine, _within(place))).rowcount:
            raise FileCommandError(f"The path {path} does not exist")
        return f"Successfully deleted {path}"

    def _rename(self, c: Connection, old_path: str, new_path: str) -> str:
        old, new = place_of(old_path), place_of(new_path)
        if old == ROOT:
            raise FileCommandError("Cannot rename the /memories directory itself")
        if self._exists(c, new):
            raise FileCommandError(f"The destination {new_path} already exists")
        self._make_folders(c, new)
        moved = c.execute(sa.select(_f.path).where(self._mine, _within(old))).scalars().all()
        if not moved:
            raise FileCommandError(f"The path {old_path} does not exist")
        if new.startswith(f"{old}/"):
            raise FileCommandError(f"{old_path} cannot be moved into itself: choose another destination.")
        change = sa.update(files).where(self._mine, _f.path == sa.bindparam("was"))
        pairs = [{"was": p, "becomes": place_of(new + p[len(old) :])} for p in moved]
        c.execute(change.values(path=sa.bindparam("becomes")), pairs)
        return f"Successfully renamed {old_path} to {new_path}"

    def _exists(self, c: Connection, place: str) -> bool:
        return place == ROOT or bool(
            c.execute(sa.select(_f.path).where(self._mine, _f.path == place)).first()
        )

    def _entry(self, c: Connection, path: str, *, folders: bool = False) -> tuple[str, Any]:
        """The place of a file and its text; with ``folders`` also of a folder, whose text is None."""
        place = place_of(path)
        row = c.execute(sa.select(_f.content).where(self._mine, _f.path == place)).first()
        if place != ROOT and row is None:
            raise FileCommandError(f"The path {path} does not exist. Please provide a valid path.")
        text = row and row[0]
        if text is None and not folders:
            raise FileCommandError(f"The path {path} is not a file.")
        return place, text

    def _make_folders(self, c: Connection, place: str) -> None:
        """Make the missing folders above a place."""
        above = folders_above(place)
        kinds = sa.select(_f.path, _f.content.is_not(None)).where(self._mine, _f.path.in_(above))
        known: dict[str, bool] = dict(map(tuple, c.execute(kinds)))
        for folder in above:
            if known.get(folder):
                raise FileCommandError(f"{folder} is a file, nothing can be below it: choose another path.")
            if folder not in known:
                self._write(c, folder, None)

    def _write(self, c: Connection, place: str, text: str | None, **times: float) -> str:
        """Store a content, or a folder, and return it as it is stored."""
        stored = None if text is None else self._redact(text)
        size = len((stored or "").encode("utf-8", "replace"))
        if stored is not None and stored != sendable(stored):
            raise FileCommandError("The text holds half a character (a lone surrogate): write it anew.")
        if size > LONGEST_FILE:
            raise FileCommandError(
                f"A file has at most {LONGEST_FILE:,} bytes, this one would have {size:,}: use several files."
            )
        now = time.time()
        change = sa.update(files).where(self._mine, _f.path == place).values(content=stored, changed=now)
        if not c.execute(change).rowcount:
            if (c.execute(count_of(files).where(self._mine)).scalar() or 0) >= MOST_FILES:
                raise FileCommandError(
                    f"There are {MOST_FILES:,} files and folders, the most: delete some first."
                )
            new = {"path": place, "content": stored, "created": now, "changed": now}
            c.execute(sa.insert(files), {**self._key, **new, **times})
        return stored or ""


def place_of(path: str) -> str:
    """A path without ``.``, ``..`` and doubled slashes. Raises FileCommandError where it leads out of ``/memories``.

    Nothing is decoded: ``%2e%2e``, a backslash and look-alikes are characters of a name.
    """
    if not path.startswith(ROOT):
        raise FileCommandError(f"Path must start with /memories, got: {path}")
    place = "/" + posixpath.normpath(f"memories/{path[len(ROOT) :].lstrip('/')}")
    if place != ROOT and not place.startswith(f"{ROOT}/"):
        raise FileCommandError(f"Path {path} would escape /memories directory")
    data = place.encode("utf-8", "replace")
    names = map(len, data.split(b"/"))
    if not place.isprintable() or len(data) > LONGEST_PATH or max(names) > LONGEST_NAME:
        raise FileCommandError(
            f"A path has at most {LONGEST_PATH:,} bytes, each name in it {LONGEST_NAME}, and only characters that "
            "can be printed: choose another one."
        )
    return place


def is_place(path: str) -> bool:
    """Whether a text is a path as files are stored under."""
    try:
        return place_of(path) == path != ROOT
    except FileCommandError:
        return False


def folders_above(place: str) -> list[str]:
    """The folders that a file is in, the outermost first, without ``/memories``."""
    return [place[:i] for i in range(len(ROOT) + 1, len(place)) if place[i] == "/"]


def _within(place: str) -> sa.ColumnElement[bool]:
    return (_f.path == place) | (sa.func.substr(_f.path, 1, len(place) + 1) == f"{place}/")


def _numbered(lines: list[str], start: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, start))


def _shown_size(size: int) -> str:
    power = min(3, max(0, size.bit_length() - 1) // 10)
    shown = size / 1024**power
    return (f"{shown:.0f}" if shown == int(shown) else f"{shown:.1f}") + "BKMG"[power]
