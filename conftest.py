"""Keeps pytest from importing the torch modules, for their doctests, where torch is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["mla_cost/checks/reference/*"]
