"""Searches: every legal plan and no other, the figures of plans, the order, and what is said where nothing fits."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import Problem
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.recompute import POLICIES
from mla_cost.pricing import stage_work
from mla_cost.studies.search import Candidate, Found, pool
from mla_cost.studies.search import miss as miss_module
from mla_cost.studies.search.options import CHOICES, DEGREES, SearchQuestion, options, unsaid
from mla_cost.studies.search.order import Table, each
from mla_cost.studies.search.parallel_configs import Tally, _of_search, parallel_configs
from mla_cost.studies.search.pool import tables
from mla_cost.studies.search.reported import candidate, checked
from mla_cost.studies.search.result import SAMPLE, _question
from mla_cost.studies.search.space import Space

LAYERS, EXPERTS, HEADS, FFN, EXPERT_FFN = 5, 6, 8, 96, 48
TINY = f"""\
title: Tiny
num_layers: {LAYERS}
intermediate_size: {FFN}
moe_intermediate_size: {EXPERT_FFN}
num_routed_experts: {EXPERTS}
num_shared_experts: 1
num_experts_per_token: 2
num_dense_layers: 1
num_mtp_layers: 0
router_scores: sigmoid
router_correction_bias: true
vocab_size: 1000
tied_embeddings: false
dims: {{hidden: 64, heads: {HEADS}, q_lora_rank: 32, kv_lora_rank: 16,
       qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 8}}
"""
GIB = 2**30
DEVICE = "a100-80gb"
FIT = {"fits", "tight"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def question(model: str, devices: Any, global_batch: int, seq_len: int, **axes: Any) -> SearchQuestion:
    limits = {name: axes.pop(name) for name in list(axes) if name.startswith("max_")}
    settings = PlanSettings(model=model, device=(DEVICE,), form=("explicit",), seq_len=seq_len)
    return _question(settings, axes, {"devices": devices, "global_batch": global_batch, "max_idle": 100, **limits})


def as_plan(found: Candidate) -> dict[str, Any]:
    """The keywords of `mla_cost.plan` for a candidate."""
    given = found._asdict()
    given["kernel"], given["value_padding"] = found.kernel, found.value_padding
    names = (
        *("form", "scheme", "kernel", "value_padding", "tp", "sp", "pp", "ep", "etp", "dp", "virtual_stages"),
        *("pipeline_layout", "micro_batch", "micro_batches", "sharding", "remat"),
    )
    return {name: given[name] for name in names}


class Figures(NamedTuple):
    """Of a plan; what it sends and runs as its levers have it: the stage that has most."""

    status: str
    required: int
    sent: int
    flops: int
    usable: int
    listed: int  # bytes sent by the stage that the plan prints


def planned(model: str, device: str = DEVICE, **asked: Any) -> Figures | None:
    """The figures of a plan; None where it is illegal."""
    (row,) = mla_cost.plan(model, device, scope="model", **asked).results
    verdict = row.verdict
    assert verdict is not None
    if verdict.required_bytes is None or verdict.usable_bytes is None:
        return None
    settings = PlanSettings(scope="model", **{**asked, "form": (row.form,)})
    most = stage_work.most_of_stages(catalog.model(model), catalog.device(device), row.form, settings)
    listed = sum(collective.wire_bytes for collective in row.communication.collectives)
    return Figures(verdict.status, verdict.required_bytes, most.wire_bytes, most.executed, verdict.usable_bytes, listed)


def own(found: Candidate) -> tuple[Any, ...]:
    return found.status, found.required_bytes, found.sent_bytes, found.flops, found.usable_bytes


# ---- the space: against rules typed here


def divide(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


class Asked(NamedTuple):
    devices: int
    batch: int
    seq_len: int
    max_tp: int
    max_micro_batch: int
    chunks: int
    etp: int


def legal(asked: Asked) -> Iterator[tuple[int, ...]]:
    """world = pp tp sp dp; (tp sp dp) is a multiple of (ep etp); widths over tp and etp; sequences over sp tp."""
    for tp, sp, pp, dp, ep in product(*[divide(asked.devices)] * 4, divide(EXPERTS)):
        if tp * sp * pp * dp != asked.devices or tp > asked.max_tp or (tp * sp * dp) % (ep * asked.etp):
            continue
        if HEADS % tp or FFN % tp or EXPERT_FFN % tp or EXPERT_FFN % asked.etp or asked.seq_len % (sp * tp):
            continue
        if pp * asked.chunks > LAYERS or asked.batch % dp or (asked.chunks > 1 and pp == 1):
            continue
        for size in divide(asked.batch // dp):
            count = asked.batch // dp // size
            interleaves = asked.chunks == 1 or (count >= pp and count % pp == 0)
            if size <= asked.max_micro_batch and interleaves:
                yield tp, sp, pp, ep, asked.etp, dp, asked.chunks, size, count


ASKED = st.builds(
    Asked,
    devices=st.sampled_from([1, 2, 4, 6, 8, 12, 16, 24]),
    batch=st.sampled_from([1, 4, 6, 12]),
    seq_len=st.sampled_from([12, 48, 64]),
    max_tp=st.sampled_from([1, 2, 8]),
    max_micro_batch=st.sampled_from([1, 3, 12]),
    chunks=st.sampled_from([1, 2]),
    etp=st.sampled_from([1, 1, 2, 5]),
)


@given(ASKED)
def test_parallel_configs_are_those_of_rules_typed_here(tiny, case):
    own = {"max_tp": case.max_tp, "max_micro_batch": case.max_micro_batch}
    asked = question(tiny, *case[:3], virtual_stages=case.chunks, etp=case.etp, **own)
    tally = Tally()
    found = [(*config[:7], *config[8:10]) for config in parallel_configs(asked, tally)]
    assert len(set(found)) == len(found)
    assert set(found) == set(legal(case))
    layouts = {(tp, sp, pp, ep, dp) for tp, sp, pp, ep, _, dp, *_ in found}
    ruled = sum(row.number for row in tally.rows() if row.of == "layouts")
    meshes = sum(tp * sp * pp * dp == case.devices for tp, sp, pp, dp in product(*[divide(case.devices)] * 4))
    without_batch = {row.number for row in tally.rows() if row.of == "batches"}
    if not without_batch:
        assert len(layouts) + ruled == meshes * len(divide(EXPERTS))


def test_layers_need_not_divide_over_stages(tiny):
    found = {config.pp: config.pipeline_layout for config in parallel_configs(question(tiny, 20, 20, 64), Tally())}
    assert found == {1: None, 2: "Ett|tttL", 4: "Et|t|tt|tL", 5: None} or set(found) == {1, 2, 4, 5}
    for pp, layout in found.items():
        assert (layout is None) == (LAYERS % pp == 0)
        parts = [] if layout is None else layout.split("|")
        assert layout is None or (len(parts) == pp and sum(part.count("t") for part in parts) == LAYERS)


def test_a_limit_on_waiting_drops_batches(tiny):
    free = parallel_configs(question(tiny, 8, 8, 64), Tally())
    tally = Tally()
    limited = parallel_configs(question(tiny, 8, 8, 64, max_idle=25), tally)
    assert set(limited) == {
        config for config in free if (config.pp - 1) / (config.micro_batches + config.pp - 1) <= 0.25
    }
    (row,) = (row for row in tally.rows() if row.rule == "max_idle")
    assert (row.of, row.number) == ("batches", len(free) - len(limited))


def test_each_rule_is_counted_with_an_example_and_a_way_out(tiny):
    tally = Tally()
    list(parallel_configs(question(tiny, 48, 4, 64, max_tp=4, max_pp=3), tally))
    ruled = {row.rule: row for row in tally.rows()}
    assert {"max_tp", "max_pp", "tp", "seq_len", "global_batch", "ep"} <= set(ruled)
    assert all(row.number > 0 for row in ruled.values())
    assert "heads (8) is not divisible by tp (3)" in ruled["tp"].example
    assert "; change" in ruled["global_batch"].example


# ---- figures: every candidate against plans, brute force


FEW: dict[str, Any] = {"sharding": ["distributed", "zero2"], "remat": ["none"]}
ONE: dict[str, Any] = {"form": "explicit", "scheme": "ulysses", "sharding": "distributed", "remat": "none"}
FEW["scheme"] = ["ulysses", "latent-gather", "kv-gather"]  # of these, absorbed and laga have one


PAIRS = (("explicit", "ulysses"), ("absorbed", "latent-gather"), ("laga", "latent-gather"))


def brute(model: str, devices: int, batch: int, seq_len: int, **asked: Any) -> dict[tuple[Any, ...], Figures]:
    """Every plan that is not illegal, by its settings. Where one rank has a sequence, a form's own scheme only."""
    found = {}
    others = (("explicit", "latent-gather"), ("explicit", "kv-gather"))
    for config in parallel_configs(question(model, devices, batch, seq_len), Tally()):
        schemes = PAIRS if config.sp == 1 else PAIRS + others
        for (form, scheme), sharding, remat in product(schemes, FEW["sharding"], FEW["remat"]):
            if sharding == "zero2" and config.pp > 1:
                continue
            given = {**config.stated, "form": form, "scheme": scheme, "sharding": sharding, "remat": remat}
            row = planned(model, seq_len=seq_len, kernel="auto", **given, **asked)
            if row is not None:
                found[form, scheme, *config.stated.values(), sharding, remat] = row
    return found


def settings_of(found: Candidate) -> tuple[Any, ...]:
    degrees = (found.tp, found.sp, found.pp, found.ep, found.etp, found.dp, found.virtual_stages, found.pipeline_layout)
    batches = (found.micro_batch, found.micro_batches)
    return (found.form, found.scheme, *degrees, *batches, found.sharding, found.remat)


@pytest.fixture(scope="module")
def everything(tiny) -> dict[tuple[Any, ...], Figures]:
    """All plans of the tiny model on four devices; some fit beside the other memory, some do not."""
    return brute(tiny, 4, 4, 64, reserve=SOME)


def room(usable: int) -> dict[str, int]:
    """A reserve that leaves the tiny model as much as it needs at some layouts and not at others."""
    none = {"runtime context": 0, "NCCL buffers": 0}
    (row,) = mla_cost.plan(device=DEVICE, form="explicit", scope="model", sp=1, reserve=none).results
    assert row.verdict is not None
    return none | {"runtime context": (row.verdict.usable_bytes or 0) - usable}


SOME = room(3_900_000)
NONE = room(2_000_000)


def four(tiny: str, **asked: Any) -> Found:
    given = {"reserve": SOME, "max_idle": 100, **FEW, **asked}
    return mla_cost.search(tiny, DEVICE, devices=4, global_batch=4, seq_len=64, **given)


def test_counts_and_order_are_those_of_brute_force(tiny, everything):
    found = four(tiny, top=1000, by="sent,flops,required,idle")
    assert found.counts == Counter(row.status for row in everything.values())
    assert set(found.counts) == {"fits", "tight", "oom"}
    alone = [config.sp == 1 for config in parallel_configs(question(tiny, 4, 4, 64), Tally())]
    each_place = [3 if one_rank else 5 for one_rank in alone]  # programs: one per form, or as many as have schemes
    refused = 2 * 4 * len(alone)  # ulysses and kv-gather, with absorbed and with laga, of either sharding
    ruled = sum(row.number for row in found.ruled_out if row.of == "candidates")
    assert found.candidates + ruled == 2 * sum(each_place) + refused
    layouts: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key, row in everything.items():
        if row.status in FIT:
            layouts.setdefault(key[2:9], []).append(ranks(row, key))
    expected = {layout: (min(rows), rows.count(min(rows)) - 1, len(rows) - 1) for layout, rows in layouts.items()}
    reported = {settings_of(row)[2:9]: (ranked(row), row.alike, row.variants) for row in found.results}
    assert reported == expected
    assert [ranked(row) for row in found.results] == sorted(first for first, _, _ in expected.values())


def ranks(row: Figures, key: tuple[Any, ...]) -> tuple[Any, ...]:
    waits = key[4] - 1
    return row.status != "fits", row.sent, row.flops, row.required, waits / (key[11] + waits)


def ranked(found: Candidate) -> tuple[Any, ...]:
    return found.status != "fits", found.sent_bytes, found.flops, found.required_bytes, found.idle


def test_every_figure_is_that_of_a_plan(tiny, everything):
    found = four(tiny, top=50)
    assert any(row.sent != row.listed for row in everything.values()), "the stage that sends most is always the same"
    for row in (*found.results, *found.pareto):
        assert own(row) == everything[settings_of(row)][:5]
        again = planned(tiny, seq_len=64, reserve=SOME, **as_plan(row))
        assert again is not None
        assert own(row) == again[:5]
        assert row.headroom_bytes == again.usable - again.required
        assert sum(row.sent_by_axis.values()) == row.sent_bytes
        if row.pp == 1:
            assert row.sent_bytes == again.listed


def test_the_pareto_set_is_that_of_brute_force(tiny, everything):
    points = {row[1:4] for row in everything.values() if row.status in FIT}
    kept = {one for one in points if not any(beats(other, one) for other in points)}
    found = four(tiny)
    assert {own(row)[1:4] for row in found.pareto} == kept
    assert len(found.pareto) == len(kept)


def test_the_least_time_comes_first_and_no_row_beats_the_set_of_memory_left_against_time(tiny):
    """Ranked by what `plan` says of time; a row beaten in both memory left and time is not in the set."""
    found = four(tiny, top=1000, form="laga", remat="none", tp="1,2")
    fitting = [row for row in found.results if row.status == "fits"]
    seconds = [row.seconds for row in fitting if row.seconds is not None]
    assert len(seconds) == len(fitting)
    assert seconds == sorted(seconds)
    first = fitting[0]
    assert first.seconds is not None
    assert first.tokens_per_second == pytest.approx(4 * 64 / first.seconds)
    (again,) = mla_cost.plan(tiny, DEVICE, seq_len=64, reserve=SOME, **as_plan(first)).results
    assert again.time is not None
    assert (first.seconds, first.seconds_low) == pytest.approx((again.time.total.seconds, again.time.total.low))
    assert [row.too_close is None for row in found.results] == [at >= SAMPLE for at in range(len(found.results))]
    assert not first.too_close
    kept = [(-row.headroom_bytes, row.seconds or 0.0) for row in found.time_pareto]
    for one in (*fitting, *found.time_pareto, *found.pareto):
        assert one.seconds is not None
        mine = (-one.headroom_bytes, one.seconds)
        assert any(other[0] <= mine[0] and other[1] <= mine[1] for other in kept)
    assert not any(beats(other, one) for other in kept for one in kept)


def beats(other: tuple[Any, ...], one: tuple[Any, ...]) -> bool:
    return other != one and all(mine <= yours for mine, yours in zip(other, one, strict=True))


@pytest.mark.parametrize(("by", "field"), [("required", "required_bytes"), ("flops", "flops"), ("idle", "idle")])
def test_order_by_another_figure(tiny, everything, by, field):
    found = four(tiny, by=by, top=5)
    fitting = [row for row in found.results if row.status == "fits"]
    values = [getattr(row, field) for row in fitting]
    assert values == sorted(values)
    if by == "required":
        assert values[0] == min(row.required for row in everything.values() if row.status == "fits")


def node(found: Candidate, ranks: int) -> tuple[int, int]:
    """Bytes inside a node of so many ranks and between nodes: tp, sp, dp, pp from the inside out; experts etp, ep."""
    stage = found.tp * found.sp * found.dp
    last = {"tp": found.tp, "sp": found.tp * found.sp, "dp x sp": stage, "pp": stage * found.pp, "expert_dp": stage}
    last |= {"etp": found.etp, "ep": found.etp * found.ep}
    between = sum(sent for axis, sent in found.sent_by_axis.items() if last[axis] > ranks)
    return found.sent_bytes - between, between


def test_the_weight_counts_bubbles_and_tells_the_links_of_a_node_apart(tiny):
    """By figures typed from the device's file: 312 Tflop/s, 300 GB/s inside a node of 8, 25 GB/s between nodes."""
    asked: dict[str, Any] = {"devices": 16, "global_batch": 32, "seq_len": 64, "top": 100, **ONE}
    found = mla_cost.search(tiny, DEVICE, **asked, by="weight")
    assert found.inputs["max_idle"] == 20
    assert any(row.between_nodes_bytes for row in found.results)
    for row in found.results:
        inside, between = node(row, 8)
        assert (row.inside_node_bytes, row.between_nodes_bytes) == (inside, between)
        busy = row.flops / 312e12 + inside / 300e9 + between / 25e9
        assert row.weight_seconds == pytest.approx(busy / (1 - row.idle), rel=1e-12)
        assert row.idle <= 0.2
    weights = [row.weight_seconds for row in found.results if row.status == "fits"]
    assert weights == sorted(weights)
    layouts = [settings_of(row)[2:9] for row in found.results]
    assert len(set(layouts)) == len(layouts)


REPLAYED: list[tuple[str, dict[str, Any]]] = [
    (
        "deepseek-v2-lite",
        {
            "devices": 16,
            "global_batch": 64,
            "seq_len": 4096,
            "remat": ["none", "full"],
            "form": ["explicit", "laga"],
            "tp": [1, 2],
            "micro_batch": 1,
            "sharding": "distributed",
            "top": 4,
        },
    ),
    (
        "moonlight-16b-a3b",
        {
            "devices": 12,
            "global_batch": 24,
            "seq_len": 8192,
            "profile": "megatron",
            "form": "explicit",
            "top": 4,
            "virtual_stages": [1, 2],
            "dims": {"heads": 32},
            "reserve": {"NCCL buffers": 2**30},
            "gradient_dtype": "bf16",
            "other_memory": "1GiB",
            "micro_batch": [1, 2],
            "remat": "full",
            "pp": [2, 4],
        },
    ),
]


@pytest.mark.parametrize(("model", "asked"), REPLAYED)
def test_every_row_replays_from_its_command(model, asked, capsys):
    found = mla_cost.search(model, "h100-80gb", **asked)
    assert found.results
    for row in found.results:
        words = shlex.split(row.command)
        assert words[:2] == ["mla-cost", "plan"]
        with pytest.raises(SystemExit) as ended:
            main([*words[1:], "--format", "json"])
        assert ended.value.code == 0
        (reported,) = json.loads(capsys.readouterr().out)["results"]
        verdict, stages = reported["verdict"], reported["memory"]["stages"]
        assert (verdict["status"], verdict["required_bytes"]) == (row.status, row.required_bytes)
        assert verdict["usable_bytes"] == row.usable_bytes
        assert max(stage["sent_bytes"] for stage in stages) == row.sent_bytes
        assert (reported["form"], reported["scheme"], reported["kernel"]) == (row.form, row.scheme, row.kernel)


def test_a_pipeline_without_a_layout_is_the_one_that_a_search_finds():
    degrees: Any = {"pp": 4, "dp": 2, "ep": 2, "micro_batches": 16, "seq_len": 4096, "form": "explicit"}
    found = mla_cost.search(
        "deepseek-v2-lite", DEVICE, devices=8, global_batch=32, seq_len=4096, form="explicit", pp=4, tp=1, sp=1, ep=2
    )
    assert found.best is not None
    layout = found.best.pipeline_layout
    plain = mla_cost.plan("deepseek-v2-lite", DEVICE, **degrees)["explicit"]
    stated = mla_cost.plan("deepseek-v2-lite", DEVICE, **degrees, pipeline_layout=layout)["explicit"]
    assert plain.memory == stated.memory
    assert plain.communication == stated.communication
    assert any(f"--pipeline-layout '{layout}'" in note for note in plain.notes)
    assert stated.notes == tuple(note for note in plain.notes if "--pipeline-layout" not in note)


def test_a_miss_keeps_to_the_limits_of_the_search():
    found = mla_cost.search(
        "kimi-k2",
        "910b-64gb",
        devices=256,
        global_batch=1024,
        seq_len=8192,
        form="explicit",
        remat="full",
        sharding="distributed",
        micro_batch=1,
        sp=1,
    )
    miss = found.nearest_miss
    assert miss is not None
    assert miss.candidate is not None
    assert all(lever.settings.get("tp", 1) <= 8 for lever in miss.levers)
    reported = [int(number) for number in re.findall(r"\btp \d+ -> (\d+)", miss.remedy or "")]
    assert all(number <= 8 for number in reported)
    assert miss.more_devices is not None
    assert miss.more_devices.devices == 384
    assert miss.tried_devices == (512, 288, 320, 352, 384)
    assert (miss.more_devices.tp <= 8, miss.more_devices.idle <= 0.2) == (True, True)


def test_on_one_rank_of_a_sequence_schemes_are_one_candidate(tiny):
    found = four(tiny, sp=1, form="explicit", top=1000)
    assert {row.scheme for row in found.results} == {FORMS["explicit"].scheme}
    named = four(tiny, sp=1, form="explicit", scheme="kv-gather", top=1000)
    assert named.counts == found.counts
    assert {row.scheme for row in named.results} == {"kv-gather"}


def test_axes_narrow_the_space(tiny):
    found = four(tiny, tp="1,2", pp=[2], micro_batch=2, remat="full", sharding="zero1", top=1000)
    assert {row.tp for row in found.results} == {1, 2}
    assert {(row.pp, row.micro_batch, row.remat, row.sharding) for row in found.results} == {(2, 2, "full", "zero1")}


def test_of_several_counts_the_fewest_devices_come_first(tiny):
    found = mla_cost.search(tiny, DEVICE, devices="2..8*2", global_batch=8, seq_len=64, top=1000, **ONE)
    numbers = [row.devices for row in found.results]
    assert numbers == sorted(numbers)
    assert set(numbers) == {2, 4, 8}
    assert all(row.tp * row.sp * row.pp * row.dp == row.devices for row in found.results)
    assert found.inputs["devices"] == (2, 4, 8)


def test_the_runner_up_lost_by_what_the_figures_say(tiny):
    found = four(tiny, top=2, **ONE)
    first, second = found.results
    assert found.runner_up is not None
    assert first.seconds is not None
    assert second.seconds is not None
    assert f"takes {second.seconds:,.3f} s a step against {first.seconds:,.3f}" in found.runner_up
    assert four(tiny, top=1, **ONE).runner_up is None


def test_another_profile_has_its_policies_and_refusals(tiny):
    found = mla_cost.search(
        tiny, DEVICE, devices=2, global_batch=2, seq_len=64, profile="megatron", sp=1, pp=1, top=1000
    )
    assert {row.form for row in found.results} == {"explicit"}
    assert {row.remat for row in found.results} <= set(PROFILES["megatron"].recomputes) | set(POLICIES)
    assert found.counts["fits"] == sum(row.variants + 1 for row in found.results)
    refused = {row.rule: row for row in found.ruled_out if row.of == "candidates"}
    assert any("no absorbed training path" in row.example for row in refused.values())


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("deepseek-v3", {"profile": "megatron", "virtual_stages": [1, 2], "micro_batch": 1, "remat": "mla_up_proj"}),
        (
            "deepseek-v3",
            {
                "form": ("laga",),
                "tp": 1,
                "virtual_stages": [1, 4],
                "max_tp": 2,
                "gradient_dtype": "bf16",
                "remat": ["none", "moe"],
            },
        ),
        (
            "deepseek-v2-lite",
            {
                "form": ("explicit", "absorbed"),
                "kernel": "eager",
                "sharding": "ddp",
                "remat": ["core_attn+mlp", "full"],
            },
        ),
        ("minicpm3-4b", {"remat": ["none", "mlp"], "sharding": "zero1", "moment_dtype": "bf16"}),
    ],
)
def test_random_candidates_are_plans(model, asked):
    """Wherever they rank: `checked` compares status, bytes and flops with a plan and its levers."""
    space, found = priced_space(model, 16, 32, 4096, **asked)
    draw = random.Random(0)  # noqa: S311  (no secret)
    rows = [draw.choice(each(draw.choice(found))) for _ in range(8)]
    for row in rows:
        verdict, reported = checked(space, row).verdict, candidate(space, row)
        assert verdict is not None
        assert (reported.status, reported.required_bytes) == (verdict.status, verdict.required_bytes)
        assert sum(reported.sent_by_axis.values()) == reported.sent_bytes


def priced_space(model: str, devices: int, batch: int, seq_len: int, **asked: Any) -> tuple[Space, list[Table]]:
    """A space and the table of every batch of it."""
    axes = {name: asked.pop(name) for name in (*DEGREES, *CHOICES) if name in asked}
    options = {name: asked.pop(name) for name in list(asked) if name.startswith("max_")}
    settings = PlanSettings(model=model, device=(DEVICE,), seq_len=seq_len, **asked)
    space = Space(_question(settings, axes, {"devices": devices, "global_batch": batch, **options}))
    return space, [table for at in range(len(space.programs)) for table in tables(space, at) if len(table["config"])]


# ---- nothing fits, or nothing is legal


def test_where_nothing_fits_the_nearest_is_told_with_what_it_lacks(tiny):
    found = four(tiny, reserve=NONE, **ONE)
    assert found.results == found.pareto == ()
    miss = found.nearest_miss
    assert miss is not None
    assert miss.candidate is not None
    configs = parallel_configs(question(tiny, 4, 4, 64), Tally())
    every = (planned(tiny, seq_len=64, kernel="auto", reserve=NONE, **config.stated, **ONE) for config in configs)
    least = min(row.required - row.usable for row in every if row is not None)
    assert miss.short_bytes == least == -miss.candidate.headroom_bytes
    assert miss.remedy is not None


def test_where_more_devices_hold_it_that_many_are_told():
    found = mla_cost.search(
        "deepseek-v2-lite",
        DEVICE,
        devices=2,
        global_batch=8,
        seq_len=4096,
        form="explicit",
        remat="full",
        sharding="zero1",
    )
    miss = found.nearest_miss
    assert miss is not None
    assert miss.candidate is not None
    assert miss.more_devices is not None
    assert miss.more_devices.devices == 6  # 4 are 0.95 GiB short: the loss keeps its logits in fp32
    more = planned("deepseek-v2-lite", seq_len=4096, **as_plan(miss.more_devices))
    assert more is not None
    assert own(miss.more_devices) == more[:5]
    for lever in miss.levers:
        changed = as_plan(miss.candidate) | dict(lever.settings)
        after = planned("deepseek-v2-lite", seq_len=4096, **changed)
        assert after is not None
        assert after.status in FIT


def test_the_ways_out_of_a_search_are_its_own():
    """dp and micro-batches follow from what is searched, and no flag of it states them."""
    reported = [
        Problem("ep", "so", "change ep to 16 or dp to 32"),
        Problem("global_batch", "so", "change global_batch to 12 and micro_batches to match"),
        Problem("micro_batches", "so", "change micro_batches to 8"),
        Problem("pp", "so", "change pp to 3, or state a pipeline_layout"),
        Problem("tp", "so", "change tp to 4"),
    ]
    assert [_of_search(problem).way_out for problem in reported] == [
        "change ep to 16, or ask for more devices",
        "change global_batch to 12",
        "change global_batch",
        "change pp to 3",
        "change tp to 4",
    ]


def _fits_from_512(_question: object, count: int, _watch: object) -> SimpleNamespace | None:
    return SimpleNamespace(devices=count) if count >= 512 else None


def test_a_miss_tries_powers_of_two_between(monkeypatch):
    """Of 384 devices 768 hold it, and so do 512: eighths of 384 go past them."""
    enough: Any = SimpleNamespace(options=SimpleNamespace(devices=(384,)))
    monkeypatch.setattr(miss_module, "_frugal", _fits_from_512)
    found, tried = miss_module.more_devices(enough)
    assert found is not None
    assert (found.devices, tried) == (512, (768, 416, 448, 480, 512))


def test_a_search_without_a_size_says_what_it_took():
    own = options(PlanSettings(sp=1, dp=2), {})
    assert unsaid({}, own) == {
        "devices": "devices is not stated; taken: 2, tp x sp x pp x dp of the plan (--devices asks for another)",
        "global_batch": "global_batch is not stated; taken: 2, micro_batch x micro_batches x dp of the plan "
        "(--global-batch asks for another)",
    }
    assert unsaid({"devices": 8, "global_batch": 8}, own) == {}


def test_a_kernel_that_nothing_trains_is_told_with_its_reason(tiny):
    found = mla_cost.search(tiny, "910b-64gb", devices=2, global_batch=2, seq_len=64, kernel="flash", **ONE)
    assert set(found.counts) == {"unsupported"}
    miss = found.nearest_miss
    assert miss is not None
    assert miss.candidate is not None
    assert miss.candidate.status == "unsupported"
    assert "flash" in miss.reason


def test_where_nothing_is_legal_the_way_out_is_told(tiny):
    found = mla_cost.search(tiny, DEVICE, devices=7, global_batch=4, seq_len=64)
    assert found.counts == {}
    assert found.nearest_miss is not None
    assert found.nearest_miss.candidate is None
    assert "change" in found.refused


# ---- the command line and what it refuses


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["search", *arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    return out or err


def test_the_command_prints_what_python_answers(tiny, capsys):
    flags = ["--model", tiny, "--device", DEVICE, "--devices", "4", "--global-batch", "4", "--seq-len", "64"]
    flags += ["--max-idle", "100"]
    flags += [f"--{name}={value}" for name, value in ONE.items()]
    flags += [f"--reserve={name}={amount}" for name, amount in SOME.items()]
    found = four(tiny, **ONE)
    reported = json.loads(run(capsys, *flags, "--format", "json"))
    assert reported == json.loads(found.to_json())
    assert reported["schema"] == "mla-cost/search/1"
    rows = list(csv.DictReader(io.StringIO(run(capsys, *flags, "--format", "csv"))))
    assert [int(row["sent_bytes"]) for row in rows] == [row.sent_bytes for row in found.results]
    assert tuple(rows[0]) == Candidate._fields
    text = run(capsys, *flags, "--pareto")
    assert f"{found.candidates:,} candidates" in text
    assert "in order of least time of a step (most tokens a second)" in " ".join(text.split())
    assert "it ranks and predicts nothing" in " ".join(run(capsys, *flags, "--by", "weight").split())
    assert found.best is not None
    assert found.best.command in text
    assert "None beats these" in text
    assert str(found).splitlines()[0] == text.splitlines()[0]


def test_a_plan_gives_devices_and_global_batch(tiny, tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"model: {Path(tiny).name}\ndevice: [{DEVICE}]\nseq_len: 64\nsp: 1\ntp: 2\ndp: 2\nmicro_batches: 3\n"
    )
    (tmp_path / "tiny.yaml").write_text(TINY)
    reported = json.loads(run(capsys, str(plan), "--remat", "none", "--sharding", "zero1", "--format", "json"))
    assert (reported["inputs"]["devices"], reported["inputs"]["global_batch"]) == ([4], 6)


def test_exit_codes(tiny, capsys):
    flags = ["--model", tiny, "--device", DEVICE, "--devices", "2", "--global-batch", "2", "--seq-len", "64"]
    flags += ["--remat", "none", "--sharding", "zero1", "--form", "explicit", "--tp", "1", "--sp", "1"]
    run(capsys, *flags, "--require-fit")
    full = [*flags, "--other-memory", "79GiB"]
    assert "Nothing fits. What comes nearest" in run(capsys, *full)
    run(capsys, *full, "--require-fit", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--devices 7 --global-batch 4 --seq-len 64", ["change"]),
        ("--devices 4 --global-batch 4 --tp 3", ["tp 3 does not divide 4 devices", "1, 2, 4"]),
        ("--devices 0 --global-batch 4", ["devices", "at least 1", "not 0"]),
        ("--devices four --global-batch 4", ["devices: must be a whole number", "'four'"]),
        ("--devices 4 --global-batch 0", ["global_batch", "at least 1"]),
        ("--devices 4 --by sents", ["unknown by 'sents'", "did you mean sent?"]),
        ("--devices 4 --remat ful", ["unknown remat 'ful'", "did you mean full?"]),
        ("--devices 4 --remat mla_up_proj", ["remat mla_up_proj belongs to profile megatron"]),
        ("--devices 4 --sharding zero3", ["sharding", "'zero3'", "zero2"]),
        ("--devices 4 --scheme rings", ["unknown scheme 'rings'"]),
        ("--devices 4 --form lga", ["unknown form 'lga'", "did you mean laga?"]),
        ("--devices 4 --device 910b-64gb,a100-80gb", ["a search is for one device"]),
        ("--devices 4 --format xml", ["--format", "text, json, csv"]),
        ("--devices 4 --max-tp 0", ["max_tp", "at least 1"]),
        ("--devices 4 --top 0", ["top", "at least 1"]),
        ("--devices 4 --tp 8..1", ["tp: ", "is no range", "a..b*FACTOR"]),
        ("--devices 1 --global-batch 4 --micro-batch 3", ["micro_batch 3", "global_batch is 4"]),
        ("--devices 4 --global-batch 4 --ep 5", ["experts (6) is not divisible by ep (5)"]),
        ("--devices 8 --global-batch 8 --pp 8 --max-idle 0", ["5 layers do not split over pp 8"]),
        ("--devices 4 --global-batch 4 --pp 4 --max-idle 0", ["waits", "raise max_idle"]),
        ("--devices 4 --profile megatron --form absorbed", ["no absorbed training path"]),
        ("--devices 4 --sequence-parallel", ["megatron_sp"]),
        ("--devices 4 --set bogus=1", ["bogus: unknown key"]),
        ("--devices 4 --model kimi-linear-48b-a3b", ["model"]),
    ],
)
def test_what_is_refused(tiny, capsys, arguments, words):
    flags = arguments.split()
    message = run(capsys, *([] if "--model" in flags else ["--model", tiny]), *flags, code=2)
    assert len(message.splitlines()) == 1, message
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    "wrong", [{"by": 5}, {"by": [5]}, {"devices": 8.0}, {"devices": []}, {"tp": "x"}, {"top": True}]
)
def test_what_is_no_value_is_refused(tiny, wrong):
    with pytest.raises(mla_cost.InputError, match=next(iter(wrong))):
        mla_cost.search(tiny, DEVICE, **{"devices": 4, "global_batch": 4, **wrong})


def test_a_space_that_would_take_hours_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("mla_cost.studies.search.space.MOST", 100)
    with pytest.raises(mla_cost.InputError, match=r"up to [\d,]+ candidates; allowed: at most 100; narrow an axis"):
        four(tiny)


def test_what_follows_from_the_search_cannot_be_fixed(tiny):
    with pytest.raises(mla_cost.InputError, match="dp: follows from what is searched"):
        mla_cost.search(tiny, DEVICE, devices=4, global_batch=4, dp=2)


def test_two_processes_find_what_one_finds(tiny, monkeypatch):
    asked: Any = {"form": "explicit", "scheme": "ulysses", "top": 5}
    monkeypatch.setattr(pool, "available", lambda: 1)
    alone = four(tiny, **asked).to_dict()
    monkeypatch.setattr(pool, "available", lambda: 2)
    monkeypatch.setattr(pool, "MANY", 0)
    assert four(tiny, **asked).to_dict() == alone


def test_what_a_search_prints_can_be_planned(capsys):
    asked = ("--model", "deepseek-v2-lite", "--device", "a100-80gb", "--seq-len", "4096")
    narrowed = ("--pp", "8", "--tp", "1", "--ep", "1", "--sp", "1", "--remat", "full", "--sharding", "ddp")
    only = ("--form", "explicit", "--micro-batch", "1", "--format", "text")
    text = run(capsys, *asked, "--devices", "8", "--global-batch", "64", *narrowed, *only)
    found = re.search(r"Layers at pp 8: pipeline_layout (\S+)", text)
    assert found
    degrees = {"pp": 8, "sp": 1, "micro_batches": 64, "sharding": "ddp", "remat": "full", "seq_len": 4096}
    layout: Any = {"pipeline_layout": found[1], **degrees}
    plan = mla_cost.plan("deepseek-v2-lite", "a100-80gb", form="explicit", **layout)
    verdict = plan["explicit"].verdict
    assert verdict is not None
    assert verdict.status == "fits"
