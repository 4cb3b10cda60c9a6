"""How many rows and tokens reach the experts of one rank: even, with an imbalance, and at worst."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

import mla_cost
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.resolve import layer_values

TOKENS = 3  # of each rank


def values(experts: int, chosen: int, ep: int, **changes: Any) -> dict[str, int]:
    """What the layers of a model with so many experts are evaluated at."""
    model = catalog.model("moonlight-16b-a3b")
    model = model.model_copy(update={"num_routed_experts": experts, "num_experts_per_token": chosen})
    return layer_values(model, PlanSettings(seq_len=TOKENS, sp=1, scope="model", ep=ep, **changes))


@pytest.mark.parametrize(("experts", "chosen", "ep"), [(4, 2, 2), (4, 3, 2), (4, 1, 4), (3, 2, 1), (4, 3, 4)])
def test_the_worst_case_is_the_most_of_all_choices(experts: int, chosen: int, ep: int) -> None:
    """Every choice of every token, counted one by one."""
    own = set(range(experts // ep))
    choices = [set(choice) for choice in combinations(range(experts), chosen)]
    most_rows = ep * TOKENS * max(len(own & choice) for choice in choices)
    most_tokens = ep * max(sum(bool(own & choice) for choice in every) for every in product(choices, repeat=TOKENS))
    found = values(experts, chosen, ep, imbalance_percent="worst")
    assert (found["R"], found["D"]) == (most_rows, most_tokens)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_even_rows_do_not_depend_on_ep(ep: int) -> None:
    assert values(8, 2, ep)["R"] == TOKENS * 2
    assert values(8, 2, ep, imbalance_percent=150)["R"] == TOKENS * 3
    assert values(8, 2, ep, imbalance_percent=101)["R"] == TOKENS * 2 + 1  # rounded up


@pytest.mark.parametrize("percent", [100, 150, 500])
def test_a_token_arrives_once_however_many_are_chosen(percent: int) -> None:
    """Of 4 experts on 2 ranks 2 are chosen: 5 of the 6 pairs touch a rank; never more arrive than there are."""
    found = values(4, 2, 2, imbalance_percent=percent)
    assert found["D"] == min(6, -(-6 * 5 * percent // 600))


def test_an_imbalance_costs_memory_in_layers_with_experts() -> None:
    def peak(imbalance: Any) -> int:
        study = mla_cost.plan(
            "moonlight-16b-a3b",
            None,
            scope="model",
            form="explicit",
            sp=1,
            ep=8,
            dp=8,
            seq_len=4096,
            imbalance_percent=imbalance,
        )
        return study["explicit"].memory.allocated_peak_bytes or 0

    even, more, worst = (peak(imbalance) for imbalance in (100, 200, "worst"))
    assert even < more < worst


@pytest.mark.parametrize("profile", ["reference", "megatron"])
@pytest.mark.parametrize(("imbalance", "received"), [(100, 6), (150, 9), ("worst", 8 * 6)])
def test_the_hot_rank_sends_back_what_it_received(profile: str, imbalance: Any, received: int) -> None:
    """DeepSeek-V2-Lite, 26 layers of experts on 8 ranks: rows a token that arrive, 7/8 of them sent to other ranks."""
    asked: dict[str, Any] = {"form": "explicit", "kernel": "flash", "sp": 1, "ep": 8, "dp": 8, "seq_len": 4096}
    asked |= {"scope": "model", "profile": profile, "micro_batches": 1, "imbalance_percent": imbalance}
    sent = mla_cost.plan("deepseek-v2-lite", None, **asked)["explicit"].communication.collectives
    found = {(call.tensor, call.phase): (call.payload_bytes, call.wire_bytes) for call in sent if call.axis == "ep"}
    token = 26 * 4096 * 2048 * 2
    back, out = (received * token, received * token * 7 // 8), (6 * token, 6 * token * 7 // 8)
    name = "returned" if profile == "megatron" else "out"  # as its code calls what experts send back
    assert found[name, "forward"] == found["gradient of rows", "backward"] == back
    assert found["rows", "forward"] == found["gradient of out", "backward"] == out


@pytest.mark.parametrize(("tokens", "ep"), [(3, 4), (5, 8)])
def test_rows_that_ranks_do_not_divide_are_rounded_up(tokens: int, ep: int) -> None:
    found = values(8, 2, ep, micro_batch=tokens, imbalance_percent=150)
    rows = 3 * TOKENS * tokens
    assert (found["R"], found["z"]) == (rows, -(-rows // ep))
    assert values(8, 2, ep, micro_batch=tokens)["z"] == values(8, 2, ep, micro_batch=tokens)["w"]
