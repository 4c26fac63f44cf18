"""Clients of models that live elsewhere: chat models and embedders, one module a kind.

Import from the modules: ``memory_bank.models.chat`` and so on. Nothing is loaded here, so that an embedder
that nobody asked for costs no import.
"""
