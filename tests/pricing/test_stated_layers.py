"""Layers that only the user's own bytes describe: token mixers without MLA, indexers of sparse attention."""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.inputs import catalog
from mla_cost.results import Result

QUESTION: dict[str, Any] = {"scope": "model", "device": None, "form": "laga", "sp": 1, "seq_len": 4096}
QUESTION |= {"ep": 8, "dp": 8}
OTHERS = {"other_layer_bytes": 10_000_000, "other_layer_parameters": 5_000_000}


def answered(model: str, **changes: Any) -> Result:
    (row,) = mla_cost.plan(model, **{**QUESTION, **changes}).results
    return row


def peak(model: str, **changes: Any) -> int:
    return answered(model, **changes).memory.allocated_peak_bytes or 0


@pytest.mark.parametrize("profile", ["reference", "megatron"])
def test_a_layer_without_mla_keeps_the_stated_bytes(profile: str) -> None:
    """20 of 27 layers hold no MLA block; one pipeline stage keeps all of them when its last layers work."""
    forms = {"form": "explicit" if profile == "megatron" else "laga", "profile": profile, "kernel": "flash"}
    less, more = (peak("kimi-linear-48b-a3b", facts=OTHERS | {"other_layer_bytes": n}, **forms) for n in (0, 7))
    assert more - less == 20 * 7


def test_only_layers_with_mla_run_the_form() -> None:
    """What a mixer without MLA sends and runs is not counted, and said not to be."""
    model = catalog.model("kimi-linear-48b-a3b")
    row = answered(model.name, facts=OTHERS, sp=2, dp=4)
    exchanged = [call for call in row.communication.collectives if call.axis == "sp" and call.phase == "forward"]
    assert {call.count for call in exchanged} == {7}
    assert any("facts.other_layer_bytes" in note for note in row.notes)


def test_an_indexer_keeps_the_stated_bytes_in_every_layer_that_has_one() -> None:
    """DeepSeek-V3.2 has 61 layers and one module ahead.

    Most is alive where the module's loss goes back, its own layer kept; in attention of that layer, what its indexer
    kept is gone.
    """
    for loss, layers in (("native", 62), ("in-place", 61)):
        less, more = (peak("deepseek-v3.2", facts={"indexer_layer_bytes": n}, cross_entropy=loss) for n in (0, 9))
        assert more - less == layers * 9
    assert any("attention to all" in note for note in answered("deepseek-v3.2", facts={"indexer_layer_bytes": 0}).notes)


def test_mla_layers_do_not_change() -> None:
    """An indexer of no bytes leaves every other figure as that of the model without one."""
    sparse = answered("deepseek-v3.2", facts={"indexer_layer_bytes": 0})
    dense = answered("deepseek-v3")
    assert sparse.flops == dense.flops
    assert (sparse.memory.stages or ())[0].working_bytes == (dense.memory.stages or ())[0].working_bytes


@pytest.mark.parametrize(
    ("model", "facts", "said"),
    [
        (
            "kimi-linear-48b-a3b",
            [],
            "state other_layer_parameters (elements of one such layer's token mixer) and other_layer_bytes (bytes that",
        ),
        ("kimi-linear-48b-a3b", ["other_layer_parameters=5"], "state other_layer_bytes (bytes that one such layer"),
        ("glm-5", [], "what an indexer keeps for backward is not known; state indexer_layer_bytes (bytes that"),
        ("longcat-flash-chat", [], "a layer of longcat-flash-chat holds 2 MLA blocks, and such layers are not priced"),
        ("longcat-flash-lite-sparse", [], "a layer of longcat-flash-lite-sparse holds 2 MLA blocks, and such layers"),
        ("deepseek-v3", ["num_layers=-1"], "facts.num_layers: out of range, not -1; allowed: at least 1"),
        ("deepseek-v3", ["num_layer=3"], "facts.num_layer: unknown key; did you mean num_layers"),
        ("deepseek-v3", ["name=x"], "facts.name: a plan states it apart"),
    ],
)
def test_what_is_missing_is_asked_for_by_name(
    capsys: pytest.CaptureFixture[str], model: str, facts: list[str], said: str
) -> None:
    flags = [part for fact in facts for part in ("--set", f"facts.{fact}")]
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--scope", "model", "--model", model, "--sp", "1", *flags])
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


def test_any_fact_of_a_model_can_be_another() -> None:
    """What-if: half the layers of DeepSeek-V3."""
    row = answered("deepseek-v3", facts={"num_layers": 30, "num_mla_layers": 30})
    assert (row.memory.stages or ())[0].layers == 30
