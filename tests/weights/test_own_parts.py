"""A form with a weight of its own, a kernel with a workspace of any shape: every command counts them."""

from __future__ import annotations

import math
from typing import Any

import pytest

import mla_cost
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.language.program import Form, FusedShape

GATED = "    gate = linear x, W_gate[n v h]\n    y = linear o, W_o[h n v]"
LITE: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb"}
GATE = 16 * 128 * 2048  # heads x width of V x hidden of DeepSeek-V2-Lite


@pytest.fixture
def gated(monkeypatch):
    form = FORMS["explicit"]
    assert isinstance(form, Form)
    text = form.text.replace("    y = linear o, W_o[h n v]", GATED)
    monkeypatch.setitem(FORMS, "gated", form._replace(name="gated", text=text))
    return "gated"


def weights(form: str, **asked: Any) -> int:
    row = mla_cost.plan(**LITE, form=form, kernel="eager", seq_len=4096, **asked).results[0]
    assert row.memory.parameter_bytes is not None
    return row.memory.parameter_bytes


def test_a_form_has_its_own_weights_in_a_block(gated):
    assert weights(gated, scope="attention", sp=2) - weights("explicit", scope="attention", sp=2) == 2 * GATE


@pytest.mark.parametrize(("tp", "stages"), [(1, 1), (2, 1)])
def test_a_form_has_its_own_weights_in_a_whole_model(gated, tp, stages):
    """27 layers in bf16, a part of each for a rank of tp."""
    degrees = {"tp": tp, "pp": stages}
    assert weights(gated, **degrees) - weights("explicit", **degrees) == 27 * 2 * GATE // tp


def _rows(shape: FusedShape) -> int:
    return 4 * shape.batch * shape.heads * math.ceil(shape.queries / 128) * 128


def helper(shape: FusedShape) -> int:
    """Calls another function, which calls one of the standard library."""
    return _rows(shape) * shape.qk


def branching(shape: FusedShape) -> int:
    """One length has another kernel."""
    if shape.queries > 8192:
        return 2 * _rows(shape)
    return 4 * shape.batch * shape.heads * shape.queries * (shape.v if shape.qk < 200 else shape.qk)


def largest(shape: FusedShape) -> int:
    """The larger of two sizes that both depend on the point, inside a helper."""
    return larger(shape.batch * shape.heads * shape.queries, 128 * 1024) * 4


def larger(first: int, second: int) -> int:
    """The standard library's own max."""
    return max(first, second, 0)


@pytest.mark.parametrize("workspace", [helper, branching, largest, lambda shape: 8 * shape.heads * shape.queries])
@pytest.mark.parametrize("scope", ["attention", "model"])
def test_a_workspace_of_any_shape_is_priced_at_many_points(monkeypatch, workspace, scope):
    monkeypatch.setitem(KERNELS, "flash", KERNELS["flash"]._replace(workspace=workspace))
    asked: dict[str, Any] = {**LITE, "scope": scope, "kernel": "flash", "form": "explicit"}
    over = {"seq_len": [4096, 8192, 16384], "micro_batch": [1, 2], "sp": [1, 2], "dims.v_head_dim": [64, 128, 192]}
    study = mla_cost.sweep(**asked, over=over)
    for row in map(study.row, range(len(study))):
        point = {name: row[name] for name in ("seq_len", "micro_batch", "sp")}
        (planned,) = mla_cost.plan(**asked, **point, dims={"v_head_dim": row["dims.v_head_dim"]}).results
        assert row["allocated_peak_bytes" if scope == "attention" else "required_bytes"] == (
            planned.memory.allocated_peak_bytes
        )
