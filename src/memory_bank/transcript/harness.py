"""Texts that clients write into user messages by themselves: blocks about their state, summaries, requests for one.

The lists are exact texts of known clients, so that nothing a person writes is taken for them by its meaning.
"""

from __future__ import annotations

import re

from memory_bank.records import project_key

HARNESS_TAGS = (
    "environment_context", "user_instructions", "permissions instructions", "INSTRUCTIONS", "turn_aborted",
    "collaboration_mode", "skills_instructions", "apps_instructions", "plugins_instructions",
    "system-reminder", "command-name", "command-message", "command-args", "local-command-stdout",
    "local-command-caveat", "environment_details", "earlier-session",
)  # fmt: skip
"""Tags of blocks that Codex, Claude Code and Cline put into user messages, and ``HANDED_ON``'s."""
HANDED_ON = "<earlier-session>"
"""How a user message begins in which ``memory-bank handoff`` tells of an earlier session."""

SUMMARY_OPENINGS = (
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem",
    "Here is a summary of the conversation",
    "The following is a summary of the conversation",
    "<conversation_summary>",
    "<summary>",
    "<state_snapshot>",
)
"""How user messages begin in which a client put a summary in the place of older messages."""

COMPACTION_PROMPTS = (
    "Your task is to create a detailed summary of",  # Claude Code
    "CONTEXT CHECKPOINT COMPACTION",  # Codex
    "detailed prompt for continuing our conversation",  # opencode
    "anchored summary",  # opencode
    "Here is the conversation so far:\n\n<conversation>",  # opencode, with the calls as text
    "the component that summarizes internal chat history",  # the system prompt of qwen-code and Gemini CLI for it
    "tasked with summarizing conversations",  # the system prompt of Claude Code and opencode for it
)
"""Sentences of a request for a summary of the conversation, in its last user message or its system prompt."""

REFERRING = (
    # Claude Code's Read, and its Edit and Write
    r"\b(?:file|contents?|result|output)\b[^.\n]{0,80}"
    r"(?:\b(?:unchanged|unmodified|identical)|(?:\bnot|n't)(?: been)? (?:changed|modified))\b",
    r"\bno changes? (?:(?:were |was )?(?:detected|found|made) )?(?:to (?:the )?file )?since\b",
    r"\b(?:refer|look|see|scroll|go) (?:back )?(?:up )?(?:to|at|for) (?:that|the|your|its|an?)\b[^.\n]{0,40}"
    r"\b(?:earlier|previous|prior|last|latest|original|first)\b",
    r"\bno need to (?:re-?)?read\b|\bdo(?:n't| not) (?:need to )?(?:re-?read|read it again)\b",
    r"\b(?:current|already) (?:with)?in (?:(?:your|the|this|our) )?(?:context|conversation)\b",
    r"\balready (?:been )?(?:read|shown|provided|returned|viewed|included)\b",
    # Cline
    r"\bremoved to save space in the context\b",
    r"\b(?:same as|identical to) (?:in )?(?:(?:the|your|an) )?(?:earlier|previous|prior|last)\b",
    # agents that skip a read which they have answered before
    r"\b(?:file|contents?|result|output|read)\b[^\n]{0,80}\b(?:same|identical|duplicate)\b[^.\n]{0,60}"
    r"\b(?:above|earlier|previous|prior|last)\b",
    r"\bduplicate\b[^.\n]{0,30}\b(?:read|call|request|view)\b",
    r"\b(?:use|reuse|rely on|see|check) the (?:contents?|result|output|copy|version)\b[^.\n]{0,40}"
    r"\b(?:above|earlier|previous|prior|last)\b",
    r"\bup[- ]to[- ]date with (?:your|the) (?:last|latest|previous|earlier) (?:read|view)\b",
    r"\balready have the (?:latest |newest |current |full )?(?:version|contents?|copy|text) of th(?:is|e|at) file\b",
)
"""Sentences of short answers to a read or an edit that only refer to an earlier result, by client and variant."""
_REFERS = re.compile("|".join(REFERRING), re.I)
_FOLDER = re.compile(
    r"(?:working directory|working in the directory|workspace path|current directory|<cwd>)(?: is)?[\s:(`'\"]{0,4}"
    r"((?:~|/|[a-z]:[\\/])[^\n]{0,300}?)(?=[\n<>()`'\"|,;]|\.?\s*$|\.\s)",
    re.I,
)
_WORKTREE = re.compile(r"/(?:\.claude/|\.)worktrees/.+|(?<=/\.codex/worktrees)/[^/]+(?=/[^/]+)")
_SHORT = 700  # characters of the longest of them

_OPENING = re.compile(
    rf"\s*+(?:# AGENTS\.md instructions[^\n<]*+\s*+)?<({'|'.join(HARNESS_TAGS)})(?:\s[^>\n]*)?>"
)
_LOOKED_AT = 4_000  # characters at each end of a prompt
_PROMPT = 200_000  # characters in which a folder is looked for


def persons_text(text: str) -> str:
    """The text after a harness's blocks at its beginning; "" for a client's own summary. Takes linear time."""
    at = 0
    while (match := _OPENING.match(text, at)) is not None:
        closing = f"</{match[1]}>"
        end = text.find(closing, match.end())
        if end < 0:
            break
        at = end + len(closing)
    rest = text[at:].strip() if at else text
    return "" if not rest.strip() or rest.lstrip().startswith(SUMMARY_OPENINGS) else rest


def folder_of(text: str) -> str | None:
    """The folder that a client says it works in, as it writes the path; None where its prompt names none."""
    match = _FOLDER.search(text[:_PROMPT])
    return match[1] if match else None


def project_of_place(folder: str) -> str | None:
    """The key of a folder by its path, of worktrees one; None for one without a name."""
    return project_key("folder", _WORKTREE.sub("", folder.strip().rstrip("\\/.").replace("\\", "/")))


def asks_for_summary(text: str) -> bool:
    """Return whether a prompt is a known client's request for a summary of the conversation."""
    looked_at = text if len(text) <= 2 * _LOOKED_AT else f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return any(prompt in looked_at for prompt in COMPACTION_PROMPTS)


def refers_to_earlier(output: str) -> bool:
    """Return whether a tool's output only refers to an earlier result: "file unchanged since your last Read"."""
    return len(output) <= _SHORT and output.count("\n") < 8 and _REFERS.search(output) is not None
