"""A hook before a tool call is executed: warn, block, or only report."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, Literal, get_args

from memory_bank.errors import ConfigError
from memory_bank.provenance.check import check_call
from memory_bank.provenance.report import CallReport, blocked

log = logging.getLogger("memory_bank.Provenance")

Mode = Literal["warn", "block", "report"]


class ProvenanceGuard:
    """Called with each tool call before it is executed; gives the CallReport back.

    ``warn`` logs a WARNING that names the tool and the arguments, never their contents; ``block`` raises
    ProvenanceError, whose ``report`` tells all; ``report`` only collects. ``reports`` holds the latest
    ``keep`` reports in every mode, those with alarms only when ``only_alarms``. Safe under threads.

    Raises ConfigError for an unknown mode.
    """

    def __init__(
        self, mode: Mode = "warn", *, tools: Any = None, keep: int = 1_000, only_alarms: bool = False
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"the mode of a ProvenanceGuard is one of {', '.join(get_args(Mode))}.")
        self.mode = mode
        self.tools = tools
        self.only_alarms = only_alarms
        self.reports: deque[CallReport] = deque(maxlen=keep)
        self._lock = threading.Lock()

    def __call__(self, call: Any, state: Any, messages: Any = None) -> CallReport:
        """Check a call as ``check_call`` does and raises; in mode ``block`` also raise ProvenanceError."""
        report = check_call(call, state, messages, tools=self.tools)
        if not self.only_alarms or not report.ok:
            with self._lock:
                self.reports.append(report)
        if not report.ok:
            if self.mode == "block":
                raise blocked(report)
            if self.mode == "warn":
                paths = ", ".join(a.path or "(the argument)" for a in report.alarms)
                log.warning("in a call of %s, from nowhere: %s", report.name, paths)
        return report
