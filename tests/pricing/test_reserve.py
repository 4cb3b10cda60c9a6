"""What communicators keep from tensors: both ends of a range, against the libraries' sources and public reports."""

import json
import math
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.inputs import catalog
from mla_cost.inputs.config import ReserveItem
from mla_cost.mesh.degrees import Parallel, sends_to
from mla_cost.results import Verdict

MIB = 2**20
CUDA = [name for name in catalog.device_names() if catalog.device(name).family == "cuda"]
ROCM = [name for name in catalog.device_names() if catalog.device(name).family == "rocm"]


def buffers(device: str) -> ReserveItem:
    return next(item for item in catalog.device(device).reserve if item.per == "communicator")


def ends(device: str, ranks: int, sends: int = 0) -> tuple[float, float]:
    """MiB of one communicator."""
    item = buffers(device)
    node = catalog.device(device).devices_per_node.integer
    return item.bytes_for(ranks) / MIB, item.high_bytes_for(ranks, node, sends) / MIB


def connection(low_latency: int, wide: int, simple: int = 4 * MIB) -> tuple[int, int]:
    """Bytes of one connection on one channel: within a node, over the network, both in steps of 2 MiB."""
    step = 2 * MIB

    def up(size: int) -> int:
        return math.ceil(size / step) * step

    struct = 4096
    return up(low_latency + wide + simple + struct) + up(struct), up(low_latency + wide + simple) + up(wide + simple)


@pytest.mark.parametrize("device", CUDA)
def test_a_nccl_connection_is_what_its_source_allocates(device):
    """LL 8 lines x 512 threads x 8 steps x 16 bytes, LL128 120 x 640 x 8 x 8, SIMPLE 4 MiB."""
    high = buffers(device).high
    assert high is not None
    assert (high.channel_bytes, high.network_channel_bytes) == connection(8 * 512 * 8 * 16, 120 * 640 * 8 * 8)
    assert high.channel_bytes == 10_485_760 + 2_097_152  # the two sizes that nccl issue 1685 logs
    assert buffers(device).bytes % high.channel_bytes == 0


@pytest.mark.parametrize("device", ROCM)
def test_an_rccl_connection_is_what_its_source_allocates(device):
    """LL 8 lines x 256 threads x 8 steps x 16 bytes, LL128 28 x 256 x 8 x 8, SIMPLE 4 MiB."""
    high = buffers(device).high
    assert high is not None
    assert (high.channel_bytes, high.network_channel_bytes) == connection(8 * 256 * 8 * 16, 28 * 256 * 8 * 8)


def test_the_ends_of_a_communicator():
    """Rings of 16 channels, against rings and trees of 64 to two others, NVLS and sends on 32 channels to seven."""
    assert ends("h100-80gb", 1) == (0, 0)
    assert ends("h100-80gb", 2) == (16 * 12, 64 * 12 + 2 * 32)
    assert ends("h100-80gb", 8) == (16 * 12, 64 * 12 * 2 + 8 * 32)
    assert ends("h100-80gb", 8, sends=7) == (16 * 12, 64 * 12 * 2 + 8 * 32 + 7 * 32 * 12)
    assert ends("h100-80gb", 16, sends=15) == (16 * 12, 64 * 20 * 4 + 8 * 32 + 7 * 32 * 12 + 128)
    assert ends("a100-80gb", 4) == (16 * 12, 64 * 12 * 2)
    assert ends("a100-pcie-80gb", 2) == (2 * 12, 64 * 12)
    assert ends("910b-64gb", 8, sends=7) == (400, 400)  # 2 x HCCL_BUFFSIZE, whatever is sent


@pytest.mark.parametrize(
    ("device", "ranks", "sends", "reported"),
    [
        ("a100-80gb", 2, 0, 544),  # nccl issue 964
        ("a100-80gb", 4, 0, 688),  # the same
        ("gb200", 8, 0, 576),  # sglang pull request 30908
        ("h100-80gb", 8, 7, 3.28e9 / MIB),  # what an all-to-all added, nccl issue 1685
        ("mi300x", 2, 0, 0.65 * 1024),  # LUMI AI guide issue 111, of an MI250X
    ],
)
def test_reports_of_a_communicator_lie_between_the_ends(device, ranks, sends, reported):
    low, high = ends(device, ranks, sends)
    assert low < reported < high


@pytest.mark.parametrize(("experts", "reported"), [(False, 7e9), (True, 9.5e9)])
def test_reports_of_a_run_lie_between_the_ends(experts, reported):
    """Verl pull request 6408: what suspending NCCL frees on 8 H100 with tp 2, pp 2, dp 2."""
    degrees = Parallel(tp=2, pp=2, dp=2, ep=2 if experts else 1)
    needed, further = degrees.communicators(experts=experts), degrees.further_communicators(experts=experts)
    item, node = buffers("h100-80gb"), 8
    low = sum(item.bytes_for(ranks) for ranks in needed.values())
    high = sum(item.high_bytes_for(n, node, sends_to(axis, n)) for axis, n in (*needed.items(), *further.items()))
    assert low < reported < high


def test_who_is_sent_to():
    assert [sends_to("pp", ranks) for ranks in (1, 2, 8)] == [0, 1, 2]
    assert [sends_to(axis, 8) for axis in ("ep", "sp", "tp", "world")] == [7, 7, 0, 0]


def moonlight(**changed: Any) -> Verdict:
    """Eight ranks that fit."""
    plan: dict[str, Any] = {"model": "moonlight", "device": "h100-80gb", "scope": "model", "form": "explicit"}
    found = mla_cost.plan(**plan, ep=8, dp=8, seq_len=4096, remat="moe", **changed)["explicit"].verdict
    assert found is not None
    return found


def test_a_verdict_stands_on_the_low_end_and_tells_the_other():
    """It fits with the low end; where the high one would not fit, its reason says by how much."""
    found = moonlight()
    row = next(item for item in found.basis if item.name == "reserve: NCCL buffers")
    assert (row.bytes, row.low_bytes) == (-2 * 16 * 12 * MIB,) * 2
    high = row.high_bytes or 0
    assert high < row.bytes
    assert "short if" not in found.reason
    spare = (found.headroom_bytes or 0) - (row.bytes - high)
    at_most, beyond = moonlight(other_memory=spare), moonlight(other_memory=spare + 2 * MIB)
    assert "short if" not in at_most.reason
    assert beyond.status == "fits"
    assert beyond.reason.endswith("; 2.0 MiB short if NCCL buffers take 9.6 GiB")
    replayed = moonlight(other_memory=spare + 2 * MIB, reserve={"NCCL buffers": -high})
    assert (replayed.status, replayed.headroom_bytes) == ("oom", -2 * MIB)


def test_fit_search_and_sweep_tell_both_ends_as_a_plan_does():
    asked: dict[str, Any] = {"scope": "model", "form": "explicit", "remat": "moe", "seq_len": 4096}
    low = moonlight()
    asked["other_memory"] = (low.least_headroom_bytes or 0) + 2 * MIB
    plan = moonlight(other_memory=asked["other_memory"])
    ends = (plan.headroom_bytes, -2 * MIB)
    assert (plan.status, plan.least_headroom_bytes) == ("fits", -2 * MIB)
    one: dict[str, Any] = {"model": "moonlight", "device": "h100-80gb"}
    study = mla_cost.sweep(over={"ep": [8]}, **one, dp=8, **asked)
    assert (study[0]["headroom_bytes"], study[0]["least_headroom_bytes"]) == ends
    assert [study.to_numpy(workers=1)[name].tolist() for name in ("headroom_bytes", "least_headroom_bytes")] == [
        [end] for end in ends
    ]
    axes: dict[str, Any] = dict.fromkeys(("tp", "sp", "pp", "micro_batch"), 1) | {
        "ep": 8,
        "sharding": "distributed",
    }
    del asked["scope"]
    found = mla_cost.search(**one, devices=8, global_batch=8, **axes, **asked)
    assert (found.results[0].headroom_bytes, found.results[0].least_headroom_bytes) == ends
    reported = mla_cost.longest(**one, ep=8, dp=8, scope="model", **asked)["explicit"]
    assert reported.notes[0] == f"least sp 1: {plan.reason}"
    assert plan.reason.endswith("; 2.0 MiB short if NCCL buffers take 9.6 GiB")
    assert (reported.min_reason or "").startswith("the worst stage fits, ")
    assert reported.min_layout is not None
    replayed = mla_cost.plan(**one, **{**asked, "scope": "model"}, **reported.min_layout).results[0].verdict
    assert replayed is not None
    assert (reported.min_reason, reported.min_least_headroom_bytes) == (replayed.reason, replayed.least_headroom_bytes)


def test_an_override_has_no_ends():
    found = moonlight(reserve={"NCCL buffers": "1GiB"})
    assert next(item for item in found.basis if item.name == "reserve: NCCL buffers")[3:] == (None, None)


def test_json_has_both_ends(capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "plan",
                "--model",
                "moonlight",
                "--scope",
                "model",
                "--device",
                "h100-80gb",
                "--form",
                "explicit",
                "--dp",
                "8",
                "--format",
                "json",
            ]
        )
    rows = json.loads(capsys.readouterr().out)["results"][0]["verdict"]["basis"]
    ranged = {row["name"]: (row["low_bytes"], row["high_bytes"]) for row in rows if row["high_bytes"] is not None}
    assert list(ranged) == ["reserve: NCCL buffers"]
    low, high = ranged["reserve: NCCL buffers"]
    assert high < low < 0


@pytest.mark.parametrize("device", catalog.device_names())
def test_a_figure_that_another_repeats_is_second_hand(device):
    """No table of estimates and no quoted sheet counts as the place where a figure was read."""
    found = catalog.device(device)
    repeats = ("aiconfigurator", "llm-analysis", "quoted", "secondary")
    for key, text in found.sources.items():
        assert text.startswith("second hand") == any(word in text for word in repeats), key
    for item in found.reserve:
        assert not (item.verified and found.second_hand(item))


def test_show_says_second_hand(capsys):
    with pytest.raises(SystemExit):
        main(["show", "h100-80gb"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("memory_bandwidth"))
    assert line.split() == ["memory_bandwidth_gb_s", "second", "hand", "aic", "3,350"]
