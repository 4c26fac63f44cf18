"""Agents of Python frameworks for ``clients.py``: ``python client_agents.py FRAMEWORK TASK`` prints the answer.

Each runs in an environment that has its framework and nothing of memory_bank. The address of the service is where the
framework looks for it by itself: ``OPENAI_BASE_URL``, ``OPENAI_API_BASE`` for LlamaIndex, ``ANTHROPIC_BASE_URL``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "gpt-4.1-mini"
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
FUNCTION = {"name": "get_order", "description": "The file of an order.", "parameters": PARAMETERS}


def get_order(number: int) -> str:
    """The file of an order.

    Args:
        number: the order's number.
    """
    return Path(f"orders/{number}.json").read_text()


def openai(task: str) -> str:
    """Chat completions in a loop, streamed."""
    import openai

    client = openai.OpenAI()
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        tools: Any = [{"type": "function", "function": FUNCTION}]
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            said = stream.get_final_completion().choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return str(said.content)
        for call in said.tool_calls:
            output = get_order(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def openai_responses(task: str) -> str:
    """The Responses API in a loop; the client keeps the items."""
    import openai

    client = openai.OpenAI()
    items: list[Any] = [{"role": "user", "content": task}]
    while True:
        tools: Any = [{"type": "function", **FUNCTION, "strict": False}]
        answer = client.responses.create(model=MODEL, input=items, tools=tools, store=False)
        items += answer.output
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text
        for call in calls:
            output = get_order(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


def anthropic(task: str) -> str:
    """The SDK's loop of tools, streamed, with thinking."""
    import anthropic

    runner = anthropic.Anthropic().beta.messages.tool_runner(
        model="claude-opus-4-8",
        max_tokens=2000,
        thinking={"type": "adaptive"},
        tools=[anthropic.beta_tool(get_order)],
        messages=[{"role": "user", "content": task}],
        stream=True,
        thread=False,
    )
    text = ""
    for stream in runner:
        text = "".join(b.text for b in stream.get_final_message().content if b.type == "text")
    return text


def claude_agent_sdk(task: str) -> str:
    """The Agent SDK: it runs the command that its wheel brings."""
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

    async def run() -> str:
        options = ClaudeAgentOptions(allowed_tools=["Bash"])
        async for message in query(prompt=task, options=options):
            if isinstance(message, ResultMessage):
                return str(message.result)
        return ""

    return asyncio.run(run())


def openai_agents(task: str) -> str:
    """The Responses API, streamed."""
    from agents import Agent, RunConfig, Runner, function_tool

    async def run() -> str:
        agent = Agent(name="checker", model=MODEL, tools=[function_tool(get_order)])
        config = RunConfig(tracing_disabled=True)
        result = Runner.run_streamed(agent, task, max_turns=100, run_config=config)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    return asyncio.run(run())


def langchain(task: str) -> str:
    """An agent of LangChain; its graph is one of LangGraph."""
    from langchain.agents import create_agent

    agent = create_agent(f"openai:{MODEL}", [get_order])
    messages = {"messages": [{"role": "user", "content": task}]}
    return str(agent.invoke(messages, {"recursion_limit": 200})["messages"][-1].text)


def deepagents(task: str) -> str:
    """A deep agent."""
    from deepagents import create_deep_agent

    agent = create_deep_agent(f"openai:{MODEL}", [get_order])
    messages = {"messages": [{"role": "user", "content": task}]}
    return str(agent.invoke(messages, {"recursion_limit": 200})["messages"][-1].text)


def pydantic_ai(task: str) -> str:
    """Chat completions."""
    from pydantic_ai import Agent

    return str(Agent(f"openai-chat:{MODEL}", tools=[get_order]).run_sync(task).output)


def llama_index(task: str) -> str:
    """A FunctionAgent, streamed."""
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai import OpenAI

    async def run() -> str:
        agent = FunctionAgent(tools=[get_order], llm=OpenAI(MODEL), timeout=None)
        return str(await agent.run(task, max_iterations=100))

    return asyncio.run(run())


def litellm(task: str) -> str:
    """Its completion in a loop."""
    import litellm

    messages: list[Any] = [{"role": "user", "content": task}]
    tools = [{"type": "function", "function": FUNCTION}]
    while True:
        said = litellm.completion(f"openai/{MODEL}", messages=messages, tools=tools).choices[0].message
        messages.append(said)
        if not said.tool_calls:
            return str(said.content)
        for call in said.tool_calls:
            output = get_order(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def google_adk(task: str) -> str:
    """An agent whose model LiteLLM reaches."""
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner

    agent = LlmAgent(name="checker", model=LiteLlm(f"openai/{MODEL}"), tools=[get_order])
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent))
    return str(asyncio.run(runner.run_debug(task, quiet=True))[-1].content.parts[0].text)


def crewai(task: str) -> str:
    """A crew of one."""
    os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    llm = LLM(model=f"openai/{MODEL}")
    checker = Agent(
        role="checker",
        goal="Check orders",
        backstory="A clerk",
        llm=llm,
        tools=[tool(get_order)],
        max_iter=100,
    )
    work = Task(description=task, expected_output="A sentence", agent=checker)
    return str(Crew(agents=[checker], tasks=[work]).kickoff())


def autogen(task: str) -> str:
    """An AssistantAgent."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def run() -> str:
        client = OpenAIChatCompletionClient(model=MODEL)
        agent = AssistantAgent("checker", client, tools=[get_order], max_tool_iterations=100)
        return str((await agent.run(task=task)).messages[-1].content)

    return asyncio.run(run())


def ag2(task: str) -> str:
    """An Agent of AG2."""
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    agent = Agent("checker", config=OpenAIConfig(MODEL, streaming=True), tools=[get_order])
    return str(asyncio.run(agent.ask(task)).body)


def agno(task: str) -> str:
    """An agent with a model of OpenAI's chat API."""
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    agent = Agent(model=OpenAIChat(id=MODEL), tools=[get_order], telemetry=False)
    return str(agent.run(task).content)


def haystack(task: str) -> str:
    """Its Agent component."""
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function

    generator = OpenAIChatGenerator(model=MODEL)
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(get_order)], max_agent_steps=100)
    return str(agent.run(messages=[ChatMessage.from_user(task)])["messages"][-1].text)


def dspy(task: str) -> str:
    """ReActV2, which calls tools; ReAct writes its calls as text."""
    import dspy

    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    dspy.configure(lm=dspy.LM(f"openai/{MODEL}", cache=False), adapter=adapter)
    return str(dspy.ReActV2("task -> answer", tools=[get_order], max_iters=50)(task=task).answer)


def mini_swe_agent(task: str) -> str:
    """Its default agent with calls as tools."""
    import yaml
    from minisweagent import package_dir
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    settings = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text())["agent"]
    kept = {k: v for k, v in settings.items() if k in ("system_template", "instance_template", "cost_limit")}
    model = LitellmModel(model_name=f"openai/{MODEL}", cost_tracking="ignore_errors")
    return str(DefaultAgent(model, LocalEnvironment(), **kept).run(task)["submission"])


def smolagents(task: str) -> str:
    """A ToolCallingAgent."""
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    return str(ToolCallingAgent([tool(get_order)], OpenAIModel(MODEL), max_steps=50).run(task))


AGENTS: dict[str, Callable[[str], str]] = {
    f.__name__: f
    for f in (
        openai, openai_responses, anthropic, claude_agent_sdk, openai_agents, langchain, deepagents, pydantic_ai,
        llama_index, litellm, google_adk, crewai, autogen, ag2, agno, haystack, dspy,
        mini_swe_agent, smolagents,
    )
}  # fmt: skip

if __name__ == "__main__":
    sys.path = [p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent]
    print(AGENTS[sys.argv[1]](sys.argv[2]))
