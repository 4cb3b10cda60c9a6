"""Keeps the harness from being collected for doctests: without torch, its skip would leave half a module behind."""

collect_ignore = ["harness.py"]
