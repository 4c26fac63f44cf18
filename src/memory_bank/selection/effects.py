"""What a tool call does: whether it changes something, whether it failed, which file it reads, writes or edits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

from memory_bank.transcript.framing import content_of
from memory_bank.transcript.jsontext import leaves, parse_arguments

Effect = Literal["read", "write"]
Access = Literal["read", "write", "edit"]


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READS = word_set(
    "analyze ask browse calculate cat check compare compute count describe diff download explain fetch find get glob "
    "goto grep head help hover inspect list load look lookup ls lsp navigate open peek plan preview query read "
    "recall resolve retrieve route scan screenshot scroll search select show snapshot stat status summarize tail "
    "test think todo validate verify view wait walk watch web"
)
_WRITES = word_set(
    "add append apply approve archive assign block book buy cancel charge claim click close comment commit connect "
    "copy create deactivate delete deploy disable drop edit email enable enroll exchange fill fork forward grant "
    "import insert install invite issue kill launch make mark merge message modify move notify order overwrite "
    "patch pay post press publish purchase push put refund register reject remove rename replace reply reserve "
    "reset restart restore return revoke save scale schedule send set share start stop submit subscribe swap "
    "sync terminate transfer trigger type uninstall unsubscribe update upload upsert write"
)
_RUNS = word_set(
    "bash cmd code command console eval exec execute interpreter invoke notebook python repl run script shell sql "
    "terminal"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_NAME_KEYS = frozenset({"tool", "tool_name", "action", "operation", "function", "command_name"})
_CODE_KEYS = word_set("code cmd command commands input query script source sql statement _raw")
_SQL = re.compile(
    r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|show|describe|desc|explain|pragma|with|values|use|insert|update|"
    r"delete|create|drop|alter|truncate|replace|merge|grant|revoke|begin|commit|call|copy|set)\b",
    re.I | re.S,
)
_SQL_READS = frozenset({"select", "show", "describe", "desc", "explain", "pragma", "values", "use"})
_SQL_CHANGE = re.compile(
    r"\b(?:insert\s+(?:or\s+\w+\s+)?into|update\s+[\w.\"`\[\]]+\s+set|delete\s+from|merge\s+into|truncate\s+table|"
    r"(?:create|drop|alter)\s+(?:or\s+replace\s+)?(?:temp(?:orary)?\s+)?(?:table|view|index|database|schema|user|"
    r"function|trigger|sequence|role))\b",
    re.I,
)
_CODE_CHANGE = re.compile(
    r"open\([^()\n]*,\s*(?:mode\s*=\s*)?['\"][rb]*[wax+]|"
    r"\.(?:write|writelines|write_text|write_bytes|save|savefig|to_(?:csv|excel|json|sql|parquet|pickle|html)|"
    r"commit|insert_many|insert_one|update_one|update_many|delete_one|delete_many|unlink|rmdir|mkdir|rename|touch|"
    r"post|put|patch|delete|sendmail|send_message)\(|"
    r"\b(?:json|pickle|yaml|toml)\.dump\(|\bos\.(?:remove|rename|replace|makedirs|mkdir|rmdir|unlink|system|popen)\(|"
    r"\bshutil\.|\bsubprocess\.|\bmakedirs\(|fs\.(?:write|append|unlink|mk|rm|rename|copy)\w*\("
)
_SHELL_SPLIT = re.compile(r"\|\||&&|[;|\n&]")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.S)
_REDIRECT = re.compile(r"(?<![<=\-])>{1,2}(?!&)\s*(?!/dev/null|&)[^\s>]")
_SHELL_CODE = re.compile(r"(?:^|[\s;&|(])(?:python[\d.]*|node|ruby|perl)\s+(?:-\w\s+)*(?:-c\b|-e\b|-\s|<<)")
_SHELL_READS = word_set(
    "[ awk basename cat cd cmp comm cut date df diff dig dirname du echo egrep env false fgrep file find fold free "
    "grep groups head hexdump host hostname id jq less ls lsof man md5sum more mypy netstat nl nslookup od ping "
    "printenv printf ps pwd pytest readlink realpath rg sed set sha256sum sleep sort ss stat strings tac tail test "
    "time top tr tree true type uname uniq uptime wc whereis which who whoami xxd yq"
)
_SHELL_SUBCOMMANDS = {
    "git": "status log diff show branch blame grep ls-files ls-tree rev-parse remote describe shortlog reflog config",
    "docker": "ps logs inspect images version info stats",
    "kubectl": "get describe logs top explain version cluster-info api-resources",
    "pip": "list show freeze check index",
    "npm": "ls list view outdated audit test",
    "cargo": "check test tree",
    "go": "list vet test doc version env",
    "gh": "api search status",
    "ruff": "check",
}
_PREFIXES = word_set("sudo time timeout nice do then else if while ! xargs")
_ASSIGNMENT = re.compile(r"\w+=\S*\s+")
_MUTATING_FLAG = re.compile(
    r"\s(?:-i\b|--in-place|-delete|-exec|--fix|-X\s*(?!GET|HEAD)\w|--data|--upload-file|-d\s|-T\s|"
    r"-o\s|-O\b)"
)
_HTTP_CHANGES = frozenset({"post", "put", "patch", "delete"})

_PATH_KEYS = ("file_path", "filepath", "filePath", "path", "filename", "file_name", "file", "notebook_path")
_PART_KEYS = word_set(
    "offset limit start end start_line end_line view_range head tail lines page pages start_page end_page sheet "
    "sheet_name range start_cell end_cell"
)
_ACCESS: dict[Access, frozenset[str]] = {
    "edit": word_set("edit replace insert patch update append modify multiedit apply"),
    "write": word_set("write create save overwrite put"),
    "read": word_set("read view open cat get load show"),
}
_NO_ACCESS = word_set("list search grep glob find tree directory directories info delete remove move rename")

_FAILURE_START = re.compile(
    r"\W{0,4}(?:\w{0,40}(?:error|exception)\b|error\b|fatal\b|failed\b|failure\b|traceback\b|usage:"
    r"|unknown (?:tool|command)|no such|permission denied|access denied|not found|"
    r"invalid\b|cannot\b|could not\b|unable to\b|bash: |sh: "
    r"|<tool_use_error>|the user (?:doesn't|rejected))",
    re.I,
)
_EXIT = re.compile(r"(?:exit(?: |_)?(?:code|status)|return_?code)[\"'>:= ]{1,6}(-?\d+)", re.I)
_FAILED_WORDS = frozenset({"error", "failed", "failure", "rejected", "denied", "invalid"})
_FAR = 4_000  # characters of an output in which a failure is looked for
_LEAVES = 200


def changes_something(
    tool: str, arguments: object, output: str = "", declared: Mapping[str, Effect] | None = None
) -> bool:
    """Whether a call that did not fail changed something; True where not even ``declared`` effects say otherwise."""
    effect = (declared or {}).get(tool)
    if effect is None:
        effect = "write" if _may_change(tool, parse_arguments(arguments)) else "read"
    return effect == "write" and not is_failure(output)


def is_failure(output: str) -> bool:
    """Whether an output reports that the call failed: by its first words, an error member or an exit code."""
    content = content_of(output)
    value, text = content.value, content.text[:_FAR].lstrip()
    if content.code:
        return True
    if isinstance(value, dict) and text.startswith("{"):
        return _reports_failure(value)
    if _FAILURE_START.match(text) or (isinstance(value, dict) and _reports_failure(value)):
        return True
    code = _EXIT.search(output[:200]) or _EXIT.search(output[-200:])
    return content.code is None and code is not None and code[1].strip("-0") != ""


def _reports_failure(value: Mapping[str, Any]) -> bool:
    status, parts = value.get("status"), value.get("content")
    codes = (value.get(key) for key in ("returncode", "exit_code", "exitCode"))
    if (
        any(
            value.get(k) not in (None, False, "", [], {}, 0)
            for k in ("error", "errors", "isError", "is_error")
        )
        or value.get("success") is False
        or value.get("ok") is False
        or (isinstance(status, str) and status.casefold() in _FAILED_WORDS)
        or any(isinstance(code, int) and code != 0 for code in codes)
    ):
        return True
    texts = [p.get("text") for p in parts if isinstance(p, dict)] if isinstance(parts, list) else []
    if len(texts) == 1 and isinstance(texts[0], str):
        return bool(_FAILURE_START.match(texts[0])) or is_failure(texts[0])
    return False


def _may_change(tool: str, arguments: Mapping[str, Any]) -> bool:
    words = [w.casefold() for w in _WORD.findall(tool)]
    known = [w for w in words if w in _READS or w in _WRITES or w in _RUNS]
    first = known[0] if known else ""
    if first in _WRITES or ({"and", "or"} & set(words) and _WRITES & set(words)):
        return True
    method = arguments.get("method")
    if isinstance(method, str) and method.casefold() in _HTTP_CHANGES:
        return True
    inner = next((str(v) for k, v in arguments.items() if k in _NAME_KEYS and isinstance(v, str)), "")
    runs = bool(_RUNS & set(words))
    if inner and (runs or not known) and inner != tool:
        rest = {k: v for k, v in arguments.items() if k not in _NAME_KEYS}
        nested = next((v for v in rest.values() if isinstance(v, dict)), rest)
        return _may_change(inner, nested)
    texts = _code_texts(arguments, all_of_them=runs)
    if runs and texts:
        sql = "sql" in words or "sql" in arguments or "query" in words
        return any(_text_changes(text, sql=sql, code=bool({"python", "code"} & set(words))) for text in texts)
    if any(_SQL_CHANGE.search(text) for text in texts if _SQL.match(text)):
        return True
    if first in _READS:
        return False
    return not (isinstance(method, str) and method.casefold() in ("get", "head"))


def _code_texts(arguments: Mapping[str, Any], *, all_of_them: bool) -> list[str]:
    named = [t for k, t in arguments.items() if k in _CODE_KEYS and isinstance(t, str)]
    if all_of_them and named:
        return named
    texts = (leaf for leaf in islice(leaves(dict(arguments)), _LEAVES) if isinstance(leaf.value, str))
    return [leaf.value for leaf in texts if all_of_them or leaf.key in _CODE_KEYS]


def _text_changes(text: str, *, sql: bool, code: bool) -> bool:
    """Whether code changes something when it runs: SQL, a shell command, or a programming language."""
    statement = _SQL.match(text)
    if sql or (statement and statement[1].casefold() in _SQL_READS and "\n" not in text.strip()):
        parts = [m for part in text.split(";") if part.strip() and (m := _SQL.match(part))]
        reads = all(m[1].casefold() in _SQL_READS or m[1].casefold() == "with" for m in parts)
        return bool(_SQL_CHANGE.search(text)) or not parts or not reads
    if _CODE_CHANGE.search(text) or _SQL_CHANGE.search(text):
        return True
    return not code and _shell_changes(text)


def _shell_changes(command: str) -> bool:
    bare = _QUOTED.sub("_", command)
    if _REDIRECT.search(bare):
        return True
    if _SHELL_CODE.search(bare):  # its code was looked at: it changes nothing
        return False
    return any(
        _part_changes(part) for part in _SHELL_SPLIT.split(re.sub(r"\d?>&\d|&>\s*/dev/null", "", bare))
    )


def _part_changes(part: str) -> bool:
    part = part.strip(" \t\r()`{}")
    while match := _ASSIGNMENT.match(part):
        part = part[match.end() :]
    words = part.split()
    while words and words[0] in _PREFIXES:
        words = words[2:] if words[0] == "timeout" else words[1:]
    if not words or words[0] in ("done", "fi", "for", "_", "#", "EOF") or words[0].startswith("#"):
        return False
    name = words[0].rsplit("/", 1)[-1]
    if name in _SHELL_READS:
        return bool(_MUTATING_FLAG.search(" " + part)) and name in ("sed", "find", "sort", "yq")
    if name in ("curl", "wget", "http"):
        return name == "wget" or bool(_MUTATING_FLAG.search(" " + part))
    if name.startswith("python") and words[1:3] in (["-m", "pytest"], ["-m", "mypy"]):
        return False
    sub = next((w for w in words[1:] if not w.startswith("-")), "")
    return sub not in _SHELL_SUBCOMMANDS.get(name, "").split()


_ASKED_KEYS = word_set(
    "offset limit start_line end_line view_range head tail head_limit lines page pages page_number start_page "
    "end_page page_token next_token cursor range start_index max_length max_lines num_lines"
)
_ASKED_PART = re.compile(
    r"\bsed\s+(?:-\w+\s+)*-n\b|(?:^|[|;&(]\s*)(?:head|tail)\b|\bawk\b[^|;&]*\bNR\b", re.M
)


def asks_for_part(arguments: Mapping[str, Any]) -> bool:
    """Whether a call asks for a part of something: by offset, limit, page, cursor, ``sed -n``, ``head``, ``tail``."""
    if any(arguments.get(key) not in (None, "", 0, False, [], {}) for key in _ASKED_KEYS):
        return True
    return any(_ASKED_PART.search(text) for text in _code_texts(arguments, all_of_them=False))


_PRINTS = word_set("cat nl less more bat batcat tac type get-content gc")


def files_read(tool: str, arguments: str) -> list[str]:
    """The files whose text a call returns: that of a tool which reads one, and what a shell command prints."""
    file = file_access(tool, arguments)
    if file is not None:
        return [file.path] if file.access == "read" else []
    found = list[str]()
    for text in _code_texts(parse_arguments(arguments), all_of_them=False):
        for part in _SHELL_SPLIT.split(text):
            words = part.split()
            if words and words[0].casefold() in _PRINTS:
                found += [word.strip("\"'") for word in words[1:] if word[0] not in "-<>0123456789"]
    return found


class FileAccess(NamedTuple):
    """A call that shows or makes the text of a file, or, where `part` is not "", of a part of it."""

    path: str
    access: Access
    part: str


def file_access(tool: str, arguments: str) -> FileAccess | None:
    """Return the file whose text a call shows or changes, by the tool's name and arguments; None for others."""
    words = {w.casefold() for w in _WORD.findall(tool)}
    access = next((a for a, verbs in _ACCESS.items() if words & verbs and not words & _NO_ACCESS), None)
    try:
        values = json.loads(arguments) if access is not None else None
    except (ValueError, RecursionError):
        return None
    if access is None or not isinstance(values, dict):
        return None
    if access == "edit":  # editors with one tool for several commands
        commands: dict[object, Access] = {"view": "read", "create": "write"}
        access = commands.get(str(values.get("command")), access)
    for key in _PATH_KEYS:
        path = values.get(key)
        if isinstance(path, str) and 0 < len(path) <= 400 and "\n" not in path:
            parts = sorted(f"{k}={v}" for k, v in values.items() if k in _PART_KEYS and v is not None)
            return FileAccess(path, access, " ".join(parts)[:200])
    return None
