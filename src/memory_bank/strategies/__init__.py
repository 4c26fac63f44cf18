"""Context strategies: siblings of one signature.

``(messages, llm_client, settings, state) → (messages, token_count)``.
"""
