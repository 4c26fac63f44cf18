"""What stays in memory after a request: caches are bounded in entries and in bytes, and long keys are not kept."""

import json

from memory_bank.service.proxy.body import MessageCache, parse_body


def interned(cache, messages):
    return cache.intern(parse_body(json.dumps({"messages": messages}).encode(), "messages"), "messages")


def test_parsed_messages():
    cache = MessageCache(100_000)
    interned(cache, [{"role": "tool", "tool_call_id": "c" * 60_000, "content": "x"}] * 2)
    assert len(cache._by_text) == 1
    interned(cache, [{"n": n} for n in range(10_000)])  # short ones take more memory than their text
    assert len(cache._by_text) == len(cache._by_id) <= 100_000 // MessageCache.ENTRY
    assert 0 <= cache._chars <= 100_000
    interned(cache, [{"content": "x" * MessageCache.LONGEST}])
    assert max(map(len, cache._by_text)) < 60_000
