"""Measures the search: does it find the output that the next call needs, the turn that said a value, the latest fact?

    python benchmarks/search.py FILES... [--form runs|shell|talk|asked] [--part all|even|odd] [--limit 60] [--model MODEL]
    python benchmarks/search.py --form facts [--part all|even|odd] [--limit 60]
    python benchmarks/search.py --form speed

``runs``: queries are what an agent wrote before a call (25 characters or more), at most twelve a run. Wanted are the
older outputs (at most three of them) that show a value of the call which neither the task nor the query shows; the
last interaction does not count. ``shell``: the same of the calls of a shell alone; where the agent wrote less, the
query is the description of the call. ``talk``: 20 dialogues in a row are one session, each turn of them a record. A
query asks for an argument of a call by the names of the argument and of the call and by its other arguments; wanted
are the turns of its dialogue (at most three) that say the value. ``asked``: long talks of people, and questions about
them with the turns that answer each; a file of LoCoMo, a file of LongMemEval (the talks of 20 questions in a row are one
session), or a folder of BEAM's chats. ``facts``: generated sessions in which facts change,
told by messages, by outputs and by the arguments of calls. Wanted is the latest statement of a value; ``latest
first``: how often it stands before all older ones; ``superseded, right``: of the results that a later message
supersedes by their reason, how many are older statements of the same value, and are superseded by a later one. ``speed``:
CPU of a search over 500 records of a session, and over a project of ten sessions with 1,000 reads, in a bank on disk.

hit@k is the share of such values of which one of the first k results shows the source. Of ``asked``, recall@10 is the
share of all turns that answer a question which stand among the first ten results. Beside the search stands
textbook BM25 over the outputs alone, and BM25 with half of the score of each output beside it. ``--part``: every
second session (of facts: other kinds), to tune on one half and to report the other. ``--model`` adds the search with
an embedder.
"""

# ruff: noqa: E501  a statement of a fact is one line

from __future__ import annotations

import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness import command_line, print_counter, print_head, print_row
from memory_bank import InteractionRecord, MemoryBankSettings, MemoryBankState
from memory_bank.audit.traces import Trace, read_traces
from memory_bank.tools.search import identifiers_in, search_session
from memory_bank.transcript.messages import MessageKind, calls_of, content_text, kind_of

PLACES = (1, 3, 10)
SHELLS = {"bash", "shell", "execute_sql", "terminal-run_command", "local-python-execute"}
DIALOGUES = 20  # of a session


@dataclass
class Session:
    """The records of a session in their order, and what is asked of the first of them.

    ``queries``: how many records there are, the query, the numbers of the records wanted of each value.
    """

    records: list[InteractionRecord] = field(default_factory=list)
    queries: list[tuple[int, str, list[list[int]]]] = field(default_factory=list)

    def add(self, step: int, tool: str, arguments: Any, output: str) -> None:
        trace_id, value = f"{len(self.records):08d}-record", parsed(output)
        value = {"_raw": output} if value is output else value
        self.records.append(InteractionRecord(trace_id, step, tool, arguments, value, output_text=output))


def parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def run_of(trace: Trace, shell: bool) -> Session:
    """A run, or what a shell did in it."""
    session = Session()
    known: list[set[str]] = []
    pending: dict[str | None, tuple[str, Any]] = {}
    task, turn = "", 0
    for message in trace.messages:
        text, kind = content_text(message.get("content")), kind_of(message)
        if kind in (MessageKind.SYSTEM, MessageKind.USER):
            task += text
        elif kind is MessageKind.RESULT:
            call = pending.pop(message.get("tool_call_id"), None)
            if call is not None:
                session.add(turn, *call, text)
                known.append(set(identifiers_in(text[:200_000])))
        elif kind is MessageKind.CALL:
            calls = [call for call in calls_of(message) if not shell or call.name.lower() in SHELLS]
            if not calls:
                continue
            turn += 1
            pending |= {call.call_id: (call.name, parsed(call.arguments)) for call in calls}
            if shell and len(text) < 25:
                given = [parsed(call.arguments) for call in calls]
                text = " ".join(str(g.get("description", "")) for g in given if isinstance(g, dict))
            if len(text) < (15 if shell else 25) or len(known) < 8 or len(session.queries) == 12:
                continue
            values = {token for call in calls for token in identifiers_in(str(call.arguments))}
            wanted = []
            for token in sorted(t for t in values if t not in task and t not in text):
                holders = [n for n, tokens in enumerate(known) if token in tokens]
                if 0 < len(holders) <= 3 and all(session.records[n].step_id < turn - 1 for n in holders):
                    wanted.append(holders)
            if wanted:
                session.queries.append((len(known), text, wanted))
    return session


def chat_of(turns: Sequence[tuple[Any, str, str]], asked: Sequence[tuple[str, Sequence[Any]]]) -> Session:
    """A talk of (id, speaker, text) in its order, and questions with the ids of the turns that answer them."""
    session, numbers = Session(), dict[Any, int]()
    for key, speaker, text in turns:
        numbers[key] = len(session.records)
        session.add(len(session.records), "message", {"speaker": speaker}, text)
    for question, keys in asked:
        if wanted := sorted({numbers[key] for key in keys if key in numbers}):
            session.queries.append((len(session.records), question, [wanted]))
    return session


def asked_of(path: Path) -> Iterator[Session]:
    """The talks of LoCoMo's file, of LongMemEval's file, or of a folder of BEAM's chats."""
    if path.is_dir():
        for chat in sorted(path.glob("*/chat.json")):
            batches = json.loads(chat.read_text(encoding="utf-8"))
            said = [m for batch in batches for turn in batch["turns"] for m in turn]
            kinds = json.loads((chat.parent / "probing_questions/probing_questions.json").read_text("utf-8"))
            yield chat_of(
                [(m["id"], m["role"], re.sub(r"\s*->->.*$", "", m["content"])) for m in said],
                [
                    (q["question"], list(whole_numbers(q.get("source_chat_ids"))))
                    for k in kinds.values()
                    for q in k
                ],
            )
        return
    samples = json.loads(path.read_text(encoding="utf-8"))
    if "conversation" in samples[0]:  # LoCoMo
        for sample in samples:
            parts = [v for k, v in sample["conversation"].items() if isinstance(v, list)]
            yield chat_of(
                [(turn["dia_id"], turn["speaker"], turn["text"]) for part in parts for turn in part],
                [(q["question"], re.findall(r"D\d+:\d+", str(q.get("evidence")))) for q in sample["qa"]],
            )
        return
    for start in range(0, len(samples), DIALOGUES):
        turns, asked = list[tuple[Any, str, str]](), list[tuple[str, list[int]]]()
        for sample in samples[start : start + DIALOGUES]:
            said = [m for part in sample["haystack_sessions"] for m in part]
            asked.append(
                (sample["question"], [len(turns) + n for n, m in enumerate(said) if m.get("has_answer")])
            )
            turns += [(len(turns) + n, m["role"], m["content"]) for n, m in enumerate(said)]
        yield chat_of(turns, asked)


def whole_numbers(value: Any) -> Iterator[int]:
    """The whole numbers in nested lists and dicts."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from whole_numbers(item)


def plain(name: str) -> str:
    """The words of a name: of ``FindBus`` and ``to_city``."""
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", name).replace("_", " ").lower()


def talk_of(traces: Sequence[Trace]) -> Session:
    """Dialogues as one session; what they ask is asked at its end."""
    session, asked = Session(), list[tuple[str, list[list[int]]]]()
    for trace in traces:
        start = len(session.records)
        for message in trace.messages:
            text, kind = content_text(message.get("content")), kind_of(message)
            if kind in (MessageKind.USER, MessageKind.SAY, MessageKind.CALL) and text:
                speaker = "user" if kind is MessageKind.USER else "assistant"
                session.add(len(session.records), "message", {"speaker": speaker}, text)
            for call in calls_of(message) if kind is MessageKind.CALL else ():
                arguments = parsed(call.arguments)
                for slot, value in arguments.items() if isinstance(arguments, dict) else ():
                    others = (
                        str(v) for s, v in arguments.items() if s != slot and str(v) not in ("True", "False")
                    )
                    said = re.compile(rf"(?<!\w){re.escape(str(value))}(?!\w)", re.IGNORECASE)
                    turns = [
                        n
                        for n in range(start, len(session.records))
                        if said.search(session.records[n].output_text or "")
                    ]
                    if 0 < len(turns) <= 3 and len(str(value)) > 2 and str(value) not in ("True", "False"):
                        query = f"Which {plain(slot)} for {plain(call.name)}: {', '.join(others)}?"
                        asked.append((query, [turns]))
    session.queries = [(len(session.records), query, wanted) for query, wanted in asked]
    return session


NAMES = {
    "person": "Priya Raman;Lena Vogt;Tomás Rivera;Amina Diallo;Kenji Mori;Sofia Lindqvist;Omar Haddad;Ruth Okafor",
    "city": "Leipzig;Porto;Utrecht;Gdansk;Lyon;Bergen;Tampere;Ghent",
    "day": "Monday;Tuesday;Wednesday;Thursday;Friday",
    "event": "design review;budget hearing;release meeting;board call;retrospective;vendor demo",
    "room": "Linden;Aurora;Kestrel;Basalt;Harbour",
    "team": "payments;search;onboarding;billing;mobile;data platform",
    "seat": "window;aisle;front row;exit row",
    "status": "open;packed;shipped;delivered;returned;cancelled",
    "carrier": "DHL;UPS;GLS;PostNord",
    "service": "checkout;gateway;mailer;catalogue;ledger;notifier",
    "street": "Lindenweg;Rua do Almada;Oudegracht;Kirkegata;Quai Perrache",
}
# What is asked, and statements of the value, the first ones older: by messages, by tools, by what a call was given.
FACTS: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("On which day is the {event}?", [
        ("message", '{{"speaker": "user"}}', "Let us hold the {event} on {day} in room {room}, everybody is invited."),
        ("message", '{{"speaker": "{person}"}}', "I cannot come then, so the {event} moves to {day}, same room as before."),
        ("calendar_update", '{{"title": "{event}", "day": "{day}", "room": "{room}"}}', '{{"ok": true, "notified": {n}}}'),
    ]),
    ("What is the status of order ORD-{id}?", [
        ("get_order", '{{"order_id": "ORD-{id}"}}', '{{"order_id": "ORD-{id}", "status": "{status}", "carrier": "{carrier}", "total": {n}}}'),
        ("get_order", '{{"order_id": "ORD-{id}"}}', '{{"order_id": "ORD-{id}", "status": "{status}", "carrier": "{carrier}", "total": {n}}}'),
        ("update_order", '{{"order_id": "ORD-{id}", "status": "{status}"}}', '{{"ok": true, "order_id": "ORD-{id}"}}'),
    ]),
    ("How much money may {team} spend this quarter?", [
        ("message", '{{"speaker": "{person}"}}', "The budget of {team} is {n} thousand euros this quarter, to spend on people and money for tools."),
        ("message", '{{"speaker": "user"}}', "Finance has cut {team}: only {n} thousand are left for them."),
        ("message", '{{"speaker": "user"}}', "Good news, {person} got {team} raised to {n} thousand."),
    ]),
    ("Which version of {service} is deployed?", [
        ("Bash", '{{"command": "kubectl get deploy {service} -o wide"}}', "NAME READY IMAGE\n{service} 3/3 registry.local/{service}:1.{n}"),
        ("Bash", '{{"command": "helm upgrade {service} charts/{service} --set image.tag=1.{n}"}}', 'Release "{service}" has been upgraded. Happy Helming!\nSTATUS: deployed'),
        ("Bash", '{{"command": "kubectl get deploy {service} -o wide"}}', "NAME READY IMAGE\n{service} 3/3 registry.local/{service}:1.{n}"),
    ]),
    ("Where does {person} live now?", [
        ("get_customer", '{{"name": "{person}"}}', '{{"name": "{person}", "address": {{"street": "{street} {n}", "city": "{city}"}}, "tier": "gold"}}'),
        ("message", '{{"speaker": "user"}}', "{person} has moved, please send everything to {street} {n} in {city} from now on."),
        ("message", '{{"speaker": "user"}}', "The flat in {city} is given up; {person} is at {street} {n} again."),
    ]),
    ("Who leads the {team} team?", [
        ("message", '{{"speaker": "user"}}', "{person} leads the {team} team since the summer."),
        ("message", '{{"speaker": "{person}"}}', "From Monday on {person} takes over {team}."),
        ("list_teams", '{{"name": "{team}"}}', '[{{"team": "{team}", "lead": "{person}", "members": {n}}}]'),
    ]),
    ("What is the request timeout of {service}?", [
        ("Read", '{{"file_path": "config/{service}.yaml"}}', "1  name: {service}\n2  replicas: 3\n3  request_timeout: {n}s\n4  retries: 2"),
        ("Edit", '{{"file_path": "config/{service}.yaml", "new_string": "request_timeout: {n}s"}}', "The file config/{service}.yaml has been updated."),
        ("Bash", '{{"command": "grep timeout config/{service}.yaml"}}', "request_timeout: {n}s"),
    ]),
    ("What is the balance of account AC-{id}?", [
        ("get_account", '{{"account": "AC-{id}"}}', '{{"account": "AC-{id}", "owner": "{person}", "balance": {n}}}'),
        ("transfer", '{{"source": "AC-{id}", "amount": {n}}}', '{{"done": true, "source": {{"account": "AC-{id}", "new_balance": {n}}}}}'),
        ("get_account", '{{"account": "AC-{id}"}}', '{{"account": "AC-{id}", "owner": "{person}", "balance": {n}}}'),
    ]),
    ("Which seat does {person} want on flights?", [
        ("message", '{{"speaker": "user"}}', "For flights book {person} a {seat} seat wherever you can."),
        ("message", '{{"speaker": "user"}}', "{person} has changed her mind: {seat}, please."),
        ("message", '{{"speaker": "{person}"}}', "I would rather have the {seat} from now on. {person}"),
    ]),
    ("Who works on ticket PAY-{id}?", [
        ("get_issue", '{{"key": "PAY-{id}"}}', '{{"key": "PAY-{id}", "summary": "Rounding of refunds", "assignee": "{person}", "works": true}}'),
        ("message", '{{"speaker": "{person}"}}', "I am handing PAY-{id} to {person}, who knows the code."),
        ("assign_issue", '{{"key": "PAY-{id}", "assignee": "{person}"}}', "Done."),
    ]),
]  # fmt: skip
SUBJECTS = ("event", "team", "service", "id", "person")


def facts_of(seed: int, part: str) -> Session:
    """A session in which facts change; of each value only its latest statement is wanted.

    The kinds of facts are split, too: the first five are of even sessions.
    """
    chance, session, asked = random.Random(seed), Session(), list[tuple[str, list[int]]]()
    kinds = {"even": FACTS[:5], "odd": FACTS[5:], "all": FACTS}[part]
    plans = []
    for number, (question, statements) in enumerate(kinds * 8):
        subject = {k: chance.choice(v.split(";")) for k, v in NAMES.items() if k in SUBJECTS}
        subject["id"] = str(chance.randrange(10_000, 99_999))
        key = next(k for k in SUBJECTS if f"{{{k}}}" in question)
        if all((key, subject[key]) != known for known, *_ in plans):
            many = (3, 2, 3, 2, 1, 1, 1, 1)[number // len(kinds)]  # what is said once is never asked for
            plans.append(((key, subject[key]), question, chance.sample(statements, 3)[:many]))
    turns = [(chance.random() + n, plan) for n, plan in enumerate(plans)]
    order = sorted(
        ((at * chance.random(), i, j) for i, (at, plan) in enumerate(turns) for j in range(len(plan[2])))
    )
    told: dict[int, list[int]] = {}
    for _, i, _ in order:
        (key, name), _, statements = plans[i]
        values = {k: chance.choice(v.split(";")) for k, v in NAMES.items()} | {
            "id": "0",
            "n": str(chance.randrange(10, 999)),
        }
        values[key] = name
        tool, arguments, output = (text.format(**values) for text in statements[len(told.get(i, []))])
        told.setdefault(i, []).append(len(session.records))
        session.add(len(session.records), tool, json.loads(arguments), output)
    for i, numbers in told.items():
        (key, name), question, _ = plans[i]
        if len(numbers) > 1:
            asked.append((question.format(**{key: name}), numbers))
    session.add(len(session.records), "message", {"speaker": "user"}, "Thank you, that is all for now.")
    session.queries = [(len(session.records), query, [numbers]) for query, numbers in asked]
    return session


def sessions_of(path: Path | None, form: str, part: str, limit: int) -> Iterator[Session]:
    """The sessions of a file that have queries, or generated ones: at most ``limit``."""
    if path is None:
        yield from (facts_of(seed, part) for seed in range(limit))
        return
    traces = [] if form == "asked" else [t for t in read_traces(path) if isinstance(t, Trace)]
    if form == "asked":
        every: Iterator[Session] = asked_of(path)
    elif form == "talk":
        every = (talk_of(traces[n : n + DIALOGUES]) for n in range(0, len(traces), DIALOGUES))
    else:
        every = (run_of(trace, form == "shell") for trace in traces)
    first = part == "odd"
    yield from islice((s for s in islice(every, first, None, 1 if part == "all" else 2) if s.queries), limit)


def terms(text: str) -> list[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", re.sub(r"[_/.:@#-]", " ", text))
    return [re.sub(r"(ing|ed|es|s)$", "", word) for word in re.findall(r"[a-z0-9]+", split.lower())]


class TextBook:
    """BM25 over outputs by the textbook: Robertson and Zaragoza, 2009."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self.counts = [Counter(terms(output[:40_000])) for output in outputs]

    def scores(self, query: str, known: int, k1: float = 1.2, b: float = 0.75) -> list[float]:
        """The score of each of the first ``known`` outputs."""
        counts = self.counts[:known]
        lengths = [count.total() for count in counts]
        mean = statistics.mean(lengths) or 1
        scores = [0.0] * known
        for term in dict.fromkeys(terms(query)):
            holders = [n for n, count in enumerate(counts) if term in count]
            idf = math.log(1 + (known - len(holders) + 0.5) / (len(holders) + 0.5))
            for n in holders:
                often = counts[n][term]
                scores[n] += idf * often * (k1 + 1) / (often + k1 * (1 - b + b * lengths[n] / mean))
        return scores


def with_neighbours(scores: Sequence[float], share: float = 0.5) -> list[float]:
    padded = [0.0, *scores, 0.0]
    return [score + share * (padded[n] + padded[n + 2]) for n, score in enumerate(scores)]


def best_of(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda n: -scores[n])[: PLACES[-1]]


def measure(path: Path | None, form: str, part: str, limit: int, model: str) -> None:
    found: dict[str, list[list[float]]] = {}
    latest: dict[str, list[bool]] = {}
    recalled: dict[str, list[float]] = {}
    told = list[bool]()
    spent = list[float]()
    embedders = {"search": "lexical"} | ({"search with weights": model} if model else {})
    for session in sessions_of(path, form, part, limit):
        states = {name: MemoryBankState(embedder) for name, embedder in embedders.items()}
        settings = MemoryBankSettings(selection="evidence", observer_model="extractive")
        textbook, stored = TextBook([r.output_text or "" for r in session.records]), 0
        for state in states.values():
            state.prepare(settings)
        for known, query, wanted in session.queries:
            scores = textbook.scores(query, known)
            ranked = {"BM25": best_of(scores), "BM25 + neighbours": best_of(with_neighbours(scores))}
            for name, state in states.items():
                state.add(session.records[stored:known])
                began = time.process_time()
                matches = search_session(state, query, 10).matches
                spent.append(time.process_time() - began)
                ranked[name] = [m.outline.number - 1 for m in matches]
                if path is None and name == "search":
                    corrected = [
                        (m.outline.number - 1, int(str(m.newer)[:8])) for m in matches if m.is_corrected
                    ]
                    told += [{old, new} <= {*wanted[0]} and old < new for old, new in corrected]
            stored = known
            for name, numbers in ranked.items():
                if path is None:  # the last of them says what is so now
                    (statements,) = wanted
                    first = next((n for n in numbers if n in statements), None)
                    latest.setdefault(name, []).append(first == statements[-1])
                if form == "asked":
                    recalled.setdefault(name, []).append(
                        statistics.mean(n in numbers[: PLACES[-1]] for n in wanted[0])
                    )
                sources = wanted if path else [wanted[0][-1:]]
                hits = [[not set(w).isdisjoint(numbers[:k]) for k in PLACES] for w in sources]
                found.setdefault(name, []).append(
                    [statistics.mean(column) for column in zip(*hits, strict=True)]
                )
    for name, rows in found.items():
        shares = (f"{100 * statistics.mean(column):.1f}" for column in zip(*rows, strict=True))
        first = f"{100 * statistics.mean(latest[name]):.1f}" if name in latest else ""
        recall = f"{100 * statistics.mean(recalled[name]):.1f}" if name in recalled else ""
        ms = f"{1000 * statistics.mean(spent):.1f}" if name == "search" else ""
        right = f"{sum(told)} of {len(told)}" if path is None and name == "search" else ""
        source = path.name.split(".")[0] if path else "facts"
        print_row(f"{source}, {form} {part}", name, len(rows), *shares, recall, first, right, ms)


def measure_speed() -> None:
    """A row for a session, and one for a project."""
    words = [word for values in NAMES.values() for word in re.findall(r"[a-z]{4,}", values.lower())]
    chance = random.Random(1)

    def read(name: str, number: int) -> InteractionRecord:
        path = f"{name}/src/{chance.choice(words)}/{chance.choice(words)}_{number % 40}.py"
        lines = (f"{n}  def {'_'.join(chance.choices(words, k=2))}(): return 1" for n in range(30))
        return InteractionRecord(f"{name}-{number}", number, "Read", {"file_path": path}, "\n".join(lines))

    print_head("records", "searches", "median, ms", "slowest, ms")
    for title, names, count in (
        ("500 of a session", ["s0"], 500),
        ("10 sessions of 100 reads", [*"0123456789"], 100),
    ):
        with tempfile.TemporaryDirectory() as folder:
            scope = "session" if len(names) == 1 else "project"
            settings = MemoryBankSettings(selection="evidence", observer_model="extractive", scope=scope)
            for name in [*names, *(["asks"] if len(names) > 1 else [])]:
                state = MemoryBankState.open(
                    f"{folder}/b.db", session_id=name, embedding_model="lexical", project="p"
                )
                state.prepare(settings)
                state.add([read(name, n) for n in range(count if name != "asks" else 1)], task="work")
            queries = [f"src/{words[0]}/{words[1]}_3.py", "where is the timeout of the mailer", *words[:8]]
            spent = list[float]()
            for query in [*queries, *queries, *queries]:
                began = time.process_time()
                search_session(state, query, 5)
                spent.append(1_000 * (time.process_time() - began))
            spent = spent[len(queries) :]  # the first ones import and compile
            print_row(title, len(spent), f"{statistics.median(spent):.1f}", f"{max(spent):.1f}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--form", choices=("runs", "shell", "talk", "asked", "facts", "speed"), default="runs"
    )
    parser.add_argument("--part", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--model", default="")
    args = parser.parse_args(argv)
    print_counter()
    if args.form == "speed":
        measure_speed()
        return 0
    if args.files or args.form == "facts":
        print_head(
            "sessions",
            "ranking",
            "queries",
            *(f"hit@{k}" for k in PLACES),
            "recall@10",
            "latest first",
            "superseded, right",
            "CPU ms",
        )
    for path in [None] if args.form == "facts" else args.files:
        measure(path, args.form, args.part, args.limit, args.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
