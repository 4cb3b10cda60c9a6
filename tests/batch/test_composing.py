"""The model scope at many points: equal to `plan` to the byte, refusals as rows, exact below the limit."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from mla_cost import InputError
from mla_cost.batch import codes, price, pricer
from mla_cost.batch.composed import require_equal
from mla_cost.batch.pipelines import FIGURES, Names, pipeline
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import LiveBytes
from mla_cost.mesh.degrees import Parallel
from mla_cost.pricing.stage import activations, chunk_cost

MODELS = ("deepseek-v3", "deepseek-v2-lite", "moonlight-16b-a3b", "kimi-k2", "minicpm3-4b")
DEVICES = ("910b-64gb", "a100-80gb", "h100-80gb", "mi300x", None)
BASE = PlanSettings(scope="model", kernel="auto")


def priced(columns: dict[str, Any], model: str = "deepseek-v3", device: str | None = "h100-80gb", **given: Any):
    form = given.pop("form", "explicit")
    settings = BASE.model_copy(update=given)
    where = None if device is None else catalog.device(device)
    return price(catalog.model(model), where, form, settings, columns)


def require_plans(found):
    for index in range(len(found)):
        require_equal(index, found.row(index), found._expected(index))


def pick(*values):
    return st.sampled_from(values)


SIZES = {  # most of these divide: a point that is refused checks little
    "seq_len": pick(96, 4608, 18432, 147456, 3 * 2**22, 4100),
    "micro_batch": pick(1, 2, 3),
    "sp": pick(1, 1, 2, 8, 3),
    "tp": pick(1, 2, 4),
    "pp": pick(1, 1, 0, 0, -1),  # 0: the least that divides the layers; -1: the most
    "ep": pick(1, 1, 2, 8, 64),
    "etp": pick(1, 1, 2),
    "dp": pick(1, 2, 7),  # times ep and etp, so that experts divide
    "micro_batches": pick(1, 12, 54, 999),
    "virtual_stages": pick(1, 1, 1, 1, 1, 3),
    "vocab_multiple": pick(128, 1),
    "loss_chunks": pick(8, 3),
}
WAYS = {
    "sharding": pick("ddp", "distributed", "zero1", "zero2", "fsdp"),
    "replicas": pick(1, 1, 1, 1, 2),
    "gradient_dtype": pick("fp32", "bf16"),
    "moment_dtype": pick("fp32", "bf16"),
    "remat": pick("none", "full", "core_attn", "mlp+core_attn", "moe", "layernorm"),
    "kernel": pick("auto", "eager", "flash", "eager-bmm", "npu-fusion"),
    "dtype": pick("bf16", "bf16", "fp32"),
    "scheme": pick(None, None, "kv-gather"),
    "dispatcher": pick("alltoall", "alltoall", "alltoall", "deepep"),
    "main_weights": pick("fp32", "fp32", "remainders"),
    "imbalance_percent": pick(100, 137, "worst"),
    "down_projections": pick("replicated", "replicated", "sharded"),
    "cross_entropy": pick("native", "fused", "chunked"),
    "micro_batch_group": pick(None, None, None, None, None, 27),
    "stage": pick(None, None, None, None, 0, 2),
    "fragmentation_percent": pick(None, 0),
    "causal": pick(True, False),
}
UNEVEN = st.fixed_dictionaries(
    {}, optional={"first_layers": pick(1, 2, 4), "last_layers": pick(0, 1, 3), "other_memory": pick(0, 2**31)}
)
FIXED = st.fixed_dictionaries(
    {"form": pick("explicit", "absorbed", "laga"), "model": pick(*MODELS), "device": pick(*DEVICES)}
)
IMPLEMENTED = {
    "shared_overlap": pick("on"),
    "rope_fusion": pick("off"),
}


def points(ways: dict[str, Any]):
    return st.lists(st.fixed_dictionaries(SIZES | ways), min_size=1, max_size=6)


def columns_of(rows, model):
    facts = catalog.model(model)
    layers = facts.num_layers or 1
    least = next(pp for pp in range(2, layers + 1) if layers % pp == 0)
    found = []
    for row in rows:
        ep, etp = (row["ep"], row["etp"]) if facts.num_routed_experts else (1, 1)
        pp = {0: least, -1: layers}.get(row["pp"], row["pp"])
        found.append(row | {"ep": ep, "etp": etp, "dp": row["dp"] * ep * etp, "pp": pp})
    return {name: [row[name] for row in found] for name in rows[0]}


def equal_to_plans(rows, model, **fixed):
    require_plans(priced(columns_of(rows, model), model, **fixed))


@hypothesis.settings(max_examples=25)
@hypothesis.given(rows=points(WAYS), fixed=FIXED, uneven=UNEVEN)
def test_equal_to_plan_to_the_byte(rows, fixed, uneven):
    equal_to_plans(rows, **fixed, **uneven)


MEGATRON = WAYS | {
    "kernel": pick("flash"),
    "dtype": pick("bf16"),
    "scheme": pick(None, None, "ring", "kv-all-gather"),
    "dispatcher": pick("alltoall", "deepep", "hybridep"),
    "cross_entropy": pick("native", "native-fused", "te-in-place", "te-fp32"),
    "remat": pick("none", "full", "layernorm", "core_attn", "mla_up_proj+moe_act"),
}


@hypothesis.settings(max_examples=15)
@hypothesis.given(rows=points(MEGATRON), model=pick(*MODELS), own=st.fixed_dictionaries({}, optional=IMPLEMENTED))
def test_the_profile_of_an_implementation_too(rows, model, own):
    equal_to_plans(rows, model=model, profile="megatron", **own)


# ---- what comes back


def test_without_columns_there_is_one_point():
    found = priced({}, sp=1, dp=8)
    assert len(found) == 1
    require_plans(found)


def test_the_bucket_of_zero2_is_reserved_where_it_is():
    found = priced({"sharding": ["zero1", "zero2", "zero2"], "dtype": ["bf16", "bf16", "fp32"]}, sp=1, dp=8)
    require_plans(found)
    usable = found["usable_bytes"].tolist()
    assert [usable[0] - each for each in usable] == [0, 500_000_000 * 2, 500_000_000 * 4]


def test_what_deepspeed_sends_and_keeps_is_that_of_plans():
    both = ["fp32", "bf16"]
    columns = {
        "sharding": ["zero1", "zero1", "zero2", "zero2"] * 3,
        "gradient_dtype": both * 6,
        "sp": [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1],
        "dp": [8, 8, 8, 8, 4, 4, 4, 4, 8, 8, 8, 8],
        "dtype": ["bf16"] * 8 + ["fp16"] * 4,
        "micro_batches": [3] * 12,
    }
    found = priced(columns)
    require_plans(found)
    assert len(set(found["wire_bytes"].tolist())) == 4  # the sharding and sp decide, not what is added up in


def test_an_optimizer_of_whole_matrices():
    columns = {
        "optimizer": ["adam", "muon", "muon", "muon"],
        "sharding": ["distributed", "distributed", "ddp", "zero1"],
        "tp": [1, 1, 2, 1],
        "moment_dtype": ["fp8", "fp32", "bf16", "fp32"],
        "gradient_dtype": ["fp32", "bf16", "fp32", "fp32"],
    }
    found = priced({**columns, "dp": [8] * 4, "seq_len": [64] * 4}, "moonlight-16b-a3b", sp=1)
    require_plans(found)
    assert (found.status == codes.ILLEGAL).tolist() == [False, False, False, True]


def test_some_layers_of_a_chunk_run_again():
    columns = {
        "remat_layers": [None, 0, 2, 4, 99, 3],
        "pp": [1, 1, 2, 1, 1, 2],
        "virtual_stages": [1, 1, 2, 1, 1, 1],
        "remat": ["full"] * 5 + ["none"],
    }
    found = priced(columns, "minicpm3-4b", sp=1, micro_batches=2)
    require_plans(found)
    assert (found.status == codes.ILLEGAL).tolist() == [False] * 5 + [True]
    every, none, _, four, more = found["saved_bytes"].tolist()[:5]
    assert every == more
    assert 62 * (none - four) == 4 * (none - every)  # 62 equal layers, of which four keep their input alone


def test_weights_that_are_gathered_unit_by_unit():
    columns = {
        "sharding": ["fsdp", "fsdp", "fsdp", "ddp", "fsdp", "fsdp"],
        "dp": [8, 16, 512, 8, 8, 8],
        "ep": [1, 8, 1, 1, 8, 1],
        "replicas": [1, 2, 1, 1, 1, 2],
        "reshard": ["on", "on", "on", "on", "off", "on"],
        "prefetch": [0, 1, 0, 0, 0, 2],
        "gradient_dtype": ["fp32", "bf16", "fp32", "fp32", "bf16", "bf16"],
        "remat": ["none", "full", "none", "none", "core_attn", "none"],
        "micro_batches": [1, 4, 1, 1, 2, 3],
    }
    found = priced(columns, "deepseek-v2-lite", sp=1)
    require_plans(found)
    assert (found.status >= 0).all()
    assert (found["peak_bytes"] > 0).all()


def test_a_modules_projection_is_whole_or_split_as_the_profile_has_it():
    columns = {"profile": ["reference", "megatron"] * 2, "tp": [1, 1, 2, 2]}
    require_plans(priced(columns, "deepseek-v3", kernel="flash", seq_len=4096, sp=1, ep=8, dp=8))


def test_one_expert_a_rank_and_experts_over_ranks_as_plans_have_them():
    columns = {"ep": [64, 32, 64, 16], "etp": [1, 1, 2, 2], "dp": [64, 64, 128, 128], "remat": ["none", "moe"] * 2}
    for device in ("a100-80gb", "h100-80gb"):
        found = priced(columns, "deepseek-v2-lite", device, profile="megatron", kernel="flash", seq_len=4096, sp=1)
        require_plans(found)


def test_illegal_rows_have_no_numbers_and_a_reason():
    found = priced({"sp": [1, 3, 1], "pp": [1, 1, 64]}, dp=8)
    assert found.status.tolist()[1:] == [codes.ILLEGAL, codes.ILLEGAL]
    assert found.reason.tolist() == [0, codes.REQUIREMENT, codes.NO_PROGRAM]
    for index in (1, 2):
        row = found.row(index)
        assert {value for name, value in row.items() if name != "status"} == {codes.MISSING}
    assert found.reason_of(0) == ""
    assert "does not split over sp 3" in found.reason_of(1)
    assert "61 layers do not split over pp 64" in found.reason_of(2)


def test_tiles_are_one_answer(monkeypatch):
    columns = {"seq_len": list(range(4096, 4096 + 64 * 50, 64)), "remat": ["none", "full"] * 25}
    whole = priced(columns, sp=1, dp=8)
    monkeypatch.setattr(pricer, "TILE", 7)
    parts = priced(columns, sp=1, dp=8)
    assert (whole.status == parts.status).all()
    for name, column in whole.columns.items():
        assert (column == parts[name]).all()


def test_a_disagreement_is_an_error():
    found = priced({"dp": [8, 64]}, sp=1)
    found.check()
    found["kept_bytes"][:] += 2
    with pytest.raises(ArithmeticError, match="kept_bytes"):
        found.check()


def test_flops_above_the_exact_limit_are_compared_to_the_rounding_of_doubles():
    large = {"flops_model": float(2**60)}
    require_equal(0, large, {"flops_model": 2**60 + 1})
    with pytest.raises(ArithmeticError):
        require_equal(0, large, {"flops_model": 2**60 + 2**20})
    with pytest.raises(ArithmeticError):
        require_equal(0, {"flops_model": 4.0}, {"flops_model": 5})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"dp": [8], "sp": [1, 2]}, "one length"),
        ({"dq": [8]}, "no such field"),
        ({"kernel": ["flsh"]}, "flash"),
    ],
)
def test_bad_columns_are_told(columns, words):
    with pytest.raises(InputError, match=words):
        priced(columns)


# ---- stages


def test_a_stage_is_dropped_only_where_an_earlier_one_covers_it():
    """Without virtual stages the first of equal stages has most micro-batches in flight."""
    names = Names(catalog.model("deepseek-v3"), "reference")
    deep = pipeline(names, Parallel(pp=61, num_micro_batches=1000))
    assert [stage.stage for stage in deep.stages] == [0, 1, 3, 60]  # embedding, dense, experts, loss and MTP
    assert len(pipeline(names, Parallel()).stages) == 1


@pytest.mark.parametrize(
    "parallel", [Parallel(pp=3, num_micro_batches=30), Parallel(pp=3, virtual_stages=3, num_micro_batches=30)]
)
def test_rows_of_a_stage_are_the_moments_of_its_schedule(parallel):
    """With one number in place of each layer's bytes, the largest row is what `activations` finds."""
    names = Names(catalog.model("deepseek-v2-lite"), "reference")
    pipe = pipeline(names, parallel)
    figures = np.arange(3.0, 3 + 7 * len(FIGURES) * len(pipe.places), 7).reshape(len(FIGURES), -1)
    layers = {place: Numbers(figures[:, at]) for at, place in enumerate(pipe.places)}
    found = {stage.stage: (stage.needs @ figures[pipe.read]).max() for stage in pipe.stages}
    for at, chunks in enumerate(names.stages(parallel)):
        segments: Any = [[layers[place] for place in names.of(chunk)] for chunk in chunks]
        costs = [chunk_cost(chunk, run) for chunk, run in zip(chunks, segments, strict=True)]
        wanted = activations(parallel, at, costs).bytes
        assert found.get(at, max(found.values())) >= wanted
        if at in found:
            assert found[at] == wanted


class Numbers:
    """A layer with these figures."""

    def __init__(self, figures):
        kept, forward, backward, self.hidden_bytes, self._gradients = map(int, figures)
        self.saved_bytes = kept
        self.num_layers = 1
        self.forward, self.backward = LiveBytes(0, forward), LiveBytes(0, backward)
        self.at = self

    def gradient_bytes(self):
        return self._gradients
