"""Where a bank lies when nobody says where."""

from __future__ import annotations

import os
from pathlib import Path


def default_database() -> Path:
    """``bank.db`` in the user's data directory (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "memory-bank" / "bank.db"
