"""A user's script, which type checkers read in their strict modes; it is not run."""

# pyright: strict
import asyncio

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from memory_bank import (
    TOOL_SCHEMAS,
    LLMOrchestrator,
    Memory,
    MemoryBankState,
    apply_memory_bank_strategy,
    is_memory_tool,
    load_config,
)

TOOLS: list[ChatCompletionFunctionToolParam] = [
    {"type": "function", "function": {"name": "x", "parameters": {}}}
]
client, memory = OpenAI(), Memory("bank.db")
messages: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Which orders of customer CUS-7 are late?"}
]
tools = [*TOOLS, *memory.tools]
answer = client.chat.completions.create(
    model="gpt-4.1-mini", messages=memory.context(messages, tools=tools), tools=tools
)
client.chat.completions.create(model="gpt-4.1-mini", messages=memory.context(messages), tools=memory.tools)
for call in answer.choices[0].message.tool_calls or []:
    if call.type == "function" and is_memory_tool(call.function.name):
        text: str = memory.call(call.function.name, call.function.arguments)
for decision in memory.plan.decisions:
    print(memory.record(decision.trace_ids[0]).output_text, decision.reason)
for match in memory.search("late orders"):
    print(match.reason, match.outline.trace_id)


async def main() -> None:
    aclient = AsyncOpenAI()
    async with Memory("bank.db") as m:
        a = await aclient.chat.completions.create(model="gpt-4.1-mini", messages=await m.acontext(messages))
        print(a.choices[0].message.content, await m.asearch("x"))

    async with MemoryBankState(database="bank.db") as bank:
        print(bank.last_plan.tokens, bank.fact_store.get_many(["x"]))
    async with LLMOrchestrator(aclient, model="x") as model:
        print(await model.agenerate(messages))


asyncio.run(main())
state = MemoryBankState.open("sqlite:///bank.db", session_id="task-1")
context, tokens = apply_memory_bank_strategy(messages, client, load_config(), state)
answer = client.chat.completions.create(model="gpt-4.1-mini", messages=context, tools=[*TOOLS, *TOOL_SCHEMAS])
for d in state.last_plan.decisions:
    print(d.fate)
o = LLMOrchestrator(client, model="x")
o2 = LLMOrchestrator(AsyncOpenAI(), model="x", summary_client=OpenAI())
