"""What stays in memory after a request: caches are bounded in entries and in bytes, and long keys are not kept."""

import gc
import json
import weakref

from tests.chats import rounds
from tests.service.processes import until
from tests.service.proxied import Got, before, post, whole

from memory_bank import MemoryBankState, load_config
from memory_bank.processor import MemoryProcessor
from memory_bank.service.proxy.body import MessageCache


def interned(cache, *messages):
    """The first of some messages as a cache gives it."""
    return cache.parse(json.dumps({"messages": messages}).encode(), "messages").value["messages"][0]


def test_parsed_messages():
    cache = MessageCache(150_000)
    long = {"role": "tool", "tool_call_id": "c" * 60_000, "content": "x"}
    first, alive = interned(cache, long), {"n": 0}
    assert interned(cache, long) is first
    kept = interned(cache, alive)
    interned(cache, {"content": "x" * 100_000})  # takes no place
    assert interned(cache, alive) is kept and interned(cache, long) is first
    for n in range(1, 500):  # short ones take more memory than their text
        interned(cache, {"n": n})
    assert interned(cache, alive) is not kept and interned(cache, long) is not first


def held_texts(least):
    """The texts of so many characters that any object refers to but what upstream got."""
    objects = (o for o in gc.get_objects() if not isinstance(o, Got))
    texts = (t for o in objects for t in gc.get_referents(o) if type(t) in (str, bytes))
    return {id(t): t[:20] for t in texts if len(t) >= least}


def test_nothing_refers_to_the_long_call_ids_of_deleted_sessions(tmp_path, request):
    known = held_texts(1_500_000).keys()
    gc.disable()  # they are in no cycle, either
    request.addfinalizer(gc.enable)
    with before(lambda got: whole(b"{}"), tmp_path) as (_, p):
        for n in range(3):
            call_id = f"call_{n}" + "Zq7" * 500_000
            call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
            messages = [
                {"role": "user", "content": "What is there?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": f"value {n}"},
            ]
            asked = {"model": "m", "messages": messages}
            came = post(p.port, "/v1/chat/completions", asked, b"x-memory-session: s%d" % n)
            assert (came.status, came.header(b"x-memory-status")) == (200, b"unchanged")
            assert p.ask(f"/v1/sessions/s{n}", "DELETE").status == 204
        p.told(3)
        assert p.service.recorder.drain(60)
        p.exchanges.clear()
        del call_id, call, messages, asked
        until(lambda: held_texts(1_500_000).keys() <= known, 20)


def test_a_closed_session_is_freed_without_a_collection(tmp_path):
    processor = MemoryProcessor(
        load_config(), lambda session_id: MemoryBankState.open(tmp_path / "bank.db", session_id=session_id)
    )
    gc.disable()
    try:
        processor.apply_strategy(rounds(3), "memory_bank", session_id="s")
        state = weakref.ref(processor.state("memory_bank", "s"))
        assert state() is not None
        processor.close("s")
        assert state() is None
    finally:
        gc.enable()
