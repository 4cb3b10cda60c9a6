"""Keys that share a program: what one leaves behind is what the other does, in every part."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mla_cost.declared.layers import LAYERS
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.machine import Timeline
from mla_cost.language.recompute import DISCARDING, POLICIES
from mla_cost.pricing.compile import reduced, timeline
from mla_cost.pricing.key import Key
from mla_cost.pricing.resolve import Illegal, resolve
from mla_cost.pricing.run import ProgramRun
from tests.choosing import EXHAUSTIVE

PROGRAMS: list[dict[str, Any]] = [
    {"form": ("explicit",), "kernel": "flash"},
    {"form": ("explicit",), "kernel": "eager", "scheme": "kv-gather"},
    {"form": ("absorbed",), "kernel": "mem-efficient"},
    {"form": ("laga",), "kernel": "flash"},
]
DEGREES = [(1, 1, 1, 1), (2, 1, 8, 1), (1, 2, 1, 2), (2, 4, 4, 2), (1, 2, 256, 1)]


def left_behind(run: Timeline) -> tuple[Any, ...]:
    number = {id(each): at for at, each in enumerate((*run.allocations, *run.parameters))}
    parts = [
        (each.label, each.dims, each.op, each.size, each.dtype, each.made, each.freed, each.gathered, each.saved)
        for each in (*run.allocations, *run.parameters)
    ]
    events = [event._replace(allocation=None) for event in run.events]
    places = [None if event.allocation is None else number[id(event.allocation)] for event in run.events]
    return parts, events, places, run.collectives, run.flops, run.fused_calls, run.persistent, run.forward_events


def keys(profile: str, layer: str) -> set[Key]:
    model = catalog.model("deepseek-v3")
    policies = [*POLICIES, "core_attn+moe", *(DISCARDING if PROFILES[profile].recomputes else ())]
    found = set()
    for program, (tp, sp, ep, size), remat in product(PROGRAMS, DEGREES, policies):
        degrees = {"tp": tp, "sp": sp, "ep": ep, "micro_batch": size, "remat": remat, "profile": profile}
        try:
            found.add(resolve(model, program["form"][0], PlanSettings(scope="model", **program, **degrees), layer).key)
        except Illegal:
            continue
    return found


@pytest.mark.parametrize("layer", sorted(LAYERS))
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_reduced_key_has_the_same_program(profile, layer):
    found = sorted(keys(profile, layer), key=str)
    for key in found if EXHAUSTIVE else found[::3]:
        assert reduced(reduced(key)) == reduced(key)
        if reduced(key) != key:
            assert left_behind(ProgramRun(key).timeline(backward=True)) == left_behind(timeline(key)), key


def test_layers_share_what_does_not_matter_to_them():
    assert len({reduced(key) for key in keys("reference", "head")}) < len(keys("reference", "head")) / 10
    dense = {reduced(key) for key in keys("reference", "dense")}
    assert {key.remat for key in dense} == {"none", "full", "core_attn", "mlp"}
    assert {key.remat for key in (reduced(key) for key in keys("reference", "moe"))} >= {"moe", "core_attn+moe"}
