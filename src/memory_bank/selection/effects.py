"""The effects of a tool call: whether it changes something, or failed, which file it reads, writes or edits."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from memory_bank.transcript.framing import Content, content_of
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
    "bash cmd code command console eval exec execute interpreter invoke notebook powershell pwsh python repl run "
    "script shell sql terminal zsh"
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

_PATCHES = word_set("patch diff apply edit multiedit replace")
_APPLIED = re.compile(r"(?<![A-Za-z])(?:apply_?patch|patch|apply)\b")
PATH_KEYS = ("file_path", "filepath", "filePath", "path", "filename", "file_name", "file", "notebook_path")
_PART_KEYS = word_set(
    "offset limit start end start_line end_line view_range head tail lines page pages start_page end_page sheet "
    "sheet_name range start_cell end_cell"
)
_ACCESS: dict[Access, frozenset[str]] = {
    "write": word_set("write create save overwrite put"),
    "edit": word_set("edit replace insert patch update append modify multiedit apply"),
    "read": word_set("read view open cat get load show"),
}
_NO_ACCESS = word_set("list search grep glob find tree directory directories info delete remove move rename")

_FAILURE_START = re.compile(
    r"\W{0,4}(?:\w{0,40}(?:error|exception)\b|error\b|fatal\b|failed\b|failure\b|traceback\b|usage:"
    r"|unknown (?:tool|command)|no such|permission denied|access (?:is )?denied|not found|"
    r"invalid\b|cannot\b|could not\b|unable to\b|bash: |sh: |(?-i:E[A-Z]{4,12}): "
    r"|<tool_use_error>|string to replace not found|(?:command|request|operation) (?:has )?timed out"
    r"|unsupported call\b|execution error\b|script (?:failed|terminated)\b"
    r"|[\w-]{1,40}(?: verification)? failed(?: for |: )"
    r"|[\w #:'\"/.-]{1,80} (?:does not exist|(?:was |is )?not found)\W*\Z)",
    re.I,
)
_CANCELLED = re.compile(
    r"\W{0,4}(?:tool_use_error>)?(?:the user (?:doesn't|does not|rejected|cancell?ed|declined|interrupted)"
    r"|(?:[a-z]+ ){0,3}(?:cancell?ed|aborted|interrupted|rejected) by (?:the )?user"
    r"|[^\n]{1,400}Rejected\(\W{0,3}rejected by user)",
    re.I,
)
RUN_FAILED = re.compile(
    r"\b[1-9]\d* (?:tests? )?(?:failed|fails|failures?|failing|errors? in [\d.]+s|error\(s\))(?!\w)"
    r"|^failed \(|^fail\b|^--- fail|test result: failed|^build fail"
    r"|\b(?:failures?|failed|errors): +[1-9]"  # of tests
    r"|^(?:[a-z]:)?[^\s:]+(?::\d+){1,2}: (?:fatal )?error\b|^\S+\(\d+,\d+\): error\b"
    r"|^\S+\.go:\d+:\d+: (?:undefined|syntax error|too many|not enough|cannot|missing"
    r"|(?:\S+ imported|declared) and not used)"
    r"|^(?:\S+ : )?error(?:\[\w+\]|:| [a-z]+\d+:)"
    r"|\bfound [1-9]\d* errors?\b|^[1-9]\d* errors?$|✖ [1-9]\d* problems? \([1-9]|^could not compile"  # of compilers
    r"|\bexit(?:ed)?:? (?:with )?(?:status |code )?[1-9]\d*\.?$|\bnon-zero (?:exit )?(?:code|status)"
    r"|\*\*\* .{0,400}?\berror [1-9]"
    r"|^npm err(?:!|or\b)|^panic: |^exception in thread|^fatal: |^!? ?! \[(?:remote )?rejected|^conflict \("
    r"|^(?:terminated|killed|aborted|segmentation fault|bus error)\b|\btimed out after\b|\(core dumped\)"
    r"|^(?:uncaught )?\w*(?:error|exception): |^(?:\S+/)?(?:ba|z|da)?sh: |^\S+: line \d+: "
    r"|^[\w./\\-]{1,60}: (?:\S+: |cannot |\(\d+\) )?.{0,200}(?:no such file|denied|not found|refused|cannot "
    r"|failed to |could not |is a directory|not permitted|unrecognized|invalid option)"
    r"|is not recognized as |^the (?:system|filename|syntax|network|process) .*\b(?:cannot|incorrect)\b"
    r"|^access is denied|^file not found|^\+ categoryinfo|^\+ fullyqualifiederrorid"
    r"|^[\w.-]+ : (?:the term|cannot|unable|could not|access)"
    r"|^(?:the )?(?:command|process|script) failed\b",
    re.I,
)
"""Lines that a run prints where it failed, one of its first or last ones."""
_PROGRAM_FAILED = re.compile(r"(?:[^\s:]+/)?([\w.-]+)(?: :|:)(?: line \d+:)? [^\n]{1,300}")
_WINDOWS_FAILED = re.compile(
    r"\A(?:The system cannot|Access is denied)|^File Not Found\s*\Z|^ +\+ CategoryInfo", re.M
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):$.{0,4000}?^\w[\w.]*(?:: .*)?$", re.M | re.S)
_STDERR_ONLY = re.compile(r"\W{0,8}stdout\W{1,12}stderr\W{0,8}\n\s*\w", re.I)
STATUS_KEYS = ("statusCode", "status_code", "status")
"""Members with the status of an answer."""
_HTTP_FAILED = re.compile(r"HTTP/[\d.]{1,4} [45]\d\d")
_HOST = re.compile(r"https?://([^/\s\"'\\:]{1,100})", re.I)
_BARE_COMMAND = re.compile(r"\A(?:\s*cd [^&;|\n]{1,300}(?:&&|;))*\s*")
FAILED_LINE = re.compile(r"(?:FAILED|FAIL:|--- FAIL:|ERROR|[×✗✕❌●]|test \S+ \.\.\. FAILED)(?: |\Z)")
"""A line of a run that names what failed: a test, a step."""
PROBLEM = re.compile(
    r"\bnpm err!|\b(?:\w*error|\w*exception|fatal|panic|fail(?:ed|ure)?|cannot|could not|unable|denied|not found"
    r"|no such|undefined|refused|rejected|unrecognized|not recognized|timed out|non-zero|conflict)\b",
    re.I,
)
"""A line that says what went wrong."""
_EXIT = re.compile(r"(?:exit(?: |_)?(?:code|status)|return_?code)[\"'>:= ]{1,6}(-?\d+)", re.I)
_FAILED_WORDS = frozenset({"error", "failed", "failure", "rejected", "denied", "invalid"})
_FAR = 4_000  # characters of an output in which a failure is looked for
_FIRST_LINES, _LAST_LINES = 4, 12  # of a run's output, in which a failure is looked for
_SHOWS = word_set(
    "cat head tail sed grep egrep rg less more type echo findstr select-string get-content gc jq awk sort uniq wc cut"
    " tr nl bat journalctl cd ls find git gh docker kubectl dir get-childitem"
)
_SHOWN = {
    "git": "log show diff blame grep",
    "docker": "logs",
    "kubectl": "logs describe",
    "gh": "view list diff api",
}
_LEAVES = 200


def changes_something(
    tool: str, arguments: object, output: str = "", declared: Mapping[str, Effect] | None = None
) -> bool:
    """Return whether a call that did not fail changed something; True unless ``declared`` effects say otherwise."""
    effect = (declared or {}).get(tool)
    if effect is None:
        effect = "write" if _may_change(tool, parse_arguments(arguments)) else "read"
    return effect == "write" and not is_failure(output, tool, arguments)


def is_failure(output: str, tool: str = "", arguments: object = None) -> bool:
    """Return whether an output reports that the call failed: by its first words, an error member or an exit code.

    With the ``tool`` and its ``arguments`` also by what a run prints, in every shell: a traceback, a sum of tests, a
    compiler's errors. Text that a command only shows is no report.
    """
    content = content_of(output)
    value, text = content.value, content.text[:_FAR].lstrip()
    if content.code:
        return True
    if isinstance(value, dict) and text.startswith("{"):
        return _reports_failure(value)
    if is_cancelled(text):
        return True
    command = _command_of(tool, arguments)
    if command and _only_shows(command):
        line = _PROGRAM_FAILED.match(text) if text.count("\n") < _FIRST_LINES else None
        is_programs = line is not None and (line[1] in command.split() or line[1].endswith(("sh", "fatal")))
        if line and is_programs and RUN_FAILED.search(line[0]):
            return True
        return _WINDOWS_FAILED.search(text) is not None
    if _FAILURE_START.match(text) or (isinstance(value, dict) and _reports_failure(value)):
        return True
    code = _EXIT.search(output[:200]) or _EXIT.search(output[-200:])
    if content.code is None and code is not None and code[1].strip("-0") != "":
        return True
    return command is not None and _run_failed(output, content, command)


def is_cancelled(output: str) -> bool:
    """Return whether an output says that the user did not want the call."""
    return _CANCELLED.match(output) is not None


def runs(tool: str, arguments: object) -> bool:
    """Return whether a call runs something, so that what came of it stands at the end of its output."""
    command = _command_of(tool, arguments)
    return command is not None and not _only_shows(command)


def _command_of(tool: str, arguments: object) -> str | None:
    """The program that a tool runs; None for tools that run nothing."""
    if not _RUNS & {w.casefold() for w in _WORD.findall(tool)}:
        return None
    return "\n".join(_code_texts(parse_arguments(arguments), all_of_them=True))[:_FAR]


def _only_shows(command: str) -> bool:
    """Return whether every part of a shell command only shows text."""
    shows = False
    for part in _SHELL_SPLIT.split(_QUOTED.sub("_", command)):
        words = part.casefold().split()
        if not words or words[0].startswith(("#", "2>")):
            continue
        if (
            words[0] not in _SHOWS
            or _REDIRECT.search(part)
            or (words[0] in _SHELL_READS and _part_changes(part))
        ):
            return False
        sub = _SHOWN.get(words[0])
        if sub is not None and not set(words[1:4]) & set(sub.split()):
            return False
        shows |= words[0] not in ("cd", "echo")
    return shows


def _run_failed(output: str, content: Content, command: str) -> bool:
    """Return whether a run's output says that it failed. A frame's exit code 0 counts, but for pipes and lists."""
    if content.code == 0 and not re.search(r"[|;]", _QUOTED.sub("_", command)):
        return False
    if _HTTP_FAILED.match(output) or (content.code is None and _STDERR_ONLY.match(output)):
        return True
    text = content.text
    ends = text if len(text) <= 2 * _FAR else f"{text[:_FAR]}\n{text[-_FAR:]}"
    lines = [line.strip() for line in ends.split("\n") if line.strip()]
    near = lines[:_FIRST_LINES] + lines[max(_FIRST_LINES, len(lines) - _LAST_LINES) :]
    return any(RUN_FAILED.search(line[:400]) for line in near) or any(
        len(ends) - match.end() < 400 for match in _TRACEBACK.finditer(ends)
    )


def _reports_failure(value: Mapping[str, Any]) -> bool:
    status, parts = value.get("status"), value.get("content")
    answers = (value.get(key) for key in STATUS_KEYS)
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
        or any(isinstance(code, int) and 400 <= code < 600 for code in answers)
    ):
        return True
    texts = [p.get("text") for p in parts if isinstance(p, dict)] if isinstance(parts, list) else []
    if len(texts) == 1 and isinstance(texts[0], str):
        return bool(_FAILURE_START.match(texts[0])) or is_failure(texts[0])
    return False


def _may_change(tool: str, arguments: Mapping[str, Any]) -> bool:
    words = [w.casefold() for w in _WORD.findall(tool)]
    verbs = [w for w in words if w in _READS or w in _WRITES or w in _RUNS]
    first = verbs[0] if verbs else ""
    if first in _WRITES or ({"and", "or"} & set(words) and _WRITES & set(words)):
        return True
    method = arguments.get("method")
    if isinstance(method, str) and method.casefold() in _HTTP_CHANGES:
        return True
    inner = next((str(v) for k, v in arguments.items() if k in _NAME_KEYS and isinstance(v, str)), "")
    runs = bool(_RUNS & set(words))
    if inner and (runs or not verbs) and inner != tool:
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


def shell_command(tool: str, arguments: Mapping[str, Any]) -> str:
    """The command that a call runs in a shell; "" where it runs none."""
    if not _RUNS & {w.casefold() for w in _WORD.findall(tool)}:
        return ""
    command = arguments.get("command", arguments.get("cmd"))
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        is_wrapped = len(command) == 3 and command[1].startswith("-")  # bash -lc …
        command = command[2] if is_wrapped else shlex.join(command)
    return command if isinstance(command, str) else ""


def _code_texts(arguments: Mapping[str, Any], *, all_of_them: bool) -> list[str]:
    named = [t for k, t in arguments.items() if k in _CODE_KEYS and isinstance(t, str)]
    if all_of_them and named:
        return named
    texts = (leaf for leaf in islice(leaves(dict(arguments)), _LEAVES) if isinstance(leaf.value, str))
    return [leaf.value for leaf in texts if all_of_them or leaf.key in _CODE_KEYS]


def _text_changes(text: str, *, sql: bool, code: bool) -> bool:
    """Return whether code changes something when it runs: SQL, a shell command, or a programming language."""
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
    """Return whether a call asks for a part: by offset, limit, page, cursor, ``sed -n``, ``head``, ``tail``."""
    if any(arguments.get(key) not in (None, "", 0, False, [], {}) for key in _ASKED_KEYS):
        return True
    return any(_ASKED_PART.search(text) for text in _code_texts(arguments, all_of_them=False))


_PRINTS = word_set("cat nl less more bat batcat tac type get-content gc")


def files_read(tool: str, arguments: str) -> list[str]:
    """The files whose text a call returns: that of a tool which reads one, and what a shell command prints."""
    file = file_access(tool, arguments)
    if file is not None:
        return [file.path] if file.access == "read" else []
    paths = list[str]()
    for text in _code_texts(parse_arguments(arguments), all_of_them=False):
        for part in _SHELL_SPLIT.split(text):
            words = part.split()
            if words and words[0].casefold() in _PRINTS:
                paths += [word.strip("\"'") for word in words[1:] if word[0] not in "-<>0123456789"]
            elif words[:1] == ["git"] and "show" in words:  # REVISION:FILE
                paths += filter(None, (w.partition(":")[2].strip("\"'") for w in words if w[0] != "-"))
    return paths


_SOURCE_FILE = re.compile(
    r"(?<![^\s\"'=(,\[])(?!https?:(?!//raw\.))[^\s\"'=(,\\]{1,300}"
    r"\.(?:x?html?|vue|svelte|astro|[jt]sx?|php|erb|ejs|hbs|jinja2?|j2|tmpl|liquid)(?![\w./-])",
    re.I,
)
_FETCHES = re.compile(
    r"\b(?:curl|wget|xh|lynx|w3m|requests|urllib|httpx|aiohttp|axios|iwr|invoke-webrequest)\b|\bfetch\("
    r"|(?<!\\)\"https?://[^\"\s\\]++\"",  # an argument of its own
    re.I,
)
_KEPT_SOURCE = word_set("diff source template theme")


def may_fetch(tool: str, arguments: str) -> bool:
    """Return whether a call may return a page to be read: it names no source to edit, and a command of it fetches."""
    if _SOURCE_FILE.search(arguments) or file_access(tool, arguments) is not None:
        return False
    if _KEPT_SOURCE & {w.casefold() for w in _WORD.findall(tool)}:
        return False
    command = _command_of(tool, arguments)
    return command is None or any(map(_FETCHES.search, (command, arguments)))


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
    for key in PATH_KEYS:
        path = values.get(key)
        if isinstance(path, str) and 0 < len(path) <= 400 and "\n" not in path:
            parts = sorted(f"{k}={v}" for k, v in values.items() if k in _PART_KEYS and v is not None)
            return FileAccess(path, access, " ".join(parts)[:200])
    return None


def applies_patches(tool: str, arguments: str) -> bool:
    """Return whether a call applies the patch in its arguments, and does not only print, search or store it."""
    words = {w.casefold() for w in _WORD.findall(tool)}
    return bool(words & _PATCHES) or bool(words & _RUNS and _APPLIED.search(arguments))


def source_of(tool: str, arguments: str) -> str:
    """Where an output comes from: its tool, with a page's host, a file's folder or the program that a shell ran."""
    if (access := file_access(tool, arguments)) is not None:
        origin = re.split(r"[/\\][^/\\]*\Z", access.path)[0]
    elif (url := _HOST.search(arguments)) is not None:
        origin = url[1]
    else:
        words = _BARE_COMMAND.sub("", _command_of(tool, arguments) or "").split(None, 1)
        origin = words[0] if words else ""
    return f"{tool} {origin[:200]}"


_RULE_FILE = re.compile(
    r"(?:\A|[/\\])(?:(?:agents|claude|gemini|skill|contributing|copilot-instructions)(?:\.\w+)?\.md|"
    r"\.(?:cursor|windsurf|cline)rules|rules[/\\][^/\\]+\.(?:mdc?|txt))\Z",
    re.I,
)
_RULE_WORDS = word_set("policy policies guideline guidelines instruction instructions rules conventions")
_PAGE = re.compile(r"([^/\\?#]{1,80}?)(?:\.(?:mdc?|txt|rst|adoc|html?|pdf|docx?))?[/\\]?(?:[?#].*)?\Z", re.S)
_PAGE_KEYS = (*PATH_KEYS, "url", "uri", "page", "page_name", "title", "doc", "document", "topic")
_SHOWN_FILE = re.compile(
    r"(?:^|[|;&\n(])[ \t]*(?:cat|bat|less|more|nl|head|tail|sed\s+-n|type|get-content|gc)\s([^|;&\n>]+)", re.I
)
_COMMANDS = re.compile(
    r"\b(?:must|never|always|should|shall|only|do not|don't|may not|not allowed|required)\b", re.I
)
MOST_ASKED = 40_000  # characters of a page that a task names; a longer one is never quoted whole
ASKED_COMMANDS, WORDS_A_COMMAND = 3, 200  # such words as "must" in it, at least, and words for each, at most


class RulesRead(NamedTuple):
    """A call that reads rules; `part`: of them.

    A file such as AGENTS.md (`is_file`), what calls itself a policy, or a page of rules that the task names.
    """

    name: str
    is_file: bool
    part: str


def rules_read(tool: str, arguments: str, output: str, task: Sequence[str] = ()) -> RulesRead | None:
    """Return which rules a call that did not fail reads, by the name of file, page or tool; None for others.

    ``task``: the texts of users and system messages, which may name a page ("invoice-checks says how").
    """
    values, words = parse_arguments(arguments), {w.casefold() for w in _WORD.findall(tool)}
    if isinstance(wrapped := values.get("command"), list) and wrapped:  # bash -lc …
        values = {**values, "command": str(wrapped[-1])}
    access, command = file_access(tool, arguments), _command_of(tool, values)
    is_read = access.access == "read" if access else not _may_change(tool, values)
    if not is_read or _NO_ACCESS & words:
        return None
    named = [v for k in _PAGE_KEYS if isinstance(v := values.get(k), str) and 0 < len(v) <= 400]
    part = access.part if access else ""
    if command is not None:
        shown = _SHOWN_FILE.findall(command[:_FAR])
        named = [word.strip("'\"") for text in shown for word in text.split() if not word.startswith("-")]
        part = command if re.search(r"\b(?:sed|head|tail)\b", command) else ""
    if file := next((name for name in named if _RULE_FILE.search(name)), None):
        return RulesRead(file, True, part)
    if not _COMMANDS.search(output):
        return None
    for name in named:
        page = _PAGE.search(name)
        stem = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", page[1]) if page and "." not in page[1] else ()
        if _RULE_WORDS & {w.casefold() for w in stem}:
            return RulesRead(name, False, part)
    if _RULE_WORDS & words:
        return RulesRead(f"{tool} {arguments}", False, part)
    if not task or len(output) > MOST_ASKED:
        return None
    commands = len(_COMMANDS.findall(output))
    if commands < ASKED_COMMANDS or commands * WORDS_A_COMMAND < output.count(" "):
        return None
    if command is None:
        named = [v for v in values.values() if isinstance(v, str) and len(v) <= 400]
    return next((RulesRead(name, False, part) for name in named if _is_named(name, task)), None)


def _is_named(name: str, task: Sequence[str]) -> bool:
    """Return whether a task names a page, by the last part of its address without the ending of a document."""
    page = _PAGE.search(name)
    if page is None or "." in page[1] or not re.search(r"[^\W\d_]{3}", page[1]):
        return False
    return any(map(re.compile(rf"(?<!\w){re.escape(page[1])}(?!\w)", re.I).search, task))
