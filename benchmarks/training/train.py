"""Trains the model of the evidence selection from recorded runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.training.fitting import Recipe, Samples, fit, fit_copied, held_out_loss

from memory_bank.audit.text import parsed_arguments, scalars
from memory_bank.audit.traces import Trace, TraceFiles
from memory_bank.errors import TraceFileError
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.model import (
    COPY_FEATURES,
    FEATURE_NAMES,
    FEATURES,
    FEATURES_VERSION,
    MODEL_FILE,
    CurrentStep,
    Model,
    describe,
    describe_segments,
    load_model,
)
from memory_bank.selection.tables import Array
from memory_bank.selection.values import KIND, find_uses, fold
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    content_text,
    parse_messages,
    read,
)

HORIZON = 20
"""Interactions that a fold serves: it is chosen for their calls, not for the next call alone."""
LATER = 0.9
"""What a value that is first needed one interaction later counts, against one that is needed now."""
OTHER_VALUES, OTHER_SEGMENTS = 250, 60
"""Of one step those that its calls do not need and that are sampled."""
COPIED = 24
"""Characters of the shortest text that counts as copied."""
HELD_OUT = 5
"""Every fifth trace decides whether a new model is better."""
MARGIN = 0.01
"""Share by which a new model's cross entropy must be lower; fits differ by less than that by chance."""
_Step = tuple[Array, Array, Array]
"""Samples of one step: (x, y, w)."""
_PLAIN_KINDS = (KIND["word"], KIND["capital"], KIND["name"])


def save_model(model: Model, path: Path, notes: Mapping[str, object]) -> None:
    """Write a model to a file as JSON, with the names of its features."""
    data = {
        "version": FEATURES_VERSION,
        "features": FEATURE_NAMES,
        "weights": [round(float(w), 5) for w in model.weights],
        "bias": round(model.bias, 5),
        "base": round(model.base, 5),
        "mix": model.mix,
        "feature": model.feature.tolist(),
        "threshold": [[round(float(t), 5) for t in row] for row in model.threshold],
        "leaf": [[round(float(t), 4) for t in row] for row in model.leaf],
        "copied": {
            "features": COPY_FEATURES if len(model.copied) else (),
            "weights": [round(float(w), 5) for w in model.copied],
        },
        "notes": notes,
    }
    path.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An assistant message: its position, the tail before it, its calls' arguments; `later`: what a fold serves."""

    position: int
    tail: int
    arguments: tuple[str, ...]
    later: tuple[tuple[tuple[str, ...], str], ...] = ()


def replay_steps(messages: Sequence[object], index: EvidenceIndex) -> Iterator[RecordedStep]:
    """Yield each assistant message when `index` holds what came before it, then add it to `index`."""
    interaction = 0
    segments = parse_messages(list(messages))
    served = []
    for s in (s for s in segments if isinstance(s, Interaction)):
        outputs = "\n".join(p.result.text for p in s.pairs if p.result)
        served.append((tuple(p.call.text for p in s.pairs if p.call), fold(outputs)))
    for segment in segments:
        if isinstance(segment, Interaction):
            pairs, note = segment.pairs, segment.remark
        elif segment.kind is MessageKind.SAY:
            pairs, note = (), content_text(read(segment.message, "content"))
        else:
            continue
        made = tuple(p.call.text if p.call else "" for p in pairs)
        later = tuple(served[interaction : interaction + HORIZON])
        yield RecordedStep(segment.start, interaction - 1, made, later)
        index.add_remark(interaction=interaction, text=note)
        for n, (pair, arguments) in enumerate(zip(pairs, made, strict=True)):
            index.add_call(
                trace_id=f"{segment.start}.{n}",
                interaction=interaction,
                tool=pair.tool_name,
                arguments=arguments,
                output=pair.result.text if pair.result else "",
            )
        interaction += bool(made)


def traces_in(path: Path) -> Iterator[Trace]:
    """Yield the traces of a file; lines that hold none are skipped. Raises TraceFileError, also without any."""
    return iter(TraceFiles([path], lambda _: None, strict=True))


@dataclass(frozen=True, slots=True)
class Collected:
    """What the model is fitted to, of one trace file: values that calls need, segments that they copy from."""

    values: Samples
    copies: Samples

    def of_traces(self, chosen: Callable[[Array], Array]) -> Collected:
        """Return the samples of the traces whose numbers are `chosen`."""
        values, copies = self.values, self.copies
        return Collected(values.take(chosen(values.trace)), copies.take(chosen(copies.trace)))


def collect(traces: Iterable[Trace], every: int = 1, seed: int = 0) -> Collected:
    """The samples of every `every`-th trace: all values that calls need, segments they copy from, some others."""
    random = np.random.default_rng(seed)
    chosen = ((n, trace) for n, trace in enumerate(traces) if n % every == 0)
    steps = [(n, step) for n, trace in chosen for step in _steps_of(trace, random)]

    def samples(part: int, features: int) -> Samples:
        own = [(n, made) for n, step in steps if (made := step[part]) is not None]
        return Samples.of([s for _, s in own], [n for n, _ in own], features)

    values = samples(0, len(FEATURES))
    return Collected(replace(values, x=values.x.astype(np.float16)), samples(1, len(COPY_FEATURES)))


def _steps_of(trace: Trace, random: np.random.Generator) -> Iterator[tuple[_Step | None, _Step | None]]:
    """The samples of each step of a trace: of values and of segments."""
    zero, none = np.zeros(len(FEATURES), np.float32), np.zeros((0, 1), np.float32)
    index = EvidenceIndex(Model(zero, 0.0, none.astype(np.int32), none, none, 0.0, 0.0))
    interactions = [s for s in parse_messages(list(trace.messages)) if isinstance(s, Interaction)]
    copied = CopiedText([p.call.text for i in interactions for p in i.pairs if p.call])
    said: list[str] = []
    position = 0
    for step in replay_steps(trace.messages, index):
        if not step.arguments or step.tail < 1:
            continue
        before = trace.messages[position : step.position]
        said += [content_text(read(m, "content")) for m in before if read(m, "role") in ("system", "user")]
        position = step.position
        index.tables.set_anchor(said)
        now = CurrentStep(index.tables, step.tail)
        ids = index.eligible(step.tail)
        needed = _needed_values(index, step) if len(ids) else {}
        ids = ids[index.tables.values["agent"][ids] == 0]
        values = None
        if len(ids):
            y = np.array([i in needed for i in ids.tolist()])
            rows, w = _sampled(y, OTHER_VALUES, random)
            if y.any():  # the others are dropped by ``balance``
                w[: y.sum()] = [needed[i] for i in ids[y].tolist()]
                values = describe(now, ids[rows]).T, y[rows], w
        copied.follow(index)
        last = index.tables.segments_before(step.tail)
        copies = None
        if last:
            y = np.zeros(last, bool)
            y[list(copied.sources(step.arguments, last, "\n".join(index.tables.anchor)))] = True
            rows, w = _sampled(y, OTHER_SEGMENTS, random)
            copies = describe_segments(now, last).T[rows], y[rows], w
        yield values, copies


def _sampled(y: Array, most: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Rows and weights: all that are needed, and up to `most` of the others, which stand for all of them."""
    positive, others = np.flatnonzero(y), np.flatnonzero(~y)
    few = others if len(others) <= most else np.sort(random.choice(others, most, replace=False))
    weights = np.full(len(few), len(others) / max(1, len(few)))
    return np.concatenate([positive, few]), np.concatenate([np.ones(len(positive)), weights])


class CopiedText:
    """Where the text of a trace's arguments stands in the segments of its index."""

    def __init__(self, calls: Sequence[str]) -> None:
        """`calls`: the arguments of all calls of the trace."""
        self._known = {gram for call in calls for gram in _grams_of_call(call)}
        self._places: dict[str, list[int]] = {}  # of each gram, in the order of the segments
        self._records = 0

    def follow(self, index: EvidenceIndex) -> None:
        """Take in the records that the index has got since the last time."""
        t = index.tables
        for record in range(self._records, len(t.parsed)):
            for number, segment in enumerate(t.parsed[record].cut.segments, t.first_segment[record]):
                for gram in _grams(segment.text):
                    if gram in self._known:
                        places = self._places.setdefault(gram, [])
                        if not places or places[-1] != number:
                            places.append(number)
        self._records = len(t.parsed)

    def sources(self, arguments: Sequence[str], last: int, anchor: str) -> set[int]:
        """Segments before `last` from which calls copy what neither anchor nor tail shows, the latest of equals."""
        found: set[int] = set()
        for gram in (gram for call in arguments for gram in _grams_of_call(call)):
            places = self._places.get(gram)
            if not places or places[-1] >= last or places[-1] in found:
                continue
            if len(re.findall(r"\w", gram)) >= COPIED // 2 and gram not in anchor:
                found.add(places[-1])
        return found


def _grams_of_call(arguments: str) -> Iterator[str]:
    """The stretches of 24 characters in the strings of a call's arguments, of 40,000 characters of each."""
    for text in scalars(parsed_arguments(arguments)):
        if isinstance(text, str):
            yield from _grams(text[:40_000])


def _grams(text: str) -> Iterator[str]:
    return (text[n : n + COPIED] for n in range(len(text) - COPIED + 1))


def _needed_values(index: EvidenceIndex, step: RecordedStep) -> dict[int, float]:
    """The values used by a step's calls, or by later calls before an output repeats them, with their weights."""
    ids, kinds = index.tables.ids, index.tables.values["kind"]
    out: dict[int, float] = {}
    shown = ""
    for distance, (all_arguments, outputs) in enumerate(step.later):
        for arguments in all_arguments:
            uses = find_uses(arguments)
            texts = [u.form for u in uses if u.leaf and u.form not in ids and len(u.form.split()) <= 10]
            for use in uses:
                value = ids.get(use.form)
                if value is None or value in out or use.form in shown:
                    continue
                if use.leaf or kinds[value] not in _PLAIN_KINDS or any(use.form in text for text in texts):
                    out[value] = LATER**distance
        shown += outputs + "\n"
    return out


def fit_model(samples: Sequence[Collected], recipe: Recipe = Recipe()) -> Model:
    """Fit a model to the samples of several files. Raises ValueError when no step needs anything."""
    return replace(fit([s.values for s in samples], recipe), copied=fit_copied([s.copies for s in samples]))


def train_model(samples: Sequence[Collected], out: Path, **notes: object) -> None:
    """Fit a model to the samples of several files and write it, with the recipe and `notes`."""
    recipe = Recipe()
    save_model(fit_model(samples, recipe), out, {"recipe": asdict(recipe), **notes})


def retrain(files: Sequence[Path], out: Path, against: Path | None = None) -> tuple[float, float, bool]:
    """Train on four of five traces of each file; write `out` only if the model is better on the fifth ones.

    Returns the cross entropy per needed value within its step, on traces that the fit did not see, of the
    new model and of `against` (by default the shipped model), and whether the new one is better. The model
    that is written is fitted to all traces. Raises TraceFileError when the traces need too few older values.
    """
    samples = [collect(traces_in(path)) for path in files]
    held = [s.of_traces(lambda trace: trace % HELD_OUT == HELD_OUT - 1).values for s in samples]
    seen = [s.of_traces(lambda trace: trace % HELD_OUT < HELD_OUT - 1) for s in samples]
    try:
        trial = held_out_loss(fit_model(seen), held)
    except ValueError:
        trial = float("inf")
    present = held_out_loss(load_model(against or MODEL_FILE), held)
    if trial == present == float("inf"):
        raise TraceFileError("the traces hold too few calls that needed older values: give more of them.")
    better = trial < (1 - MARGIN) * present
    if better:
        train_model(samples, out, held_out=round(trial, 4), sets=[p.name for p in files])
    return trial, present, better
