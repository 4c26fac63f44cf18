"""Ingestion: facts first, one Observer call a record, nothing lost when a model or an embedder fails."""

import pytest

from memory_bank import FactStore, InsightStore, LexicalEmbedder, ingest_tool_outputs
from memory_bank.errors import EmbeddingError, RecordError
from memory_bank.testing import ScriptedModel


def test_each_output_is_stored_in_both_stores_with_one_call_each():
    facts, insights = FactStore(), InsightStore(LexicalEmbedder())
    model = ScriptedModel(lambda messages, model: "summary")
    outputs = [("search", {"q": "Berlin"}, {"lat": 52.52}), ("hotel", {"loc": "Berlin"}, {"hotels": []})]
    ids = ingest_tool_outputs(
        tool_outputs=outputs, user_query="Find hotels", fact_store=facts, insight_store=insights,
        llm_client=model, observer_model="m", step_id=4,
    )  # fmt: skip
    assert [facts.get(i).raw_output for i in ids] == [{"lat": 52.52}, {"hotels": []}]
    assert [facts.get(i).step_id for i in ids] == [4, 4]
    assert [insights.get_summary(i) for i in ids] == ["summary", "summary"]
    assert len(model.calls) == 2


def test_nothing_in_nothing_out():
    assert ingest_tool_outputs([], "t", FactStore(), InsightStore(LexicalEmbedder()), None, "m", 1) == []


def test_facts_are_stored_before_the_model_is_asked():
    facts, insights = FactStore(), InsightStore(LexicalEmbedder())
    seen = []

    def answer(messages, model):
        seen.append(facts.size())
        raise RuntimeError

    ingest_tool_outputs([("a", {}, {}), ("b", {}, {})], "t", facts, insights, ScriptedModel(answer), "m", 1)
    assert seen == [2, 2]
    assert len(insights.to_redo()) == 2


def test_a_failing_embedder_loses_no_fact():
    class Broken:
        def encode(self, texts):
            raise OSError("gone")

    facts = FactStore()
    with pytest.raises(EmbeddingError):
        ingest_tool_outputs([("a", {}, {"id": 1})], "t", facts, InsightStore(Broken()), None, "m", 1)
    assert facts.size() == 1


def test_a_value_json_cannot_hold_is_refused_before_anything_is_stored():
    facts = FactStore()
    with pytest.raises(RecordError):
        ingest_tool_outputs(
            [("a", {}, {}), ("b", {}, {1, 2})], "t", facts, InsightStore(LexicalEmbedder()), None, "m", 1
        )
    assert facts.size() == 0
