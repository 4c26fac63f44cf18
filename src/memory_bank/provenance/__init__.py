"""Where the argument values of a tool call came from, and a guard against values without a source."""

from memory_bank.errors import ProvenanceError
from memory_bank.provenance.check import ProvenanceGuard, check_call
from memory_bank.provenance.report import CallReport, Nearest, Origin, Place, ValueReport

__all__ = [
    "CallReport", "Nearest", "Origin", "Place", "ProvenanceError", "ProvenanceGuard", "ValueReport", "check_call",
]  # fmt: skip
