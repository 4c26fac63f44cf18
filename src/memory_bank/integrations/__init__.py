"""Adapters for agent frameworks, one module each; ``bridge`` is what they share.

Importing a module needs its framework, which the extra of the same name installs. Frameworks without a module
here work through the proxy.
"""
