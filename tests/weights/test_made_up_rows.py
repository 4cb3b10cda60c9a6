"""A made-up optimizer, sharding, layer and weight, each declared once, priced by plan, sweep and search alike."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import pytest

import mla_cost
from mla_cost.batch import pricer
from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.declared.states import GRADIENTS, OPTIMIZER, WEIGHTS, Optimizer, Send, Sharding, StateTensor
from mla_cost.language.program import Form
from mla_cost.results import Result

LITE: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "b200-180gb", "seq_len": 4096, "kernel": "eager"}
PLAN: dict[str, Any] = {**LITE, "form": "explicit", "dp": 8, "micro_batches": 3}
# DeepSeek-V2-Lite: elements in all, of routed experts, of what is no matrix, of the vocabulary's two
TOTAL, EXPERTS = 15_706_484_224, 26 * 64 * 3 * 2048 * 1408
VECTORS, VOCABULARY = 27 * (2 * 2048 + 512) + 2048, 2 * 102_400 * 2048
GATE = 16 * 128 * 2048  # heads x width of V x hidden


@pytest.fixture(autouse=True)
def _nothing_looked_up() -> Iterator[None]:
    """What a process keeps of a model is kept under the names of rows, which differ here from test to test."""
    pricer._shared.cache_clear()
    yield
    pricer._shared.cache_clear()


def planned(**asked: Any) -> Result:
    (row,) = mla_cost.plan(**{**PLAN, **asked}).results
    return row


def agrees(over: dict[str, list[Any]], **asked: Any) -> None:
    """A sweep and a search give the bytes that plans give."""
    given = {**PLAN, **asked}
    study = mla_cost.sweep(over=over, **{key: value for key, value in given.items() if key not in over})
    assert len(study) > 1
    for row in map(study.row, range(len(study))):
        plan = planned(**{**asked, **{name: row[name] for name in over}})
        assert plan.communication is not None
        assert row["required_bytes"] == plan.memory.allocated_peak_bytes
        assert row["wire_bytes"] == sum(call.wire_bytes for call in plan.communication.collectives)
    found = mla_cost.search(
        **{**LITE, "device": "b200-180gb"}, form=given["form"], devices=8, global_batch=24, remat="none", tp=[1, 2],
        pp=[1], ep=[1, 2], sp=[1], micro_batch=[1], sharding=given.get("sharding", "distributed"), top=4,
        optimizer=given.get("optimizer", defaults.OPTIMIZER),
    )  # fmt: skip
    assert found.results
    for each in found.results:
        degrees = {name: getattr(each, name) for name in ("tp", "ep", "dp", "micro_batches", "scheme")}
        assert each.required_bytes == planned(**{**asked, **degrees}).memory.allocated_peak_bytes


# ---- an optimizer


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> str:
    """One tensor in bf16 for every weight."""
    row = Optimizer("signs", "made up", "this test", (StateTensor("momentum", "bf16"),))
    monkeypatch.setitem(OPTIMIZERS, "signs", row)
    return "signs"


def test_an_optimizer_is_a_row(signs: str) -> None:
    assert planned(sharding="ddp", optimizer=signs).memory.optimizer_bytes == (4 + 2) * TOTAL
    agrees({"sharding": ["ddp", "zero1"], "dp": [4, 8]}, optimizer=signs)
    agrees({"optimizer": [signs, defaults.OPTIMIZER], "dp": [4, 8]})


def test_an_optimizer_may_keep_other_tensors_for_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that orthogonalise the momentum of hidden matrices and leave the rest to Adam."""
    tensors = (
        StateTensor("momentum", "fp32", "matrices"),
        StateTensor("exp_avg", None, "others"),
        StateTensor("exp_avg_sq", None, "others"),
    )
    monkeypatch.setitem(OPTIMIZERS, "adam", Optimizer("adam", "made up", "this test", tensors))
    others = VECTORS + VOCABULARY
    assert planned(sharding="ddp").memory.optimizer_bytes == 4 * TOTAL + 4 * (TOTAL - others) + 8 * others
    half = planned(sharding="ddp", moment_dtype="bf16").memory.optimizer_bytes
    assert half == 4 * TOTAL + 4 * (TOTAL - others) + 4 * others
    agrees({"sharding": ["ddp", "distributed"], "tp": [1, 2]}, dp=4)


# ---- a way to shard


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every rank keeps its part of everything; weights are gathered for forward and again for backward."""
    row = Sharding(
        name="shared",
        title="made up",
        source="this test",
        step=lambda ranks: ranks,
        sends=(
            Send("weights", "all_gather", dtype="weights", calls="micro-batch", times=2),
            Send("gradients", "reduce_scatter", dtype="gradients", calls="micro-batch"),
        ),
        split=OPTIMIZER | {WEIGHTS, GRADIENTS},
    )
    monkeypatch.setitem(SHARDINGS, "shared", row)
    return "shared"


def test_a_way_to_shard_is_a_row(shared: str) -> None:
    row = planned(sharding=shared)
    part = ceil((TOTAL - EXPERTS) / 8) + ceil(EXPERTS / 8)
    memory = row.memory
    assert (memory.parameter_bytes, memory.parameter_gradient_bytes) == (2 * part, 4 * part)
    assert memory.optimizer_bytes == (4 + 8) * part
    assert row.communication is not None
    sent = {(call.kind, call.tensor): call for call in row.communication.collectives if call.phase == "step"}
    dense = TOTAL - EXPERTS
    gathered, reduced = sent["all_gather", "dense weights"], sent["reduce_scatter", "dense gradients"]
    assert (gathered.count, gathered.wire_bytes, gathered.dtype) == (3 * 2, 3 * 2 * 7 * 2 * dense // 8, "bf16")
    assert (reduced.count, reduced.payload_bytes, reduced.dtype) == (3, 3 * 4 * dense, "fp32")
    agrees({"micro_batches": [1, 3], "dp": [4, 8]}, sharding=shared)


def test_a_way_to_shard_is_offered_by_levers(shared: str) -> None:
    levers = mla_cost.levers(**{**PLAN, "device": "mi300x"}).results  # that fits, so no remedy is looked for
    reported = [str(lever) for row in levers if row.verdict for lever in row.verdict.levers]
    assert any(shared in lever for lever in reported)


def test_an_unknown_way_to_shard_names_the_declared_ones(shared: str) -> None:
    with pytest.raises(mla_cost.InputError, match=f"'ddp', 'distributed', 'fsdp', 'zero1', 'zero2' or '{shared}'"):
        planned(sharding="zero3")


# ---- a weight of a form, and its dtype


def gated(monkeypatch: pytest.MonkeyPatch, dtype: str = "") -> str:
    """The explicit form with a weight of its own."""
    form, name = FORMS["explicit"], f"gated{dtype.replace(':', '_')}"
    assert isinstance(form, Form)
    text = form.text.replace(
        "    y[S b h] = linear o", f"    gate = linear x, W_gate[n v h]{dtype}\n    y[S b h] = linear o"
    )
    monkeypatch.setitem(FORMS, name, form._replace(name=name, text=text))
    return name


def test_a_weight_of_a_form_is_priced_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    form = gated(monkeypatch)
    mine, plain = planned(form=form, sharding="ddp").memory, planned(sharding="ddp").memory
    for name, size in (("parameter_bytes", 2), ("parameter_gradient_bytes", 4), ("optimizer_bytes", 12)):
        assert getattr(mine, name) - getattr(plain, name) == 27 * size * GATE
    agrees({"sharding": ["ddp", "zero2"], "tp": [1, 2]}, form=form, dp=4)


def test_a_weight_has_a_dtype_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 it is its own master weight; what keeps it equal travels in a buffer of its own."""
    form = gated(monkeypatch, ":fp32")
    mine, plain = planned(form=form), planned()
    gates = 27 * GATE
    assert (mine.memory.parameter_bytes or 0) - (plain.memory.parameter_bytes or 0) == 4 * gates
    assert (mine.memory.optimizer_bytes or 0) - (plain.memory.optimizer_bytes or 0) == 8 * gates // 8
    assert mine.communication is not None
    sent = {(call.kind, call.tensor): call for call in mine.communication.collectives if call.phase == "step"}
    own = sent["all_gather", "dense weights of fp32"]
    assert (own.payload_bytes, own.dtype) == (4 * gates // 8, "fp32")
    block = {"scope": "attention", "sp": 1, "dp": 1, "micro_batches": 1}
    mine, plain = planned(**block, form=form), planned(**block)
    assert (mine.memory.parameter_bytes or 0) - (plain.memory.parameter_bytes or 0) == 4 * GATE
    agrees({"sharding": ["ddp", "distributed"], "tp": [1, 2]}, form=form, dp=4)


def test_the_gradient_of_a_weight_has_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output projection of a block in fp32: as many elements as the gate above."""
    form = FORMS["explicit"]
    assert isinstance(form, Form)
    text = form.text.replace("W_o[h n v]", "W_o[h n v]:fp32").replace("g_kv[d_c]", "g_kv[d_c]:fp32")
    monkeypatch.setitem(FORMS, "wide_output", form._replace(name="wide_output", text=text))
    block = {"scope": "attention", "sp": 1, "dp": 1, "micro_batches": 1}
    mine, plain = planned(**block, form="wide_output").memory, planned(**block).memory
    for name in ("parameter_bytes", "parameter_gradient_total_bytes"):
        assert getattr(mine, name) - getattr(plain, name) == 2 * (GATE + 512)


# ---- a layer


def test_a_layer_is_priced_by_being_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer with a second MLP beside the first takes the place of the dense one."""
    dense = LAYERS["dense"]
    text = dense.text.replace(
        "    y = add residual, mlp_out", "    more = linear hidden, W_more[f h]\n    y = add residual, mlp_out"
    )
    monkeypatch.delitem(LAYERS, "dense")
    monkeypatch.setitem(LAYERS, "wide", dense._replace(name="wide", text=text))
    before = 2 * TOTAL
    assert planned(sharding="ddp").memory.parameter_bytes == before + 2 * 10_944 * 2048
    agrees({"sharding": ["ddp", "zero1"], "tp": [1, 2]}, dp=4)
