"""``context_management``: it is passed where upstream takes it, and taken out where it does not."""

from __future__ import annotations

import re

from memory_bank.service.proxy.upstream import Headers

CONTEXT_MANAGEMENT = "context_management"

UNKNOWN = re.compile(
    rb"context[_-]management(?!\W{1,9}(?:edits|\d(?!\W{1,5}type)))"
    rb"|compact[_-]2026[\d_-]++(?!\W{0,4}(?:trigger|instructions|pause|:))"
)
"""Is in the refusal of an upstream that does not know the member, its compaction or a beta; not in that of a wrong
edit."""

# of anthropic-beta, those that belong to the member
_BETAS = (b"context-management-2025-06-27", b"compact-2026-01-12")


def without_beta(headers: Headers) -> Headers:
    """The headers without the betas of ``context_management``; other betas stay."""
    shown = [
        (n, b",".join(t for t in v.split(b",") if t.strip() not in _BETAS) if n == b"anthropic-beta" else v)
        for n, v in headers
    ]
    return [(n, v) for n, v in shown if v.strip() or n != b"anthropic-beta"]
