"""Many agents with the same prompts: stepped, retried, forked, compacted in any order; each sees its own past."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule
from tests.chats import call, result, say, system, user
from tests.examples import examples
from tests.service.proxy.conversing import MASKED, World, random_id

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify


class Branch:
    """An agent's conversation from its beginning, as (call id, output).

    ``ids`` are random, counted, or hashed: as if random, but those of all such agents are the same.
    ``produced``: what its tools gave, or its ancestors'. ``held``: what stood in its requests, or in theirs.
    """

    def __init__(self, messages, ids):
        self.messages = messages
        self.ids = ids
        self.produced = set()
        self.held = set()
        self.steps = 0
        self.forgot = False
        self.family = []  # shared with its forks: a mark for every tool that was run again
        self.sent = []  # (messages, produced, held) of its requests so far
        self.parted = False  # it shares its past with another branch, or had to begin anew
        self.session = None

    def fork(self):
        other = Branch(list(self.messages), self.ids)
        other.produced = set(self.produced)
        other.held = set(self.held)
        other.steps = self.steps
        other.forgot = self.forgot
        other.family = self.family
        self.parted = other.parted = True
        return other


class Agents(RuleBasedStateMachine):
    """Agents with the same prompts and tools, in any order; each keeps what its client sends."""

    branches = Bundle("branches")
    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.world = World(Database())
        self.count = self.forks = 0

    def teardown(self):
        self.world.sessions.close()
        problems = list(verify(self.world.database))
        self.world.database.close()
        assert problems == []

    def ask(self, messages, held):
        """A request, and what it must and must not see."""
        found = self.world.ask(messages, headers=self.headers)
        if found is None:
            assert not any(m.get("tool_calls") for m in messages)
            return None
        here = {(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"}
        seen = self.world.records(found.name)
        assert len(seen) == len(set(seen))
        assert set(seen) <= here | held, "it sees what another produced"
        masks = {(call_id, text) for call_id, text in here if text == MASKED}
        assert here - masks <= set(seen), "it does not see what it holds"
        assert {c for c, _ in masks} <= {c for c, _ in seen}, "a masked result has no record"
        return found

    def proceed(self, branch):
        found = self.ask(branch.messages, branch.held)
        branch.held |= {(m["tool_call_id"], m["content"]) for m in branch.messages if m["role"] == "tool"}
        branch.sent.append((list(branch.messages), set(branch.produced), set(branch.held)))
        if found is None:
            return
        if branch.ids == "random" and not branch.parted:
            assert branch.session in (None, found.name), "an agent by itself keeps its session"
        if branch.ids == "random" and not branch.forgot and not branch.family:
            seen = self.world.records(found.name)
            assert branch.produced <= set(seen), "something was lost"
        branch.session = found.name

    @initialize(target=branches)
    def begin_two(self):
        return multiple(self.begin("counted"), self.begin("random"))

    @rule(target=branches, ids=st.sampled_from(["random", "random", "counted", "hashed"]))
    def begin(self, ids):
        branch = Branch([system(), user("How many items are there?")], ids)
        self.proceed(branch)
        return branch

    @rule(
        branch=branches,
        outputs=st.lists(st.integers(0, 2), min_size=1, max_size=2),
        before=st.sampled_from(
            [None, None, None, ("drop", 1), ("drop", 2), ("mask", 0), ("mask", 1), ("sum", 1), ("system", 0)]
        ),
        words=st.booleans(),
    )
    def step(self, branch, outputs, before, words):
        """The model calls tools, they answer; before the next request the client may edit the past."""
        if before is not None and branch.ids != "hashed":
            self.edit(branch, *before)
        branch.steps += 1
        ids = []
        for k in range(len(outputs)):
            self.count += 1
            counted = f"call_{branch.steps}_{k}"
            made = {"random": self.count, "hashed": counted}
            ids.append(random_id(made[branch.ids]) if branch.ids in made else counted)
        name = "count_items"
        text = "let me see" if words else None
        branch.messages = [
            *branch.messages,
            call(*((i, name, {"step": branch.steps}) for i in ids), text=text),
        ]
        for i, value in zip(ids, outputs, strict=True):
            output = f"step {branch.steps} counted {value} items" + " in the warehouse" * 3
            branch.messages.append(result(i, output))
            branch.produced.add((i, output))
        self.proceed(branch)

    def edit(self, branch, how, keep):
        """What clients do to keep lists short: only the latest interactions stay as they were."""
        begins = [i for i, m in enumerate(branch.messages) if m.get("tool_calls")]
        if not begins:
            return
        messages = branch.messages
        if how == "mask":
            branch.forgot |= branch.parted  # whose the masked results are cannot always be told
            edge = begins[-keep] if keep and keep <= len(begins) else (0 if keep else len(messages))
            branch.messages = [
                {**m, "content": MASKED} if m["role"] == "tool" and i < edge else m
                for i, m in enumerate(messages)
            ]
        elif how == "system":
            branch.messages = [system(f"You are careful. It is {self.count} o'clock."), *messages[1:]]
        else:
            start = begins[-keep] if keep <= len(begins) else begins[0]
            anchor = messages[:2]
            if how == "sum":
                anchor = [messages[0], user("So far, in short: some items were counted.")]
            branch.messages = [*anchor, *messages[start:]]

    @rule(branch=branches)
    def forget_everything(self, branch):
        """A summary of all, with no call left: nobody can tell whose it was."""
        if branch.ids == "hashed":
            return
        branch.messages = [branch.messages[0], user("So far, in short: items were counted.")]
        branch.session = None
        branch.parted = branch.forgot = True

    @rule(branch=branches)
    def speak(self, branch):
        branch.messages = [*branch.messages, say("There are some."), user("Are you sure?")]
        self.proceed(branch)

    @rule(branch=branches)
    def ask_aside(self, branch):
        """A request beside the agent's own, such as for a title."""
        aside = [*branch.messages, user("Sum up what you did.")]
        found = self.ask(aside, branch.held)
        if found is not None and branch.ids == "random" and not branch.parted:
            assert branch.session in (None, found.name)
            branch.session = found.name

    @rule(branch=branches, back=st.integers(1, 4))
    def retry(self, branch, back):
        """The same request again: at once, or after others."""
        if len(branch.sent) < back:
            return
        messages, _, held = branch.sent[-back]
        found = self.ask(messages, held)
        again = self.ask(messages, held)
        assert (found and found.name) == (again and again.name), "a second retry finds the same session"
        if back == 1 and found is not None and branch.ids == "random" and not branch.parted:
            assert branch.session in (None, found.name)

    @rule(target=branches, branch=branches)
    def fork(self, branch):
        return self.forked(branch) or multiple()

    def forked(self, branch):
        """A fork, as long as there are few: many would be met seldom."""
        self.forks += 1
        return branch.fork() if self.forks <= 4 else None

    @rule(target=branches, branch=branches, back=st.integers(1, 4))
    def go_back(self, branch, back):
        """Somebody goes on from an earlier request."""
        other = self.forked(branch) if len(branch.sent) >= back else None
        if other is None:
            return multiple()
        messages, produced, held = branch.sent[-back]
        other.messages, other.produced, other.held = list(messages), set(produced), set(held)
        return other

    @rule(
        target=branches,
        branch=branches,
        value=st.integers(3, 5),
        seldom=st.sampled_from([False, False, False, True]),
    )
    def run_again(self, branch, value, seldom):
        """The last tool is run again and gives something else."""
        last = branch.messages[-1]
        other = self.forked(branch) if seldom and last["role"] == "tool" else None
        if other is None:
            return multiple()
        branch.family.append(1)  # two have these calls: after an edit nobody can tell whose they are
        output = f"step {branch.steps} counted {value} items"
        other.messages = [*branch.messages[:-1], result(last["tool_call_id"], output)]
        other.produced.discard((last["tool_call_id"], last["content"]))
        other.held.discard((last["tool_call_id"], last["content"]))
        other.produced.add((last["tool_call_id"], output))
        self.proceed(other)
        return other


class NamedAgents(Agents):
    """The same under one id that a client sends by itself."""

    headers = {"x-claude-code-session-id": "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"}  # noqa: RUF012


TestAgents = Agents.TestCase
TestAgents.settings = examples(100, stateful_step_count=30)
TestNamedAgents = NamedAgents.TestCase
TestNamedAgents.settings = examples(100, stateful_step_count=30)
