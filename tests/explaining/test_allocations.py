"""What a plan makes, storage by storage: what stands for the whole run goes by its own name."""

from __future__ import annotations

import pytest

from mla_cost import api
from mla_cost.explaining.allocations import allocations
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        ("adam", ["the optimizer's exp_avg", "the optimizer's exp_avg_sq"]),
        ("muon", ["the optimizer's states"]),  # of matrices one, of others two: none is half of all
    ],
)
def test_states_are_those_of_the_optimizer(optimizer: str, names: list[str]) -> None:
    settings = PlanSettings(
        model="moonlight-16b-a3b", scope="model", form=("explicit",), device=("h100-80gb",), dp=8, ep=8,
        optimizer=optimizer,
    ).by_scope()  # fmt: skip
    (row,) = api.answer(settings).results
    stage = (row.memory.stages or ())[0]
    made = allocations(catalog.model(settings.model), catalog.device("h100-80gb"), settings, row)
    states = [each for each in made if each.name.startswith("the optimizer's")]
    assert [each.name for each in states] == names
    assert sum(each.bytes for each in states) == stage.moments_bytes
