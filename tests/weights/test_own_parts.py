"""A form with a weight of its own, a kernel with a workspace of any shape: every command counts them."""

from __future__ import annotations

import math
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.language.fused_workspace import Workspace
from mla_cost.language.program import Form

LAST = "    y[S b h] = linear o, W_o[h n v]"
GATED = f"    gate = linear x, W_gate[n v h]\n{LAST}"
LITE: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb"}
GATE = 16 * 128 * 2048  # heads x width of V x hidden of DeepSeek-V2-Lite


@pytest.fixture
def gated(monkeypatch):
    form = FORMS["explicit"]
    assert isinstance(form, Form)
    text = form.text.replace(LAST, GATED)
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


def larger(first: int, second: int) -> int:
    """The standard library's own max."""
    return max(first, second, 0)


def padded(queries: int) -> int:
    """Calls the standard library."""
    return math.ceil(queries / 128) * 128


def branching(queries: int, qk: int, v: int) -> int:
    """One length has another kernel."""
    if queries > 8192:
        return 2 * padded(queries)
    return queries * (v if qk < 200 else qk)


def powers(queries: int) -> int:
    """Whole numbers only: doubles have no bits to count."""
    return 1 << (queries - 1).bit_length()


WORKSPACES = {
    "none": Workspace("0"),
    "sizes alone": Workspace("8*heads*queries"),
    "helper": Workspace("4*batch*heads*rows*qk + 7", rows=padded),
    "branch": Workspace("4*batch*heads*held", held=branching),
    "max": Workspace("4*most", most=lambda batch, heads, queries: larger(batch * heads * queries, 128 * 1024)),
    "bits": Workspace("4*batch*heads*rows", rows=powers),
    "dim of a dim": Workspace("tiles*256", rows=padded, tiles=lambda rows, v: rows // 128 if v > 100 else 1),
}


@pytest.mark.parametrize("workspace", WORKSPACES.values(), ids=list(WORKSPACES))
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


ONE: dict[str, Any] = {"form": "explicit", "scheme": "ulysses", "remat": "full", "sharding": "distributed"}


def test_a_branch_in_a_workspace_is_seen_by_search_and_explain(monkeypatch, capsys):
    """A search checks rows of its own by plan; what a term lists is what a plan counts."""
    monkeypatch.setitem(KERNELS, "flash", KERNELS["flash"]._replace(workspace=Workspace("64*held", held=branching)))
    found = mla_cost.search(**LITE, **ONE, kernel="flash", devices=4, global_batch=4, seq_len=16384)
    assert found.best is not None
    assert found.best.kernel == "flash"
    asked = ("--model", "deepseek-v2-lite", "--device", "h100-80gb", "--form", "explicit", "--kernel", "flash")
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--scope", "attention", *asked, "--seq-len", "16384", "--sp", "1", "--explain-term", "workspace"])
    assert ended.value.code == 0
    assert f"{64 * 2 * 16384:,}" in capsys.readouterr().out


def test_an_unknown_size_is_named_with_the_nearest():
    for text, dims in (("4*head*queries", {}), ("rows", {"rows": lambda head: head})):
        with pytest.raises(ValueError, match=r"'head'.* no size of a call; allowed: batch, .*did you mean heads"):
            Workspace(text, **dims)
