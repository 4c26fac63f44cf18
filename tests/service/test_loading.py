"""What the first request needs is loaded before the service tells its address."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys, threading

from memory_bank.config import Config, load_config
from memory_bank.service.app import create_app

shipped = load_config().model_dump(exclude={"service"})
app = create_app(Config(**shipped, service={"database": sys.argv[1]}))

async def main():
    async with app.router.lifespan_context(app):
        assert "tiktoken" in sys.modules, "the vocabulary"
        assert "memory-bank-tiktoken" not in [t.name for t in threading.enumerate()], "it is still being loaded"
        from memory_bank.context.evidence import evidence_model
        assert evidence_model.cache_info().currsize == 1, "the evidence model"

asyncio.run(main())
"""


def test_vocabulary_and_model_are_loaded_when_the_service_has_started(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"{tmp_path}/bank.db"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
