"""The plan that a row's command prices."""

from __future__ import annotations

from mla_cost import api
from mla_cost.inputs.command import settings_of
from mla_cost.results import Plan


def plan_of(command: str) -> Plan:
    """What `mla-cost plan` answers to a command that `command_of` has written, as `mla_cost.plan` gives it."""
    return api.answer(settings_of(command))
