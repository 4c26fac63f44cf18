"""The parts of a tool's text: its content, without the lines, tags and members in which a client reports a run.

A client puts a frame around what a command printed: an exit code, a wall time, ``Output:``, tags, fences, an
object with ``stdout`` and ``exit_code``. A frame is recognised here alone; the stored text keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from memory_bank.transcript.jsontext import compact, is_raw, parse_output
from memory_bank.transcript.structure import escaped_span, find_structure, unescape, value_of

MAX_FRAMES = 12  # frames around one another that are taken off
MAX_READ = 64_000  # characters of a text that is read as a value
_LINES = 40  # lines of a frame before the content, and after it
_LINE_CHARS = 400  # of the longest line of a frame
_AROUND = 8  # lines without a number before and after numbered lines
_BLOCK_CHARS = 8_000  # of a command, of headers or of a client's remark

# -- lines of a frame ---------------------------------------------------------
_LABELS = (
    r"exit[ _]?(?:code|status)|return[ _]?code|wall[ _]time|chunk id|process group (?:pgid|id)|pgid"
    r"|original token count|total output lines|execution time|time taken|elapsed(?: time)?"
)
_NONE = r"[\(\[<]?(?:none|empty|null|n/a|no output)[\)\]>]?"
_NOTICES = (
    rf"(?:{_LABELS})\b *[:=]?[^\n]*",
    rf"(?:std ?err|error|signal|background pids?|warnings?|open file) *[:=] *(?:{_NONE}|0|\"\"|'')?",
    r"\w+ *(?:is|was|has been)? ?exit(?:ed|s) (?:with )?(?:exit )?(?:code|status)? ?-?\d+[^\n]{0,80}",
    r"exited (?:with )?(?:exit )?(?:code|status) ?-?\d+[^\n]{0,80}",
    r"(?:the )?(?:previous |shell )*(?:command|process|script|tool|job)[\w ]{0,40}"
    r" (?:complet|finish|end|succeed|execut|exit|ran)(?:ed)?"
    r"(?: success\w*| with(?: exit| return)? (?:code|status):? -?\d+)?"
    r"(?: after [\d.]+ ?\w{1,12})?(?:[.,:;(][^\n]*)?",
    r"(?:command|process|script) (?:execut|complet|finish)ed(?: in terminal| success\w*)[^\n]*",
    r"below is the output of [^\n]*|current working directory: [^\n]*|current directory: [^\n]*",
    r"python interpreter: [^\n]*|execution result of [^\n]*|execution logs:|last output from code snippet:|none",
    r"(?:took|(?:done|finished|completed) in|real|user|sys)[ :\t]+(?:\d+m)?[\d.,]+ ?(?:m?s|secs?|seconds?|minutes?)",
    r"[^\n]{0,60}\b(?:output|lines?|characters?|chars|bytes|tokens?)\b[^\n]{0,40}\b(?:truncated|omitted)\b[^\n]{0,80}",
    r"(?:output |result )?truncated[^\n]{0,80}|(?:bash[\w.-]{0,10}|sh[\d.-]{0,6}|>>)?[$#>] ?",
)
_STRONG = re.compile(
    rf"(?=[^\n]{{0,{_LINE_CHARS - 1}}}\Z)"
    rf"[ \t]*(?:[\[(<.…=*#-]{{1,8}} *)?(?:{'|'.join(_NOTICES)})(?: *[\])>.…=*#-]{{1,8}})?[ \t\r]*\Z",
    re.I,
)
_WEAK = re.compile(
    r"[ \t]*(?:command|cmd|directory|cwd|working directory|shell|duration|status) *: [^\n]*\Z", re.I
)
_COMMAND = re.compile(r"[ \t]*(?:command|cmd|i ran this command) *:|\$ \S", re.I)
_OUTPUT = re.compile(
    r"[ \t]*(?:=+ *)?(?:\[[^\]\n]{1,200}\] *)?(?:and (?:i )?got (?:this|the) |here(?:'s| is| are) the |the )?"
    r"(?:(?:command|tool|shell|standard|response) )?(?:std ?out|output|results?|observation|response|body|content)"
    r"(?: start)?(?: *:[ \t]*(?P<rest>[^\n]*)| *=+[ \t\r]*)\Z",
    re.I,
)
_REST = re.compile(r"\s*[\[{<`\"']")
_MARKER = re.compile(r"^[ \t]*(?:std ?out|output|and (?:i )?got this output)[ \t]*:", re.I | re.M)
_HTTP = re.compile(r"HTTP/[\d.]{1,4} (\d{3})[^\n]{0,200}\n(?:[\w-]{1,60}:[^\n]{0,2000}\n){0,60}+\r?\n")
_FENCE = re.compile(r"[ \t]*```[\w+-]{0,20}[ \t\r]*\Z")
_TAGS = (
    "output|stdout|stderr|results?|function_results?|tool_results?|tool_response|tool_output|tool_use_result|response"
    "|shell_output|command_output|bash_output|execution_result|observation|terminal|content"
)
_OPENING = re.compile(rf"<({_TAGS})(?: [^<>\n]{{0,200}})?>", re.I)
_CLOSING = re.compile(rf"</({_TAGS})>\Z", re.I)
_ELEMENT = (
    r"<((?:return|exit)_?code|exit_status|tool_name|cwd|duration|wall_time|pid|signal)>[^<]{0,200}</\1>"
    r"|<(stderr|errors?|system|warnings?)>\s{0,40}</\2>|<(?:stderr|error)/>"
)
_EMPTY_FIRST, _EMPTY_LAST = re.compile(_ELEMENT, re.I), re.compile(rf"(?:{_ELEMENT})\Z", re.I)
_REMARK = re.compile(r"<(bash_metadata|system-reminder|environment_details|metadata)>", re.I)
_REMARK_END = re.compile(r"</(bash_metadata|system-reminder|environment_details|metadata)>\Z", re.I)
_CODE = re.compile(
    r"(?:exit(?:ed)?(?: with)?[ _]?(?:exit )?(?:code|status)?|return[ _]?code)[\"'>:= ]{1,6}(-?\d+)", re.I
)
NUMBERED = re.compile(r"[ \t]{0,8}(\d{1,7})(?:\t|→|[|:] ?)")

# -- members of a frame: of an object, and what each may hold beside the content
_CONTENTS = (
    "stdout", "output", "result", "results", "content", "text", "data", "body", "response", "payload",
    "return_value", "value", "structuredContent",
)  # fmt: skip
_CODES = frozenset(
    ("exit_code", "exitCode", "exitcode", "exit_status", "returncode", "return_code", "code", "rc")
)
_EMPTIES = frozenset(("stderr", "error", "errors", "signal", "warnings", "isError", "is_error", "interrupted",
                      "timed_out", "timeout", "truncated", "isImage"))  # fmt: skip
_ANY = frozenset(("type", "jsonrpc", "annotations", "_meta", "meta", "metadata", "mimeType", "cache_control", "args",
                  "command", "cmd", "cwd", "shell", "pid", "tool_call_id", "tool_use_id", "chunk_id",
                  "original_token_count"))  # fmt: skip
FRAME_MEMBERS = _CODES - {"code"} | _EMPTIES - {"error", "errors", "stderr", "warnings"} | _ANY
"""Members without a value of their own where they stand beside a text."""
_TIMES = re.compile(
    r"(?:duration|elapsed|took|wall|execution|run)_?(?:time|ms|s|seconds)?(?:_?(?:ms|s|seconds))?\Z", re.I
)
_GOOD = frozenset(("success", "successful", "succeeded", "ok", "completed", "complete", "finished", "done"))


class Content(NamedTuple):
    """The content of a text within its frames: a text, its value where it has structure, the exit code of a frame."""

    text: str
    value: Any = None
    code: int | None = None


class Frame(NamedTuple):
    """Where the content stands, text[start:stop], and the exit code that the lines around it report."""

    start: int
    stop: int
    code: int | None = None


def content_of(text: str) -> Content:
    """Return what a tool's text holds: an object or a list as value, if it has so few characters that it is read.

    The value is shared by those who ask for the same text, and must not be changed.
    """
    return _read_content(text) if len(text) <= MAX_READ else _content_of(text)


def _content_of(text: str) -> Content:
    code, value = None, None
    for _ in range(MAX_FRAMES):
        if value is None and len(text) <= MAX_READ and text.lstrip()[:1] in ("{", "[", '"'):
            value = parse_output(text)
        if value is not None and not is_raw(value):
            code = _exit_code(value.get("metadata")) if code is None and isinstance(value, dict) else code
            inner = value if isinstance(value, str) else framed_member(value)
            if inner is None:
                return Content(text, value, code)
            text, value = (inner, None) if isinstance(inner, str) else (compact(inner), inner)
            continue
        frame = frame_of(text)
        code, value = frame.code if code is None else code, None
        inner = text[frame.start : frame.stop]
        if inner == text:
            inner = _printed(text) if len(text) <= MAX_READ else text
        if inner == text:
            value = _structure(text) if len(text) <= MAX_READ else None
            if value is None or framed_member(value) is None:
                return Content(text, value, code)
        else:
            text = inner
    return Content(text, None, code)


_read_content = lru_cache(maxsize=8)(_content_of)  # a new output is asked for by several


def run_of(text: str) -> Content:
    """Return what a run printed: as ``content_of``, also of an object with its exit code; "" where that is all."""
    content = content_of(text)
    if (code := _exit_code(content.value)) is not None:
        members = {k: v for k, v in content.value.items() if k not in _CODES}
        name = next((n for n in _CONTENTS if members.get(n) not in (None, "", [], {})), "")
        printed = members.pop(name, "")
        if isinstance(printed, str) and all(_is_frame(n, members, name) for n in members):
            return content_of(printed)._replace(code=code)
        return content._replace(code=code)
    lines = content.text.split("\n", _LINES)
    has_code = content.value is None and (content.code or len(lines) > 1)
    is_frame = has_code and all(_STRONG.match(line) or _OUTPUT.match(line) for line in lines if line.strip())
    return content._replace(text="") if is_frame else content


def _exit_code(value: Any) -> int | None:
    """Return the exit code that a tool's JSON output reports; None if it has none."""
    codes = [value.get(name) for name in _CODES if name != "code"] if isinstance(value, dict) else []
    codes += [_exit_code(value["metadata"])] if codes and isinstance(value.get("metadata"), dict) else []
    return next((code for code in codes if isinstance(code, int) and code is not True), None)


def frame_of(text: str, start: int = 0, stop: int | None = None) -> Frame:
    """Return where the content of text[start:stop] stands between the lines and tags of a frame.

    A text that is nothing but a frame is its own content.
    """
    stop = len(text) if stop is None else stop
    lines: list[str] = []
    begin, fenced = _after_head(text, start, stop, lines)
    end = _before_tail(text, begin, stop, fenced, lines)
    code = next((int(match[1][:9]) for line in lines if (match := _CODE.search(line))), None)
    if not text[begin:end].strip():
        return Frame(start, stop, code)
    return Frame(begin, end, code)


def _after_head(text: str, start: int, stop: int, lines: list[str]) -> tuple[int, bool]:
    """The position after the frame's first lines, which are added to ``lines``, and whether a fence was opened."""
    begin = at = start
    fenced = False
    if http := _HTTP.match(text, start, min(stop, start + _BLOCK_CHARS)):
        begin = at = http.end()
    for _ in range(_LINES):
        while at < stop and text[at].isspace():
            at += 1
        if at >= stop:
            break
        if element := _EMPTY_FIRST.match(text, at, stop):
            lines.append(element[0])
            begin = at = element.end()
            continue
        if remark := _REMARK.match(text, at, stop):
            close = text.find(f"</{remark[1]}>", at, min(stop, at + _BLOCK_CHARS))
            if close < 0:
                break
            begin = at = close + len(remark[1]) + 3
            continue
        if tag := _OPENING.match(text, at, stop):
            lines.append(tag[0])
            begin = at = tag.end()
            continue
        end = text.find("\n", at, min(stop, at + _LINE_CHARS))
        line = text[at : end if end >= 0 else min(stop, at + _LINE_CHARS)]
        last = end if end >= 0 else stop
        if output := _OUTPUT.match(line):
            rest = (output["rest"] or "").strip()
            if rest and not (_REST.match(rest) or _MARKER.match(line)):
                break
            begin = at = at + output.start("rest") if rest else last
        elif _FENCE.match(line):
            begin = at = last
            fenced = True
        elif _STRONG.match(line):
            lines.append(line)
            begin = at = last
        elif _COMMAND.match(line):
            marker = _MARKER.search(text, at, min(stop, at + _BLOCK_CHARS))
            if marker is not None:
                at = marker.start()
            elif line.startswith("$ ") and end >= 0:
                begin = at = last
            else:
                break
        elif _WEAK.match(line) and end >= 0:
            at = last
        else:
            break
    return begin, fenced


def _before_tail(text: str, begin: int, stop: int, fenced: bool, lines: list[str]) -> int:
    """The position before the frame's last lines, which are added to ``lines``."""
    end = at = stop
    for _ in range(_LINES):
        while at > begin and text[at - 1].isspace():
            at -= 1
        if at <= begin:
            break
        near = max(begin, at - _LINE_CHARS)
        first = text.rfind("\n", near, at) + 1 or near
        line = text[first:at]
        if line[-1] == ">":
            if element := _EMPTY_LAST.search(line):
                lines.append(element[0])
                end = at = first + element.start()
                continue
            if tag := _CLOSING.search(line):
                end = at = first + tag.start()
                continue
            if remark := _REMARK_END.search(line):
                opening = text.rfind(f"<{remark[1]}>", max(begin, at - _BLOCK_CHARS), at)
                if opening >= 0:
                    end = at = opening
                    continue
            if opened := re.search(r"<(?:stderr|error)>\s{0,40}\Z", text[near:at]):
                end = at = near + opened.start()
                continue
        is_line = first > begin or begin == 0
        if fenced and _FENCE.match(line):
            end = at = first
        elif is_line and len(line) < _LINE_CHARS and (_STRONG.match(line) or _OUTPUT_END.match(line)):
            lines.append(line)
            end = at = first
        elif is_line and _WEAK.match(line):
            at = first
        else:
            break
    return end


_OUTPUT_END = re.compile(r"[ \t]*=+ *(?:end(?: of)? output|output end)\b[^\n]{0,80}\Z", re.I)


def framed_member(value: Any) -> Any:
    """The content of an object or a list that is a frame: that of its one member, or its text parts; else None."""
    if isinstance(value, list):
        return _text_of_parts(value)
    if not isinstance(value, dict):
        return None
    names = [name for name in _CONTENTS if value.get(name) not in (None, "", [], {})]
    if not names or not all(_is_frame(name, value, names[0]) for name in value if name != names[0]):
        return None
    inner = value[names[0]]
    if isinstance(inner, str):
        if names[0] == value.get("type") == "text":  # a part of MCP
            return inner
        return inner if len(inner.split(None, 1)) > 1 or inner.lstrip()[:1] in ("{", "[", "<") else None
    return inner if isinstance(inner, (dict, list)) else None


def framed_text(text: str) -> str:
    """The text in an output that is else a frame, such as a part of MCP, also one cut off; else the output."""
    value = parse_output(text) if text.lstrip()[:1] in ("{", "[") else None
    if is_raw(value) and (span := escaped_span(text, 0, len(text))):
        _, cut, after = text[span[1] :].partition("\n")
        return f"{unescape(text[slice(*span)])}{cut}{after}"
    inner = framed_member(value) if isinstance(value, (dict, list)) else None
    return inner if isinstance(inner, str) and inner.strip() else text


def _is_frame(name: str, value: Mapping[str, Any], content: str) -> bool:
    """Return whether a member of an object says only that a run went well, or nothing."""
    member = value[name]
    if name in _CODES:
        return member in (0, None, "0", 200)
    if name in _EMPTIES:
        return member in (None, "", False, 0, [], {}, "null") or (name == "stderr" and content == "stdout")
    if name in ("ok", "success"):
        return member is True
    if name == "status":
        return member == 200 or (isinstance(member, str) and member.casefold() in _GOOD)
    if name == "id":
        return "jsonrpc" in value
    if name == "structuredContent" or member in (None, "", [], {}):
        return True
    return name in _ANY or (_TIMES.match(name) is not None and not isinstance(member, (dict, list)))


def _text_of_parts(parts: Sequence[Any]) -> str | None:
    """The text of a list that has nothing but text parts, or strings of some lines; else None."""
    texts = []
    for part in parts:
        is_part = isinstance(part, dict) and part.get("type", "text") == "text" and "text" in part
        text = part["text"] if is_part and all(k in _ANY or k == "text" for k in part) else part
        if not isinstance(text, str) or not (is_part or "\n" in text):
            return None
        texts.append(text)
    return "\n".join(texts) if texts else None


def _printed(text: str) -> str:
    """The text in the quotes of a printed object, or without its line numbers; the same where it has neither."""
    if not find_structure(text) and (span := escaped_span(text, 0, len(text))):
        return unescape(text[slice(*span)])
    return without_numbers(text) or text


def without_numbers(text: str) -> str | None:
    """The lines of a text without the numbers before them, if they count up; a few lines around have none."""
    lines = text.rstrip("\n").split("\n")
    start, stop = numbered_lines(lines)
    return "\n".join([*lines[:start], *plain_lines(lines[start:stop]), *lines[stop:]]) if stop else None


def numbered_lines(lines: Sequence[str]) -> tuple[int, int]:
    """Where the lines begin and end that are numbered one by one; 0, 0 where not two are, or many others are not."""
    start = next((n for n, line in enumerate(lines[:_AROUND]) if NUMBERED.match(line)), len(lines))
    stop, number = start, ""
    for line in lines[start:]:
        match = NUMBERED.match(line)
        if match is None or (stop > start and int(match[1]) != int(number) + 1):
            break
        stop, number = stop + 1, match[1]
    return (start, stop) if stop > start + 1 and len(lines) - stop <= _AROUND else (0, 0)


def plain_lines(lines: Sequence[str]) -> list[str]:
    """Numbered lines without their numbers."""
    return [line[match.end() :] for line in lines if (match := NUMBERED.match(line))]


def _structure(text: str) -> Any:
    """The object or list that makes up most of a text, or that begins one of its lines; else None."""
    roots = find_structure(text)
    sizes = [root.end - root.start for root in roots]
    if roots and 2 * max(sizes) > sum(sizes):
        return value_of(text, roots[sizes.index(max(sizes))])
    if roots:
        return [value_of(text, root) for root in roots]
    begin = re.search(r"^[\[{]", text, re.M)
    if begin is not None:
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, begin.start())[0]
    return None
