"""A typed history: steps, prunings that store what they remove, the exact bytes by trace_id, a file.

    python examples/typed_history.py

Needs no model and no key.
"""

import tempfile
from pathlib import Path

from memory_bank import MemoryBankState, handle_tool_call
from memory_bank.history import (
    ActionStep,
    FinalAnswerStep,
    MemoryManager,
    TaskStep,
    ToolCall,
    chain,
    fit_token_budget,
    prune_old_observations,
    to_memory_bank,
)


def main() -> None:
    history = MemoryManager("You are a careful agent.")
    history.add(TaskStep("Which orders of CUS-3 are late?"))
    for i in range(20):
        order = f'{{"id": "ORD-{i}", "customer": "CUS-{i % 5}", "note": "{"on its way, " * 40}"}}'
        history.add(ActionStep(f"I look at order {i}.", [ToolCall("get_order", {"id": f"ORD-{i}"})], [order]))
    history.add(FinalAnswerStep("ORD-3 is late."))
    print(f"before: {len(history)} steps, {history.token_count:,} tokens")

    with MemoryBankState("lexical") as state:
        store = to_memory_bank(state, prune_old_observations(keep_last_n=3))
        history.prune(chain(store, fit_token_budget(2_000)))
        print(
            f"after: {len(history)} steps, {history.token_count:,} tokens, {state.fact_store.size()} records"
        )
        seen = history.get_steps_by_type(ActionStep)[0].observations[0]
        print(f"the first action that is left now shows:\n{seen.text}")
        record = state.fact_store.get(seen.trace_id)
        print(f"its record has {len(record.output_text):,} characters; the agent reads them by get_record:")
        print(handle_tool_call(state, "get_record", {"record": seen.trace_id})[:200])

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.jsonl")
        history.save(file)
        assert MemoryManager.load(file).steps == history.steps
        print(f"saved and loaded: {len(history)} steps, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
