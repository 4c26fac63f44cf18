"""Recorded runs: reading, replaying and explaining them, and what a memory keeps of what their calls needed.

This room uses the library through its public names only, and nothing but the command line imports it.
"""
