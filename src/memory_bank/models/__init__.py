"""Chat models, embedders, and the summaries that are made with them or by extraction.

Import from the modules (``memory_bank.models.chat`` and so on): nothing is loaded here.
"""
