"""The likelihood of the recorded next call: sampled steps, scores, paired differences, and the benchmark."""

import json
import math
import re

import pytest
from tests.benchmarks import importing, load
from tests.lab.meter.test_benchmark import bench

from memory_bank.lab.strategies import parse_strategy
from memory_bank.lab.traces import Trace

with importing():
    from likelihood import (
        LikelihoodRow,
        ScoredToken,
        action_text,
        context_text,
        paired_figures,
        sample_steps,
        score_step,
        tools_text,
    )

WORD = re.compile(r"\w+|\W")
TOYS = "tests.lab.meter.toys:"


class WordScorer:
    """A stand-in for a language model: a word costs a nat where the context has it, three where it does not."""

    def __init__(self, folder=""):
        self.folder = folder

    def count(self, text):
        return len(text.split())

    def score(self, contexts, action):
        for name, text in contexts.items():
            known = set(WORD.findall(text))
            yield (
                name,
                [
                    ScoredToken(*m.span(), 1.0 if m[0] in known else 3.0, m[0] in known)
                    for m in WORD.finditer(action)
                ],
            )


def turn(i, name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function}]}


def run(number):
    """Eight look-ups; the ninth call takes a code of the second output, the tenth nothing old."""
    messages = [{"role": "user", "content": "Release the parcel."}]
    for n in range(8):
        messages += [turn(f"c{n}", "look_up", shelf=f"shelf {n}")]
        messages += [{"role": "tool", "tool_call_id": f"c{n}", "content": f"parcel PX-{number}0{n}7 waits"}]
    messages += [
        turn("d", "release", parcel=f"PX-{number}017"),
        {"role": "tool", "tool_call_id": "d", "content": "ok"},
    ]
    messages += [
        turn("e", "report", text="everything was released"),
        {"role": "tool", "tool_call_id": "e", "content": "ok"},
    ]
    return Trace(f"run {number}", messages, task=f"task {number % 2}")


def strategies(config, *names):
    return [parse_strategy(n, config) for n in names]


def steps(config, traces, *names, **options):
    options = {"needs": 9, "controls": 9, "most_tokens": 1_000} | options
    return list(sample_steps(traces, strategies(config, *names), WordScorer(), **options))


def test_the_template():
    messages = run(1).messages[:3]
    assert context_text(messages) == (
        '### user\nRelease the parcel.\n\n### assistant\nCALL look_up {"shelf": "shelf 0"}\n\n'
        "### result\nparcel PX-1007 waits\n\n### assistant\nCALL"
    )
    assert action_text(messages[1]) == ' look_up {"shelf": "shelf 0"}\n'
    assert tools_text(run(1)).splitlines()[2:5] == ["look_up(shelf)", "release(parcel)", "report(text)"]


def test_steps_that_need_an_old_value_and_steps_that_need_none(config):
    needs, control = steps(config, [run(1)], "full", f"{TOYS}keep_last")
    assert (needs.id, needs.kind, control.id, control.kind) == ("run 1@17", "needs", "run 1@19", "control")
    [(start, stop)] = needs.spans
    assert needs.action[start:stop] == "PX-1017"
    assert needs.present == {"full": 1.0, f"{TOYS}keep_last": 0.0}
    assert control.spans == ()
    assert math.isnan(control.present["full"])


def test_a_task_gives_two_steps_a_trace_one_and_sampling_is_seeded(config):
    traces = [run(n) for n in range(1, 9)]
    found = steps(config, traces, "full", controls=0)
    assert len(found) == 4
    assert len({s.id for s in found}) == 4
    assert [s.id for s in steps(config, traces, "full", controls=0)] == [s.id for s in found]
    assert [s.id for s in steps(config, traces, "full", needs=2, controls=0)] == [s.id for s in found[:2]]


def test_what_does_not_fit_or_fails_is_left_out(config):
    assert steps(config, [run(1)], "full", most_tokens=50) == []
    assert steps(config, [run(1)], "full", f"{TOYS}raises") == []


def test_scores_and_paired_differences_by_hand(config):
    rows = [
        row
        for step in steps(config, [run(1)], "full", f"{TOYS}keep_last")
        for row in score_step(step, WordScorer())
    ]
    by_kind = paired_figures(rows, "full")
    needs, control = by_kind["needs"][f"{TOYS}keep_last"], by_kind["control"][f"{TOYS}keep_last"]
    # Of "PX-1017" the tokens "PX" and "-" stand in the last result as well, "1017" does not.
    assert needs.value == pytest.approx(2 / 3)
    assert needs.copied == pytest.approx(2 / 3)
    assert needs.call == 2
    assert (needs.steps, needs.present) == (1, 0)
    assert all(map(math.isnan, needs.call_interval))  # of one step
    assert by_kind["needs"]["full"].call == 0
    assert math.isnan(control.value)


def test_only_steps_with_both_are_compared_and_intervals_are_seeded():
    def row(step, strategy, call):
        return LikelihoodRow(step, "needs", strategy, 10, 1.0, call, 1.0, 1.0)

    rows = [row(str(n), "base", 5.0) for n in range(20)] + [
        row(str(n), "other", 4.0 - n % 2) for n in range(10)
    ]
    figures = paired_figures([*rows, row("alone", "other", 100)], "base")["needs"]["other"]
    assert (figures.steps, figures.call) == (10, -1.5)
    assert figures.call_interval[0] < -1.5 < figures.call_interval[1]
    assert paired_figures(rows, "base") == paired_figures(rows, "base")


# the benchmark


def traces_file(tmp_path):
    lines = [json.dumps({"id": t.id, "task": t.task, "messages": t.messages}) for t in map(run, range(1, 4))]
    (tmp_path / "parcels.jsonl").write_text("\n".join(lines))
    return tmp_path


def reader(*args):
    return bench(*args, command="reader.py")


def test_the_benchmark_scores_writes_rows_and_goes_on(tmp_path):
    folder, out = traces_file(tmp_path), tmp_path / "rows.jsonl"
    options = ["parcels", "--data-dir", folder, "--model", "x", "--scorer", "tests.lab.meter.test_likelihood:WordScorer",
               "--strategy", "full", "--strategy", f"{TOYS}keep_last", "--out", out]  # fmt: skip
    done = reader(*options)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 12
    assert {r["strategy"] for r in rows} == {"full", f"{TOYS}keep_last"}
    assert rows[-1]["value"] is None
    assert "## steps that need older values, against full" in done.stdout
    again = reader(*options)
    assert again.stdout == done.stdout
    assert len(out.read_text().splitlines()) == 12
    assert reader("--report", out, "--strategy", "full").stdout == done.stdout


def test_without_a_model_it_is_skipped_in_one_sentence(tmp_path):
    for args in ([], ["--model", tmp_path / "none"]):
        done = reader(*args)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(r"skipped: [^\n]+\.\n", done.stdout)


@pytest.mark.bge
def test_a_model_of_transformers_scores_as_one_pass_does(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    letters = {c: n for n, c in enumerate(["<s>", *map(chr, range(32, 127))])}
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="<s>"))
    tokenizer.pre_tokenizer = split
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(
        tmp_path
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(letters), max_position_embeddings=256, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    module = load("reader")
    scorer = module.TransformersScorer(str(tmp_path), chunk=7)
    contexts, action = {"a": "shared start, then this", "b": "shared start, then something else"}, " call {1}"
    scores = dict(scorer.score(contexts, action))
    for name, text in contexts.items():
        ids = [letters[c] if c != "<s>" else 0 for c in ["<s>", *text, *action]]
        with torch.inference_mode():
            likely = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
        expected = [-likely[i - 1, ids[i]].item() for i in range(len(ids) - len(action), len(ids))]
        assert [t.nats for t in scores[name]] == pytest.approx(expected, abs=1e-4)
        assert [(t.start, t.stop) for t in scores[name]] == [(i, i + 1) for i in range(len(action))]
