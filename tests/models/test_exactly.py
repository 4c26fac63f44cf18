"""The page "Exactly the description" runs, on weights that a package carries."""

import itertools
from importlib.util import find_spec

import pytest
from tests.test_docs import SCRIPT, TOOLS, blocks, run_commands, run_tool

from memory_bank.testing import ScriptedServer, say

pytestmark = [pytest.mark.long, pytest.mark.bge]
if find_spec("FlagEmbedding") is None:
    pytest.skip("needs FlagEmbedding", allow_module_level=True)

SEED = """\
[memory_strategies.memory_bank]
type = "memory_bank"
observer_model = "gpt-4.1-mini"
embedding_model = "BAAI/bge-small-en-v1.5"
top_k = 3
max_chars_per_record = 2000
"""


def test_exactly_the_description(minilm_folder, folder, monkeypatch, capsys):
    install, config, loop, benchmark = blocks("docs/exactly.md")
    run_commands(install.commands(), folder)  # a pip that does nothing
    assert config.code == SEED
    (folder / "memory.toml").write_text(config.code.replace("BAAI/bge-small-en-v1.5", str(minilm_folder)))
    turns, asked = itertools.cycle(SCRIPT), []

    def answer(body):
        asked.append(body)
        return next(turns) if body.get("tools") else say("A summary.")

    with ScriptedServer(answer) as server:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        exec(compile(loop.code, "exactly.md", "exec"), {"TOOLS": TOOLS, "run_tool": run_tool})
    assert "A summary. " in capsys.readouterr().out
    observed = [b for b in asked if not b.get("tools")]
    assert {b["model"] for b in observed} == {"gpt-4.1-mini"}
    assert "Retrieved Context from Previous Steps" in str(asked[-1]["messages"])
    out, _ = run_commands(benchmark.commands(), folder, TIKTOKEN_CACHE_DIR="", HF_HUB_OFFLINE="1")
    assert "memory_bank" in out


@pytest.fixture
def folder(tmp_path):
    from tests.test_docs import folder as made

    return made.__wrapped__(tmp_path)
