"""Time is never below what a limit allows, falls with every ceiling, and adds up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mla_cost
from mla_cost import api
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.inputs.catalog import device, model
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.schedule import ScheduleSize, length
from mla_cost.pricing import rows, what_ifs
from mla_cost.results import Result, Time
from mla_cost.timing import rules, step
from mla_cost.timing.ceilings import ENDS, ceilings
from mla_cost.timing.work import ExpertChoice, rows_per_node
from mla_cost.views.trace import trace_json

NAMES = ("910b-64gb", "a100-80gb", "h800-80gb", "b200-180gb", "mi300x")
ON = {name: ceilings(device(name)) for name in NAMES}
SIZES = st.integers(min_value=1, max_value=2**17)


def timed(name: str = "deepseek-v3", **asked: Any) -> tuple[Result, Time]:
    result = next(iter(mla_cost.plan(name, **asked)))
    assert result.time is not None
    return result, result.time


@given(name=st.sampled_from(NAMES), batch=st.integers(1, 64), m=SIZES, n=SIZES, k=SIZES)
@settings(max_examples=25, deadline=None)
def test_a_product_is_never_faster_than_peak_or_memory(name: str, batch: int, m: int, n: int, k: int) -> None:
    on, flops, through = ON[name], 2 * batch * m * n * k, 2 * batch * (m * k + k * n + m * n)
    shape = rules.ProductShape(batch, m, n, k)
    found = rules.multiplied(on, "bf16", flops, through, shape)
    assert 0 < rules.tile_use(on, shape) <= 1
    assert found.seconds >= max(flops / on.peak_bf16, through / on.bandwidth)
    faster = on._replace(peak_bf16=2 * on.peak_bf16, bandwidth=2 * on.bandwidth)
    assert rules.multiplied(faster, "bf16", flops, through, shape).seconds <= found.seconds


@given(
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "point_to_point")),
    ranks=st.sampled_from((1, 2, 4, 8, 16, 64)),
    local=st.sampled_from((1, 2, 4, 8)),
    piece=st.integers(1, 2**34),
)
@settings(max_examples=25, deadline=None)
def test_what_is_sent_needs_its_links(name: str, kind: str, ranks: int, local: int, piece: int) -> None:
    on, group = ON[name], rules.Crossing(ranks, min(ranks, local))
    wire = piece if kind == "point_to_point" and ranks > 1 else piece * (ranks - 1)
    sent = rules.sent(kind, wire, group)
    assert sent.inside + sent.between == pytest.approx(wire)
    found = rules.collective(on, kind, kind, wire, group)
    nominal = {
        "inside": 1e9 * float(str(device(name).intra_node_gb_s.value)),
        "between": 1e9 * float(str(device(name).inter_node_gb_s.value)),
    }
    assert found >= max(sent.inside / nominal["inside"], sent.between / nominal["between"])
    assert (found == 0) == (ranks == 1)
    assert rules.collective(on._replace(network=2 * on.network), kind, kind, wire, group) <= found


def test_a_link_of_a_full_mesh_carries_a_seventh() -> None:
    """An all-to-all of two of eight 910B: one link of 28 GB/s at most, whatever the device's seven have together."""
    found = rules.collective(ON["910b-64gb"], "all_to_all", "all_to_all", 10**9, rules.Crossing(2, 2))
    assert found > 1 / 28


def test_a_gather_over_two_nodes_sends_each_piece_once_to_the_other() -> None:
    """16 ranks, 8 a node: (2 - 1) pieces cross, 15 are sent; an all-to-all sends 8 of its 15 across."""
    assert rules.sent("all_gather", 15, rules.Crossing(16, 8)) == (14, 1)
    assert rules.sent("all_to_all", 15, rules.Crossing(16, 8)) == (7, 8)


@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_passes_take_the_slots_of_the_schedule(name: str) -> None:
    chunks = 1 if SCHEDULES[name].slots is not None and "interleaved" not in name else 2
    size = ScheduleSize(4, chunks, 8)
    problems = list(SCHEDULES[name].problems(size))
    if problems:
        pytest.skip(problems[0].text)
    found = step.runs(SCHEDULES[name], size, lambda *_: 1.0, 0.0)
    assert step.length(found) == length(SCHEDULES[name], size)


def test_many_micro_batches_are_told_from_fewer() -> None:
    """The shorter runs and the slope give what the whole schedule gives, stages unequal."""
    schedule, size = SCHEDULES["1f1b"], ScheduleSize(4, 1, 53)
    seconds = (1.0, 1.3, 0.7, 1.1)
    whole = step.length(step.runs(schedule, size, lambda stage, _: seconds[stage], 0.01))
    assert step.step_length(schedule, size, lambda stage, _: seconds[stage], 0.01) == pytest.approx(whole)


# ---- plans


@pytest.fixture(scope="module")
def block() -> tuple[Result, Time]:
    return timed(device="h100-80gb", scope="attention", form="explicit", kernel="flash", seq_len=8192, sp=8)


def test_a_block_takes_at_least_its_flops_at_peak(block: tuple[Result, Time]) -> None:
    result, time = block
    flops = (result.flops.forward.executed or 0) + (result.flops.backward.executed or 0)
    assert time.total.seconds > flops / 989e12
    assert time.total.seconds == pytest.approx(time.forward.seconds + time.backward.seconds)
    assert sum(part.seconds for part in time.parts) == pytest.approx(time.total.seconds)
    assert time.total.low < time.total.seconds < time.total.high
    assert time.inside_bytes + time.between_bytes == sum(c.wire_bytes for c in result.communication.collectives)


def test_one_rank_sends_nothing_in_no_time() -> None:
    _, time = timed(device="h100-80gb", scope="attention", form="explicit", kernel="flash", seq_len=4096, sp=1)
    assert time.exposed == {}
    assert time.inside_bytes == time.between_bytes == 0


def test_no_launch_floor_and_no_host_is_faster() -> None:
    """What one persistent kernel for a block takes away: a floor for every kernel."""
    asked = {"device": "h100-80gb", "scope": "attention", "form": "explicit", "kernel": "flash", "sp": 8}
    _, each = timed("deepseek-v2-lite", **asked, seq_len=512)
    _, graphs = timed("deepseek-v2-lite", **asked, seq_len=512, graphs="on")
    _, persistent = timed("deepseek-v2-lite", **asked, seq_len=512, graphs="on", launch_floor=0)
    assert any(part.limit == "host" for part in each.parts)
    assert not any(part.limit == "host" for part in graphs.parts)
    assert persistent.total.seconds < graphs.total.seconds < each.total.seconds


STEP: dict[str, Any] = {
    "device": "h800-80gb",
    "scope": "model",
    "form": "explicit",
    "kernel": "flash",
    "profile": "megatron",
    "pp": 4,
    "ep": 8,
    "dp": 8,
    "tp": 2,
    "micro_batches": 16,
    "seq_len": 4096,
    "sp": 1,
    "sharding": "distributed",
}


@pytest.fixture(scope="module")
def plain_step() -> tuple[Result, Time]:
    return timed(**STEP)


def test_a_step_adds_up_and_is_longer_than_its_slowest_stage(plain_step: tuple[Result, Time]) -> None:
    _, time = plain_step
    assert sum(part.seconds for part in time.parts) == pytest.approx(time.total.seconds)
    assert time.total.seconds > 16 * (time.forward.seconds + time.backward.seconds)
    assert time.tokens_per_second == pytest.approx(4096 * 16 * 8 / time.total.seconds)
    assert time.tokens_per_second_per_device == pytest.approx(4096 * 16 * 8 / time.total.seconds / 64)
    assert 0 < (time.model_flops_utilisation or 0) < 0.7


OVERLAPS = ("tp_overlap", "expert_overlap", "gradient_overlap", "gather_overlap", "p2p_overlap")


@pytest.mark.parametrize("name", OVERLAPS)
def test_no_overlap_slows_a_step(name: str, plain_step: tuple[Result, Time]) -> None:
    _, hidden = timed(**STEP, **{name: "on"})
    assert hidden.total.seconds < plain_step[1].total.seconds


def test_a_training_takes_its_tokens() -> None:
    _, time = timed(**STEP, tokens=14_800_000_000_000, price="2.10")
    steps = 14.8e12 / (4096 * 16 * 8)
    assert time.days == pytest.approx(steps * time.total.seconds / 86400)
    assert time.price == pytest.approx(2.10 * 24 * 64 * (time.days or 0))


def test_every_device_says_what_it_reaches() -> None:
    from mla_cost.inputs.catalog import device_names

    for name in device_names():
        slow, middle, fast = (ceilings(device(name), end) for end in ENDS)
        assert slow.gemm <= middle.gemm <= fast.gemm <= 1
        assert slow.launch >= middle.launch >= fast.launch


# ---- on a time line


def test_the_trace_of_a_block_adds_up_to_its_time() -> None:
    asked = validated(
        PlanSettings,
        {"device": ("h100-80gb",), "scope": "attention", "form": ("laga",), "kernel": "flash", "graphs": "on"},
    )
    slices = api.trace(asked)
    (row,) = api.answer(asked).results
    assert row.time is not None
    assert sum(each.seconds for each in slices) == pytest.approx(row.time.total.seconds)
    for before, after in pairwise(slices):
        assert after.start == pytest.approx(before.start + before.seconds)


def test_the_trace_of_a_step_ends_with_it_and_is_of_the_published_format(plain_step: tuple[Result, Time]) -> None:
    """What a viewer shows of every stage ends with the step, passes hold what they are made of."""
    asked = {**STEP, "device": (STEP["device"],), "form": (STEP["form"],)}
    slices = api.trace(validated(PlanSettings, asked))
    assert max(each.start + each.seconds for each in slices) == pytest.approx(plain_step[1].total.seconds)
    passes = [each for each in slices if "micro_batch" in each.told]
    assert len(passes) == 2 * 4 * 16
    inside = sum(each.seconds for each in slices if "inside" in each.told)
    assert inside == pytest.approx(sum(each.seconds for each in passes))
    found = json.loads(trace_json(slices))
    assert list(problems_of_trace(found)) == []
    assert sum(event["ph"] == "X" for event in found["traceEvents"]) == len(slices)
    device_track = [event for event in found["traceEvents"] if event["ph"] == "X" and event["tid"] == event["pid"] == 0]
    last = max(event["ts"] + event["dur"] for event in device_track)
    assert last == pytest.approx(1e6 * plain_step[1].total.seconds)


def problems_of_trace(found: dict[str, Any]) -> Iterator[str]:
    """What breaks the rules of the "Trace Event Format" (Google, 2016), sections of the JSON Object Format.

    An object with `traceEvents`, `displayTimeUnit` ms or ns; every event has name, ph, pid and tid; complete events (X)
    ts and dur in microseconds, args an object; metadata (M) of a process or a thread its name in args. Events of one
    thread nest: two of them are apart, or one holds the other.
    """
    if not set(found) <= {"traceEvents", "displayTimeUnit", "otherData"} or found["displayTimeUnit"] not in {
        "ms",
        "ns",
    }:
        yield "the object"
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in found["traceEvents"]:
        if not {"name", "ph", "pid", "tid"} <= event.keys() or not isinstance(event["args"], dict):
            yield f"keys of {event}"
        elif event["ph"] == "M":
            if event["name"] not in {"process_name", "thread_name"} or not isinstance(event["args"]["name"], str):
                yield f"metadata {event}"
        elif event["ph"] != "X" or event["ts"] < 0 or event["dur"] < 0:
            yield f"event {event}"
        else:
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    yield from (f"events of track {track} overlap" for track, spans in tracks.items() if not nested(spans))


def nested(spans: list[tuple[float, float]]) -> bool:
    around: list[float] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1] <= start + 1e-3:  # a nanosecond, below which starts are sums of other sums
            around.pop()
        if around and end > around[-1] + 1e-3:
            return False
        around.append(end)
    return True


def test_a_lever_says_what_it_does_to_time() -> None:
    asked = {"form": ("laga",), "scope": "attention", "kernel": "flash", "seq_len": 8192, "sp": 1}
    chosen, known = validated(PlanSettings, asked), device("a100-80gb")
    (row,) = rows.rows(model("deepseek-v2-lite"), known, chosen)
    plan = what_ifs.PricedPlan(model("deepseek-v2-lite"), known, chosen, row)
    found = what_ifs.lever(plan, what_ifs.Change("sp", {"sp": 2}, 2))
    assert row.time is not None
    assert (found.seconds or 0) - (found.seconds_delta or 0) == pytest.approx(row.time.total.seconds)
    assert (found.seconds_delta or 0) < 0


# ---- the paper: LAGA over explicit, fused, four blocks, forward and backward (arXiv 2607.17644)

ONE_NODE = {4096: 1.05, 8192: 1.06, 16384: 1.04}
TWO_NODES = {4096: 1.07, 8192: 1.15, 16384: 1.24}


@pytest.fixture(scope="module")
def paper_device(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The 910B of the catalogue with the 11 GB/s a device between nodes that the paper states; nothing else differs."""
    known = Path(__file__).parents[2] / "configs" / "devices" / "910b-64gb.yaml"
    stated = re.sub(r"(?m)^inter_node_gb_s: .value: 25", "inter_node_gb_s: {value: 11", known.read_text("utf-8"))
    path = tmp_path_factory.mktemp("paper") / "910b-paper.yaml"
    path.write_text(stated.replace("name: 910b-64gb", "name: 910b-paper", 1), encoding="utf-8")
    return str(path)


def of_forms(device_file: str, seq_len: int, sp: int) -> tuple[float, float]:
    """Seconds of explicit and of LAGA."""
    asked: dict[str, Any] = {"scope": "attention", "kernel": "npu-fusion", "seq_len": seq_len, "sp": sp, "layers": 4}
    asked |= {"device": device_file, "dims": {"q_lora_rank": None}}
    explicit, laga = (timed(form=form, **asked)[1].total.seconds for form in ("explicit", "laga"))
    return explicit, laga


def test_one_node_gains_what_the_paper_prints(paper_device: str) -> None:
    for seq_len, published in ONE_NODE.items():
        explicit, laga = of_forms(paper_device, seq_len, 8)
        assert explicit / laga == pytest.approx(published, abs=0.07 if seq_len == 4096 else 0.06)


def test_two_nodes_gain_it_at_16k_and_need_tens_of_milliseconds_more_below(paper_device: str) -> None:
    """What both forms would have to take beside, the same at every length, for the ratios that are printed."""
    explicit, laga = of_forms(paper_device, 16384, 16)
    assert explicit / laga == pytest.approx(TWO_NODES[16384], abs=0.05)
    for seq_len in (4096, 8192):
        explicit, laga = of_forms(paper_device, seq_len, 16)
        assert explicit / laga > TWO_NODES[seq_len] + 0.05
        beside = (explicit - TWO_NODES[seq_len] * laga) / (TWO_NODES[seq_len] - 1)
        assert 0.03 < beside < 0.13


def test_rows_go_to_the_nodes_of_a_tokens_groups():
    """8 experts in 4 of 8 groups, 64 ranks on 8 nodes: 4 nodes and 32 ranks to hit, worked out by hand."""
    crossing = rules.Crossing(64, 8)
    free, limited = (rows_per_node(crossing, ExpertChoice(8, *groups)) for groups in ((1, 1), (4, 8)))
    assert free == pytest.approx(8 * (1 - (7 / 8) ** 8) / (64 * (1 - (63 / 64) ** 8)))
    assert limited == pytest.approx(4 * (1 - (3 / 4) ** 8) / (32 * (1 - (31 / 32) ** 8)))


def test_a_slower_network_is_stated_in_a_plan():
    asked: dict[str, Any] = {
        "scope": "attention",
        "device": "910b-64gb",
        "form": "explicit",
        "kernel": "eager",
        "sp": 16,
    }
    own, slow = (mla_cost.plan(**asked, inter_node_gb_s=rate).results[0].time for rate in (None, 11))
    assert own is not None
    assert slow is not None
    assert slow.exposed["sp"] > 1.5 * own.exposed["sp"]
