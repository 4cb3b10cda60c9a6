"""States of a rank against a published run and sums written out; the laws of shards and stages."""

from __future__ import annotations

from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mla_cost
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import problems
from mla_cost.mesh.placement import Chunk, stages
from mla_cost.pricing.stage import Place, Segments, as_allocated
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.whole_model import parallel_of, state_settings
from mla_cost.weights.held import Flat, RankParameters, WeightPiece, padded_vocabulary
from mla_cost.weights.parameters import parameters
from mla_cost.weights.sent import step_collectives
from mla_cost.weights.states import StateSettings, bucket_bytes, shape_of, sharding_problem, states

V3 = catalog.model("deepseek-v3")
PROXY = V3.model_copy(
    update={"name": "proxy", "num_layers": 14, "num_mla_layers": 14, "num_routed_experts": 64, "vocab_size": 256_000}
)
GOLDEN = Parallel(tp=2, pp=4, ep=16, dp=8, num_micro_batches=64, layout="Et*2|(tt|)*5t|tmL")


def held_by(
    model: ModelConfig,
    parallel: Parallel,
    chunks: tuple[Chunk, ...],
    *,
    profile: str = "megatron",
    down_projections: str = "replicated",
    vocab_multiple: int = 128,
) -> RankParameters:
    degrees = {"tp": parallel.tp, "ep": parallel.ep, "etp": parallel.etp, "vocab_multiple": vocab_multiple}
    asked = WeightsAsked(form="explicit", profile=profile, down_projections=down_projections, dtype="bf16", **degrees)
    return RankWeights(model, asked).parameters(chunks, parallel.pp)


def golden(stage: int) -> RankParameters:
    return held_by(PROXY, GOLDEN, stages(GOLDEN, 14, 1)[stage], vocab_multiple=3232)


def plain(dense: int, expert: int = 0, buffers: int = 0, dtype: str = "bf16") -> RankParameters:
    trained = (Flat("dense", dtype, dense), Flat("expert", dtype, expert))
    return RankParameters(trained, untrained=(Flat("dense", "fp32", buffers),))


def test_the_golden_runs_vocabulary_and_last_stage_written_out() -> None:
    assert padded_vocabulary(256_000, 2, 3232) == 258_560
    h, tp = 7168, 2
    whole = 2 * h + h * 1536 + 1536 + h * 576 + 512  # norms, down-projections: on every rank of tp
    split = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * h
    layer = whole + split // tp + h * 64 + 3 * h * 2048 // tp
    mtp = 3 * h + 2 * h * h // tp
    last = golden(3)
    assert last.dense == 4 * layer + mtp + 2 * 258_560 // tp * h + h
    assert last.expert == 4 * (64 // 16) * 3 * h * 2048
    assert last.tp_summed == 4 * (whole + h * 64) + 3 * h + h
    assert last.shared == 258_560 // tp * h
    assert last.buffers == 4 * 64


def test_the_golden_runs_moments_rise_as_measured() -> None:
    moments = states(golden(3), GOLDEN).moment_bytes
    measured = 45_113_827_328 - 37_005_148_160
    assert moments == 8_036_380_672
    assert abs(moments - 8.06e9) < 0.005 * 8.06e9
    assert abs(moments - measured) < 0.01 * measured


def test_states_of_the_golden_run_lie_below_what_was_allocated() -> None:
    held = states(golden(3), GOLDEN)
    elements = golden(3).elements
    assert (held.weight_bytes, held.gradient_bytes) == (2 * elements, 4 * elements)
    assert held.master_bytes * 2 == held.moment_bytes
    assert 0.9 * 33_395_402_752 < held.total < 33_395_402_752


def test_one_rank_holds_the_whole_model_and_the_usual_bytes_per_parameter() -> None:
    alone = Parallel()
    held = held_by(V3.model_copy(update={"num_mtp_layers": 0}), alone, stages(alone, 61)[0], vocab_multiple=1)
    biases = 58 * 256
    assert held.elements + held.buffers == parameters(V3).total
    assert (held.buffers, held.tp_summed, held.shared) == (biases, 0, 0)
    ddp = states(held, alone, StateSettings(sharding="ddp"))
    assert ddp.total == (2 + 4 + 4 + 8) * held.elements + 4 * biases
    assert states(held, alone, StateSettings(sharding="ddp", gradient_dtype="bf16", moment_dtype="bf16")).total == (
        (2 + 2 + 4 + 4) * held.elements + 4 * biases
    )
    assert step_collectives(held, alone) == ()


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "glm-5", "glm-5.2", "minicpm3-4b"])
@pytest.mark.parametrize("pp", [2, 4])
def test_stages_sum_to_the_model(name: str, pp: int) -> None:
    model = catalog.model(name)
    layers, mtp = model.num_layers or 0, model.num_mtp_layers or 0
    one, many = Parallel(), Parallel(pp=pp, first_layers=layers - 2 * (pp - 1))
    whole = held_by(model, one, stages(one, layers, mtp)[0], profile="reference")
    parts = [held_by(model, many, stage, profile="reference") for stage in stages(many, layers, mtp)]
    copies = parts[-1].shared
    assert sum(part.elements for part in parts) == whole.elements + copies
    assert copies == ((model.vocab_size or 0) + 127) // 128 * 128 * model.dims.hidden * bool(
        mtp or model.tied_embeddings
    )


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.booleans())
def test_tp_ep_and_etp_shards_cover_the_model(tp: int, ep: int, etp: int, sharded: bool) -> None:
    model = catalog.model("deepseek-v2-lite")
    down, other = ("sharded", "replicated") if sharded else ("replicated", "sharded")
    alone, split = Parallel(), Parallel(tp=tp, ep=ep, etp=etp, dp=16)
    whole = held_by(model, alone, stages(alone, 27)[0], profile="reference", down_projections=down)
    held = held_by(model, split, stages(split, 27)[0], profile="reference", down_projections=down)
    assert held.expert * ep * etp == whole.expert
    on_every_rank = held.tp_summed if tp > 1 else 0
    assert (held.dense - on_every_rank) * tp + on_every_rank == whole.dense
    projections = 27 * 2048 * 576
    both = held_by(model, split, stages(split, 27)[0], profile="reference", down_projections=other)
    assert abs(held.dense - both.dense) == projections - projections // tp


def one_stage(profile: str, tp: int) -> tuple[PlanSettings, RankParameters, tuple[Chunk, ...]]:
    """DeepSeek-V3 on one stage: settings, what a rank holds, and the chunks."""
    asked = {"model": "deepseek-v3", "scope": "model", "form": ("explicit",), "kernel": "flash", "profile": profile}
    settings = PlanSettings.model_validate({**asked, "seq_len": 4096, "sp": 1, "tp": tp, "dp": 8})
    parallel = parallel_of(settings)
    chunks = stages(parallel, 61, 1)[0]
    return settings, held_by(V3, parallel, chunks, profile=profile), chunks


@pytest.mark.parametrize(("tp", "more"), [(1, 0), (2, 51_380_224), (4, 77_070_336)])
def test_plain_torch_holds_the_projection_of_a_module_whole_and_megatron_over_tp(tp: int, more: int) -> None:
    joined = 2 * 7168 * 7168
    (settings, whole, _), (_, split, _) = one_stage("reference", tp), one_stage("megatron", tp)
    assert more == joined - joined // tp
    assert whole.dense - split.dense == more
    assert whole.tp_summed - split.tp_summed == (joined if tp > 1 else 0)
    sent = {
        it.axis: it.payload_bytes for it in step_collectives(whole, parallel_of(settings), state_settings(settings))
    }
    assert sent.get("tp", 0) == (4 * (split.tp_summed + joined) if tp > 1 else 0)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    ("profile", "places"), [("reference", ["mtp_moe"]), ("megatron", ["mtp_input", "moe", "head"])]
)
def test_the_weights_of_a_module_are_those_of_its_program(profile: str, places: list[str], tp: int) -> None:
    """The module shares the embedding, and its own final norm is held beside the one of the head."""
    settings, _, chunks = one_stage(profile, tp)
    segments = Segments(V3, "explicit", settings, as_allocated("cuda"))
    programs = sum(segments.of(Place(place)).at.parameter_bytes() // 2 for place in places)
    held = [*RankWeights(V3, WeightsAsked.of("explicit", settings)).each(chunks, 1)]
    module = sum(item.elements for item in held if item.part == "mtp 0" and item.trained)
    ends = sum(item.elements for item in held if item.part == "ends")
    second_norm = 7168 if profile == "megatron" else 0  # its head is priced once for two
    assert programs == module + ends - second_norm


@given(st.integers(0, 10**6), st.integers(1, 64), st.sampled_from(list(SHARDINGS)))
def test_shards_cover_with_less_padding_than_one_step(elements: int, group: int, sharding: str) -> None:
    found = states(plain(elements), Parallel(dp=group), StateSettings(sharding=sharding))
    shard, padded = found.moment_bytes // 8, SHARDINGS[sharding].padded_elements(elements, group)
    assert shard * (1 if sharding == "ddp" else group) == padded >= elements
    assert padded - elements < max(lcm(group, 128), 2 * group)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 4))
def test_more_sharding_never_holds_more(dense: int, expert: int, dp: int, sp: int) -> None:
    parallel = Parallel(dp=dp, sp=sp)
    held = plain(dense, expert, buffers=3)
    totals = {each: states(held, parallel, StateSettings(sharding=each)) for each in SHARDINGS}
    partial = {each: 2 * (dense + expert) if each == "zero1" else 0 for each in SHARDINGS}  # beside those in fp32
    assert all(
        found.total - found.padding_bytes - partial[each] <= totals["ddp"].total for each, found in totals.items()
    )
    assert totals["zero2"].total - totals["zero2"].padding_bytes <= totals["zero1"].total
    for found in totals.values():
        assert found.total == sum(item.bytes for item in found.items) + 3 * 4


def test_muon_keeps_one_momentum_for_matrices_and_makes_one_update_at_a_time() -> None:
    """7168 x 16384 beside 7168 of a norm: fp32 result and its two products with scales, 4 bytes each."""
    matrix, norm = WeightPiece(7168 * 16384, 7168, matrix=True), WeightPiece(7168, 7168)
    elements = matrix.elements + norm.elements
    flat = Flat("dense", "bf16", elements, matrix.elements, ((matrix, 1), (norm, 1)))
    settings = StateSettings(optimizer="muon", sharding="ddp")
    found = states(RankParameters((flat,)), Parallel(), settings)
    assert found.moment_bytes == 4 * matrix.elements + 8 * norm.elements
    assert found.step_bytes == found.making_bytes == 12 * matrix.elements == 1_409_286_144
    # over two ranks each has half, gathers the parts and joins them (4 bytes each) and makes a bf16 copy of fp32
    halves = flat._replace(pieces=((WeightPiece(7168 * 8192, 7168, matrix=True), 1),))
    split = states(RankParameters((halves,)), Parallel(tp=2), settings)
    assert split.making_bytes == (8 + 4) * 2 * 7168 * 8192 + 4 * 2 * 7168 * 8192
    assert "whole matrices, which sharding zero1 cuts" in sharding_problem(
        Parallel(), settings._replace(sharding="zero1")
    )


def test_parts_of_weights_in_fp32_have_no_remainders() -> None:
    """Four fp32 tensors a weight over 8 ranks, and the way out of the refusal is none."""
    found = states(plain(1024), Parallel(dp=8), StateSettings(sharding="fsdp"))
    assert (found.weight_bytes, found.gradient_bytes, found.optimizer_bytes) == (512, 512, 1024)
    asked = StateSettings(sharding="fsdp", main_dtype="int16")
    assert "change main_weights to fp32, or sharding to distributed" in sharding_problem(Parallel(dp=8), asked)
    for mended in (asked._replace(main_dtype="fp32"), asked._replace(sharding="distributed")):
        assert not sharding_problem(Parallel(dp=8), mended)


def test_padding_is_named() -> None:
    found = states(plain(1000), Parallel(dp=3), StateSettings(sharding="distributed"))
    assert SHARDINGS["distributed"].padded_elements(1000, 3) == 1152
    by_name = {item.name: item for item in found.items if item.holder == "dense"}
    assert (by_name["weights"].bytes, by_name["weights"].padding_bytes) == (2 * 1152, 2 * 152)
    assert (by_name["moments"].bytes, by_name["moments"].padding_bytes) == (8 * 384, 8 * (384 - 334))


def test_zero2_shards_gradients_and_is_refused_in_a_pipeline() -> None:
    settings = StateSettings(sharding="zero2", gradient_dtype="bf16")
    bucket = 500_000_000
    found = states(plain(1024), Parallel(dp=4), settings)
    assert (found.weight_bytes, found.gradient_bytes, found.master_bytes) == (2048, 512, 1024)
    assert bucket_bytes(settings) == bucket * 2
    assert bucket_bytes(settings._replace(dtype="fp32")) == bucket * 4
    assert bucket_bytes(settings._replace(sharding="zero1")) == bucket * 2
    assert (
        bucket_bytes(settings._replace(sharding="distributed")) == bucket_bytes(settings._replace(sharding="ddp")) == 0
    )
    for refused in (states, step_collectives):
        with pytest.raises(InputError, match="change sharding to zero1 or distributed, or pp to 1"):
            refused(plain(1024), Parallel(dp=4, pp=2), settings)


@pytest.mark.parametrize(
    ("gradient", "master", "made"),
    [
        ("bf16", "fp32", 4),
        ("fp32", "fp32", 0),
        ("bf16", "int16", 0),
    ],  # the fused Adam that keeps remainders reads bf16 gradients as they are
)
def test_the_step_casts_a_shard_of_bf16_gradients_for_fp32_weights(gradient: str, master: str, made: int) -> None:
    settings = StateSettings(gradient_dtype=gradient, main_dtype=master)
    found = states(plain(1024, 512), Parallel(dp=4), settings)
    assert found.step_bytes == made * (1024 // 4 + 512 // 4)
    whole = states(plain(1024, 512), Parallel(dp=4), settings._replace(sharding="ddp"))
    assert whole.step_bytes == made * (1024 + 512)


@pytest.mark.parametrize(("sharding", "cloned"), [("ddp", 0), ("distributed", 0), ("zero1", 4), ("zero2", 4)])
def test_fp32_weights_are_their_own_masters_but_zero_clones_them(sharding: str, cloned: int) -> None:
    whole, part = 1024, 1024 if sharding == "ddp" else 1024 // 4
    settings = state_settings(PlanSettings(dtype="fp32", sharding=sharding))
    held = plain(1024, dtype="fp32")
    found = states(held, Parallel(dp=4), settings)
    graded = part if sharding == "zero2" else whole
    assert (found.weight_bytes, found.gradient_bytes) == (4 * whole, 4 * graded)
    assert (found.master_bytes, found.moment_bytes) == (cloned * part, 8 * part)
    assert states(held, Parallel(dp=4), settings._replace(gradient_dtype="bf16")).step_bytes == 4 * part
    assert state_settings(PlanSettings(dtype="bf16", sharding=sharding)).master_dtype("bf16") == "fp32"


def test_collectives_of_the_step_written_out() -> None:
    parallel = Parallel(tp=2, sp=2, dp=4, ep=4, num_micro_batches=5)
    held = plain(8 * 128, 4 * 128)._replace(tp_summed=10)
    assert (parallel.dense_dp, parallel.expert_dp) == (8, 4)
    sent = {(it.kind, it.axis): it for it in step_collectives(held, parallel)}
    assert {it.phase for it in sent.values()} == {"step"}
    assert sent["all_reduce", "tp"][3:7] == (2, 1, 40, 2 * 40 // 2)
    assert sent["reduce_scatter", "dp x sp"][3:7] == (8, 1, 4096, 4096 * 7 // 8)
    assert sent["all_gather", "dp x sp"][3:7] == (8, 1, 2 * 128, 7 * 2 * 128)
    assert sent["reduce_scatter", "expert_dp"][3:7] == (4, 1, 2048, 2048 * 3 // 4)
    ddp = {(it.kind, it.axis): it for it in step_collectives(held, parallel, StateSettings(sharding="ddp"))}
    assert ddp["all_reduce", "dp x sp"][3:7] == (8, 1, 4096, 2 * 4096 * 7 // 8)
    alone = step_collectives(held, parallel, StateSettings(megatron_sp=False))
    assert all(it.axis != "tp" for it in alone)


# DeepSpeed at edaa7221, runtime/zero/stage_1_and_2.py:1443-1460 (all-reduce by default, config.py:119), 1738-1741 and
# runtime/engine.py:2903-2914 (ZeRO-2 after every micro-batch, ZeRO-1 after the last)
@pytest.mark.parametrize(
    ("sharding", "gradient_dtype", "sp", "width", "calls"),
    [
        ("zero1", "bf16", 1, 2, 1),  # the gradients themselves
        ("zero1", "fp32", 1, 2, 1),  # BF16_Optimizer casts what it added up in fp32 (engine.py:3660-3664)
        ("zero2", "bf16", 1, 2, 5),
        ("zero2", "fp32", 1, 2, 5),  # each micro-batch's bf16 gradients; the shard is added up in fp32
        ("zero1", "bf16", 2, 4, 1),  # a shared sequence: fp32 (stage_1_and_2.py:1843-1844)
        ("zero1", "fp32", 2, 4, 1),  # seq_parallel_communication_data_type (engine.py:1857)
        ("zero2", "fp32", 2, 4, 5),
    ],
)
def test_deepspeed_all_reduces_gradients_in_the_weights_dtype(
    sharding: str, gradient_dtype: str, sp: int, width: int, calls: int
) -> None:
    parallel = Parallel(sp=sp, dp=8 // sp, ep=2, num_micro_batches=5)
    settings = StateSettings(sharding=sharding, gradient_dtype=gradient_dtype)
    sent = {(it.kind, it.axis): it for it in step_collectives(plain(1024, 512), parallel, settings)}
    assert set(sent) == {(kind, axis) for kind in ("all_reduce", "all_gather") for axis in ("dp x sp", "expert_dp")}
    assert sent["all_reduce", "dp x sp"][3:7] == (8, calls, 1024 * width, 2 * 7 * (1024 * width // 8))
    assert sent["all_reduce", "expert_dp"][3:7] == (4, calls, 512 * width, 2 * 3 * (512 * width // 4))
    assert sent["all_gather", "dp x sp"][3:7] == (8, 1, 1024 // 8 * 2, 7 * (1024 // 8) * 2)  # utils.py:1016-1051
    assert sent["all_gather", "expert_dp"][3:7] == (4, 1, 512 // 4 * 2, 3 * (512 // 4) * 2)


# DeepSpeed at 38327e07, zero/stage_1_and_2.py:1126-1149 and 1490-1521: each slice of a bucket is reduced to its owner
def test_gradients_that_are_reduced_to_their_owners_are_sent_but_for_a_ranks_own() -> None:
    settings = StateSettings(sharding="zero2", gradient_dtype="bf16", to_owners=True)
    sent = step_collectives(plain(1001, 3), Parallel(dp=8, ep=2, num_micro_batches=5), settings)
    reduced = {it.axis: it for it in sent if it.kind == "reduce"}
    # parts of 126 (1008 in all): the last rank owns 119 and sends the 882 of the others
    assert reduced["dp x sp"][3:7] == (8, 5, 2 * 1001, 2 * 7 * 126)
    assert reduced["expert_dp"][3:7] == (4, 5, 2 * 3, 2 * 3)  # parts of 2 hold 3 elements: the last rank owns none
    (kept, _) = step_collectives(
        plain(1001), Parallel(dp=8), settings._replace(sharding="zero1", gradient_dtype="fp32")
    )
    assert kept.kind == "all_reduce"  # BF16_Optimizer


def test_bf16_weights_that_zero1_adds_up_in_fp32_keep_both_gradients_in_no_bucket_and_reduce_the_padding_too() -> None:
    """runtime/bf16_optimizer.py:148-166 (flat weights and fp32 gradients of padded size), 69, 387 (bf16 ones stay)."""
    settings = StateSettings(sharding="zero1", gradient_dtype="fp32")
    found = states(plain(1001), Parallel(dp=4), settings)
    assert (found.weight_bytes, found.gradient_bytes) == (2 * 1008, 4 * 1008 + 2 * 1001)
    assert bucket_bytes(settings) == 0
    (reduced, _) = step_collectives(plain(1001), Parallel(dp=4), settings)
    assert (reduced.kind, reduced.payload_bytes, reduced.wire_bytes) == ("all_reduce", 2 * 1008, 2 * 3 * 2 * 1008 // 4)
    half, held = (
        settings._replace(dtype="fp16"),
        plain(1001, dtype="fp16"),
    )  # fp16 goes through the bucket instead, engine.py:1994-1997
    assert states(held, Parallel(dp=4), half).gradient_bytes == 4 * 1001
    assert bucket_bytes(half) == 500_000_000 * 2
    assert step_collectives(held, Parallel(dp=4), half)[0].payload_bytes == 2 * 1001


def test_a_models_gradients_are_all_reduced_where_deepspeed_shards() -> None:
    asked: dict[str, Any] = {
        "model": "deepseek-v2-lite",
        "form": "explicit",
        "ep": 8,
        "dp": 16,
        "micro_batches": 4,
        "seq_len": 4096,
    }
    dense = 1_311_632_896  # elements of a rank's dense weights
    for sharding, gradient, times in (("zero1", "bf16", 1), ("zero1", "fp32", 1), ("zero2", "bf16", 4)):
        given = {**asked, "kernel": "flash", "sharding": sharding, "gradient_dtype": gradient}
        (row,) = mla_cost.plan(**given, scope="model", device=()).results
        assert row.communication is not None
        sent = {(it.kind, it.tensor): it for it in row.communication.collectives if it.phase == "step"}
        found = sent["all_reduce", "dense gradients"]
        assert (found.count, found.dtype) == (times, "bf16")
        assert found.wire_bytes == times * 2 * 15 * (2 * dense // 16)
        assert ("reduce_scatter", "dense gradients") not in sent
    given = {**asked, "kernel": "flash", "sharding": "zero1", "gradient_dtype": "bf16", "scope": "model", "device": ()}
    owned = mla_cost.sweep(over={"multi_rank_bucket_allreduce": ["on", "off"]}, **given).to_numpy(workers=1)
    assert owned["wire_dp_bytes"].tolist() == [15 * 2 * dense // 16 * times for times in (3, 2)]  # and what is gathered


def test_an_embedding_copy_is_summed_over_its_two_stages() -> None:
    found = {it.axis: it for it in step_collectives(golden(3), GOLDEN)}
    assert (found["pp"].group_size, found["pp"].payload_bytes) == (2, 258_560 // 2 * 7168 * 4)
    assert "expert_dp" not in found
    assert all(it.axis != "pp" for it in step_collectives(golden(1), GOLDEN))


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "deepseek-v2-lite", "longcat-flash-chat", "minicpm3-4b"])
def test_a_model_says_what_its_degrees_divide(name: str) -> None:
    model = catalog.model(name)
    assert problems(Parallel(tp=2, dp=4), shape_of(model, seq_len=4096)) == ()
    assert problems(Parallel(tp=2, dp=4), shape_of(model, StateSettings(sharded_down=True))) == ()
    heads = model.dims.heads
    assert problems(Parallel(tp=heads * 2), shape_of(model))[0].way_out == f"change tp to {heads}"
