"""What fits: both sides of every boundary against plans, brute force where it is small, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.inputs.catalog import model as catalogued
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import account_of
from mla_cost.language.fused_workspace import CALL
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import Illegal, resolve
from mla_cost.results import Verdict
from mla_cost.studies.longest import Fit
from mla_cost.studies.longest.bounds import divisors, largest, smallest
from tests import choosing


def usual(question: Mapping[str, Any]) -> dict[str, Any]:
    """Of blocks these are about, op by op; whole models have their own defaults."""
    return {} if question.get("scope") == "model" else {"scope": "attention", "kernel": "eager"}


TINY = {"hidden": 64, "heads": 8, "q_lora_rank": 32, "kv_lora_rank": 16}
TINY |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LITE: dict[str, Any] = {"scope": "model", "model": "deepseek-v2-lite", "device": "a100-80gb"}
KEYS = [
    "form",
    "scheme",
    "kernel",
    "scope",
    "device",
    "max_seq_len",
    "seq_len_step",
    "min_sp",
    "min_devices",
    "limited_by",
]


def verdict(question: dict[str, Any], found: Fit, **changes: Any) -> Verdict:
    """What a plan says of a row at other settings."""
    asked = {**usual(question), **question, "device": found.device, "form": found.form, **changes}
    asked.pop("max_seq_len", None)
    (row,) = mla_cost.plan(**asked).results
    assert row.verdict is not None
    return row.verdict


def fits(found: Verdict) -> bool:
    return found.status in {"fits", "tight"}


# ---- searches over whole numbers


@given(st.integers(1, 50), st.integers(0, 300), st.integers(0, 300))
def test_largest_and_smallest_are_those_of_a_scan(first, more, bound):
    last = first + more
    rising = [number for number in range(first, last + 1) if number <= bound]
    assert largest(lambda number: number <= bound, first, last) == (rising[-1] if rising else None)
    falling = [number for number in range(1, last + 1) if number >= bound]
    assert smallest(lambda number: number >= bound, last) == (falling[0] if falling else None)


def test_the_first_is_asked_on_its_own():
    assert largest(lambda number: number in {2, 3, 4}, 1, 9) == 4
    assert largest(lambda number: number == 1, 1, 9) == 1
    assert largest(lambda number: number == 1, 1, 1) == 1
    assert largest(lambda _: False, 1, 1) is None


def test_divisors():
    assert list(divisors(60, 12)) == [1, 2, 3, 4, 5, 6, 10, 12]


def test_needs_never_fall_with_the_length():
    """Why bisection may be used: within one program every storage is a sum of products, none of them subtracted."""
    model = catalogued("deepseek-v3")
    accounts = 0
    for form, kernel, layer, sp in product(FORMS, KERNELS, ("attention", "dense", "moe", "head"), (1, 8, 128)):
        asked = PlanSettings(model="deepseek-v3", kernel=kernel, sp=sp, seq_len=4096, scope="attention")
        try:
            point = resolve(model, form, asked, layer)
            evaluation(point)
        except Illegal:
            continue
        account = account_of(timeline(point.key))
        sizes = [allocation.size for allocation in account.timeline.allocations]
        sizes += [amount for event in account.timeline.events for _, amount in event.work]
        assert all(term > 0 for size in sizes for term in size.terms.values())
        accounts += 1
    assert accounts > 80


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_workspaces_never_fall_with_the_length(kernel):
    for heads, widths in product((1, 16, 128), ((192, 128), (192, 192), (576, 512))):
        calls = ((1, heads, heads, tokens, tokens, *widths) for tokens in range(1, 9000, 7))
        amounts = [kernel.workspace.at(dict(zip(CALL, call, strict=True))) for call in calls]
        assert all(before <= after for before, after in pairwise(amounts))


# ---- the longest sequence


QUESTIONS: dict[str, dict[str, Any]] = {
    "defaults": {"device": ["910b-64gb", "a100-80gb", "h100-80gb"]},
    "layers": {"layers": 61, "kernel": "eager-bmm"},
    "fused": {"device": ["h100-80gb"], "kernel": "mem-efficient", "sp": 16},
    "one rank": {"sp": 1, "micro_batch": 2},
    "other memory": {"other_memory": 50 * 2**30, "reserve": {"runtime context": 2**30}},
    "kv-gather": {"scheme": "kv-gather", "form": "explicit", "sp": 32},
    "zig-zag": {"zigzag": True},
    "model": {**LITE, "ep": 8, "sp": 8},
    "model tp": {**LITE, "ep": 8, "sp": 2, "tp": 4, "micro_batches": 4, "zigzag": True},
    "past exact numbers": {
        "scope": "model",
        "device": ["h200-141gb", "mi300x"],
        "pp": 61,
        "ep": 8,
        "dp": 32,
        "form": "laga",
    },
    "an implementation": {**LITE, "profile": "megatron", "form": "explicit", "ep": 8, "tp": 2, "dp": 4},
    "divided experts": {**LITE, "ep": 4, "etp": 2, "tp": 2, "dp": 4},
    "pipeline": {
        "scope": "model",
        "device": ["910b-64gb", "a100-80gb"],
        "pp": 61,
        "ep": 8,
        "dp": 32,
        "micro_batches": 61,
    },
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_both_sides_of_the_boundary(question):
    asked = {**usual(question), **question}
    found = mla_cost.longest(**asked)
    asked.pop("zigzag", None)
    if asked["scope"] == "model":
        asked.setdefault("micro_batches", asked.get("pp", 1))  # what is assumed where nobody says
    for row in found.results:
        assert row.limited_by == "memory"
        assert row.max_seq_len is not None
        assert row.max_seq_len % row.seq_len_step == 0
        inside = verdict(asked, row, seq_len=row.max_seq_len)
        beyond = verdict(asked, row, seq_len=row.max_seq_len + row.seq_len_step)
        assert (fits(inside), beyond.status) == (True, "oom")
        assert (row.required_bytes, row.usable_bytes) == (inside.required_bytes, inside.usable_bytes)
        assert row.next_required_bytes == beyond.required_bytes


@pytest.mark.parametrize(("sp", "zigzag", "step"), [(8, False, 8), (8, True, 16), (1, True, 1), (1, False, 1)])
def test_the_step(sp, zigzag, step):
    (row,) = mla_cost.longest(
        form="laga", device="910b-64gb", sp=sp, zigzag=zigzag, scope="attention", kernel="eager"
    ).results
    assert row.seq_len_step == step


@pytest.mark.parametrize(("sp", "kernel", "form"), choosing.pairwise((1, 2, 8), ("eager", "eager-bmm"), list(FORMS)))
def test_a_scan_of_every_length_finds_the_same(form, kernel, sp):
    """With all but a little memory taken, so that every legal length can be asked; one position per rank included."""
    asked: dict[str, Any] = {"dims": TINY, "kernel": kernel, "sp": sp, "device": "910b-64gb"}
    everything = verdict(asked, fit_of(asked, form), seq_len=8).usable_bytes
    assert everything is not None
    for left in (100_000, 250_000, 1_000_000):
        asked["other_memory"] = everything - left
        row = fit_of(asked, form, max_seq_len=160)
        lengths = range(max(2, sp), 161, sp)
        scanned = [length for length in lengths if fits(verdict(asked, row, seq_len=length))]
        assert row.max_seq_len == (max(scanned) if scanned else None)


def fit_of(question: dict[str, Any], form: str, **more: Any) -> Fit:
    (row,) = mla_cost.longest(**{**usual(question), **question, "form": form, **more}).results
    return row


def test_the_search_ends_where_it_is_told_to():
    row = fit_of({"device": "910b-64gb"}, "laga", max_seq_len=10_001)
    assert (row.max_seq_len, row.limited_by, row.next_required_bytes) == (10_000, "max_seq_len", None)
    assert fits(verdict({}, row, seq_len=10_000))


def test_where_not_even_the_least_length_fits():
    row = fit_of({"device": "910b-64gb", "other_memory": 60 * 2**30}, "laga")
    assert (row.max_seq_len, row.limited_by, row.min_sp, row.min_devices) == (None, "memory", None, None)
    assert row.reason.startswith("not even 8 tokens fit: ")
    assert row.next_required_bytes is not None
    assert row.usable_bytes is not None
    assert row.next_required_bytes > row.usable_bytes


# ---- the least sp and the fewest devices


@pytest.mark.parametrize(
    "question", [{}, {"layers": 4}, {"seq_len": 65536, "kernel": "eager-bmm"}, {**LITE, "dp": 8, "ep": 8}]
)
def test_the_least_sp_fits_and_no_smaller_one_does(question):
    target = question.get("seq_len", 16384)
    for row in mla_cost.longest(**{**usual(question), "device": "a100-80gb", **question}).results:
        assert row.min_sp is not None
        smaller = [sp for sp in range(1, row.min_sp) if target % sp == 0]
        assert fits(verdict(question, row, sp=row.min_sp))
        assert not [sp for sp in smaller if fits(verdict(question, row, sp=sp))]


def test_a_block_takes_the_devices_that_share_it():
    for row in mla_cost.longest(device="910b-64gb", scope="attention", kernel="eager").results:
        assert row.min_devices == row.min_sp


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"device": "910b-64gb"},
        {"seq_len": 1024, "sharding": "zero1"},
        {"seq_len": 1024, "gradient_dtype": "bf16", "remat": "full"},  # peaks in the optimizer step
    ],
)
def test_no_smaller_world_holds_the_target(more):
    """Every layout of fewer devices, by plans."""
    question = {**LITE, "seq_len": 2048, **more}
    row = fit_of(question, "explicit")
    assert row.min_devices is not None
    assert row.min_layout is not None
    layout = dict(row.min_layout)
    assert layout["sp"] * layout["pp"] * layout["dp"] == row.min_devices
    assert fits(verdict(question, row, **layout))
    uneven = {2: "Et*14|t*13L", 4: "Et*7|t*7|t*7|t*6L"}
    uneven |= {8: "Ettt|(tttt|)*3(ttt|)*3tttL", 16: "Et|(tt|)*11(t|)*3tL"}
    worlds = product((1, 2, 4, 8, 16), (1, 3, 9, 27, *uneven), range(1, row.min_devices))
    smaller = [(sp, pp, dp) for sp, pp, dp in worlds if sp * pp * dp < row.min_devices]
    for (sp, pp, dp), ep in product(smaller, (1, 2, 4, 8, 16, 32, 64)):
        if (sp * dp) % ep == 0:
            degrees = {"sp": sp, "pp": pp, "dp": dp, "ep": ep, "pipeline_layout": uneven.get(pp)}
            found = verdict(question, row, **degrees)
            assert found.status != "illegal", (degrees, found.reason)
            assert not fits(found), degrees


def test_the_model_scope_tells_a_layout_that_fits_where_the_one_asked_does_not():
    question: dict[str, Any] = {"scope": "model", "device": "h100-80gb", "seq_len": 4096}
    row = fit_of(question, "laga")
    assert row.max_seq_len is None
    assert row.min_layout is not None
    assert fits(verdict(question, row, **row.min_layout))
    fewer = {**row.min_layout, "dp": row.min_layout["dp"] - 1}
    assert not fits(verdict(question, row, **fewer)) if fewer["dp"] else True


def test_the_fewest_devices_keep_to_the_idle_ceiling_of_a_search_and_name_the_search_that_looks_wider(capsys):
    """A stage of pp waits pp - 1 of micro-batches + pp - 1 slots: a fifth from 4 (pp - 1) on, a tenth from 9."""
    asked = {**LITE, "seq_len": 4096}
    row = fit_of(asked, "explicit")
    assert row.min_layout is not None
    pp, dp = row.min_layout["pp"], row.min_layout["dp"]
    assert (pp, row.min_layout["micro_batches"]) == (3, 8)
    stricter = fit_of({**asked, "max_idle": 10}, "explicit").min_layout
    assert stricter is not None
    assert stricter["micro_batches"] == max(1, 9 * (stricter["pp"] - 1))
    assert "waits at most 20 % (--max-idle)" in row.notes[0]
    held = "tp 1, etp 1, virtual_stages 1, micro_batch 1, sharding distributed, remat none"
    assert row.notes[1] == f"fewest holds {held} as asked"
    assert row.min_devices == 6
    assert row.wider_command == (
        "mla-cost search --model deepseek-v2-lite --device a100-80gb --seq-len 4096 --form explicit "
        f"--devices 3,4,5,6 --global-batch {8 * dp}"
    )
    narrowed = ["--tp", "1,2", "--remat", "moe", "--sharding", "ddp", "--micro-batch", "1", "--format", "json"]
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(row.wider_command)[1:], *narrowed])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["devices"] == 4


def test_the_fewest_devices_say_what_they_do_to_a_step():
    """The micro-batches stated, or a global batch: 2 sequences x 4 micro-batches on dp 8 are 64 a step."""
    asked = {"micro_batch": 2, "micro_batches": 4, "sp": 1, "ep": 8, "dp": 8}
    row = fit_of({**LITE, "device": "h100-80gb", "seq_len": 4096, **asked}, "explicit")
    assert row.min_layout is not None
    dp, pp, times = (row.min_layout[name] for name in ("dp", "pp", "micro_batches"))
    assert (dp != 8, times) == (True, max(4, 4 * (pp - 1)))
    assert row.min_global_batch == 2 * times * dp
    assert f"fewest stands on an optimizer step of {2 * times * dp} sequences" in row.notes[0]
    del asked["micro_batches"]
    stated = {**LITE, "device": "h100-80gb", "seq_len": 4096, **asked, "global_batch": 64}
    found = fit_of(stated, "explicit")
    assert found.min_global_batch == 64
    assert found.min_layout is not None
    assert found.min_layout["micro_batches"] * found.min_layout["dp"] == 32
    assert found.min_layout["micro_batches"] >= found.min_layout["pp"]
    assert "as --global-batch has it" in found.notes[0]


@pytest.mark.parametrize("batch", [[], ["--global-batch", "1024"]])
def test_what_the_fewest_devices_hold_trains_with_a_full_pipeline(cli, capsys, batch):
    """The command that is reported plans it, to the byte, and it still fits with 64 times the micro-batches."""
    asked = (
        "--scope",
        "model",
        "--model",
        "kimi-k2",
        "--device",
        "910b-64gb",
        "--seq-len",
        "8192",
        "--form",
        "explicit",
    )
    code, out, _ = cli(*asked, *batch)
    assert code == 0
    (command,) = (line for line in out.splitlines() if line.startswith("mla-cost plan"))
    _, reported, _ = cli(*asked, *batch, "--format", "json")
    (row,) = json.loads(reported)["results"]
    assert row["min_command"] == command
    assert row["min_layout"]["micro_batches"] >= row["min_layout"]["pp"] > 1
    assert f"{row['min_devices']} tight" in out if row["min_status"] == "tight" else "tight" not in out
    again = replayed(capsys, command)
    assert (again["status"], again["headroom_bytes"]) == (row["min_status"], row["min_headroom_bytes"])
    few = row["min_layout"]["micro_batches"]
    assert f" --micro-batches {few} " in f"{command} "
    more = replayed(capsys, f"{command} ".replace(f" --micro-batches {few} ", f" --micro-batches {64 * few} "))
    assert fits(mla_cost.results.Verdict(**{**more, "basis": (), "levers": ()}))


def replayed(capsys: Any, command: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main([*shlex.split(command)[1:], "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["results"]
    verdict: dict[str, Any] = row["verdict"]
    return verdict


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--global-batch 7 --dp 2", "global_batch: does not split over the ranks: 7; allowed: a multiple of"),
        ("--global-batch 8 --micro-batches 4", "micro_batches: does not make the global batch: 4; allowed: 8"),
        ("--global-batch 0", "global_batch: out of range"),
        ("--global-batch 8 --scope attention", "global_batch: belongs to scope model"),
    ],
)
def test_a_global_batch_that_cannot_be_is_one_message(cli, arguments, said):
    given = arguments.split()
    code, _, err = cli(*given, *([] if "--scope" in given else ["--scope", "model"]))
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


# ---- what has no answer, and how it is said


@pytest.fixture
def cli(capsys) -> Callable[..., tuple[Any, str, str]]:
    def run(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["fit", *([] if "--scope" in arguments else ["--scope", "attention"]), *_eager(arguments), *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_a_kernel_that_does_not_train_is_told_with_what_does():
    for row in mla_cost.longest(device="910b-64gb", form="explicit", kernel="flash", scope="attention").results:
        assert (row.limited_by, row.max_seq_len, row.min_sp, row.min_devices) == ("kernel", None, None, None)
        assert "what trains it here: npu-fusion" in row.reason


def test_degrees_that_do_not_divide_leave_the_least_sp(cli):
    code, out, _ = cli("--sp", "3", "--format", "json", "--form", "laga", "--device", "910b-64gb")
    (row,) = json.loads(out)["results"]
    assert (code, row["limited_by"], row["min_sp"]) == (0, "illegal", 4)
    assert "sp" in row["reason"]


def test_the_json_has_the_fields_of_the_schema_in_order(cli):
    code, out, err = cli("--format", "json", "--device", "910b-64gb,a100-80gb")
    found = json.loads(out)
    assert (code, err, found["schema"]) == (0, "", "mla-cost/fit/1")
    assert [(row["device"], row["form"]) for row in found["results"]] == list(
        product(("910b-64gb", "a100-80gb"), ("explicit", "absorbed", "laga"))
    )
    for row in found["results"]:
        assert list(row)[: len(KEYS)] == KEYS
    assert found["inputs"]["max_seq_len"] == 16_777_216


def test_the_table_says_what_the_json_says(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = cli("--device", "910b-64gb,h100-80gb")
    rows = mla_cost.longest(device=["910b-64gb", "h100-80gb"], scope="attention", kernel="eager")
    for row in rows.results:
        cells = [row.form, row.kernel, f"{row.max_seq_len:,}", str(row.min_sp), str(row.min_devices)]
        assert cells in [line.split() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) <= 80
    assert repr(rows).split() == out.split()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "none"], "a fit needs a device"),
        (["--max-seq-len", "4"], "max_seq_len: out of range, not 4; allowed: a whole number from 8"),
        (["--max-seq-len", "many"], "--max-seq-len: must be a whole number"),
        (["--form", "explicitt"], "did you mean explicit?"),
        (["--device", "910b-64g"], "did you mean"),
        (["--tp", "2"], "tp: 2 belongs to scope model"),
        (["--pp", "2"], "pp: 2 belongs to scope model"),
        (["--format", "csv"], "allowed: table, json"),
        (["--sequence-parallel"], "ranks that share one sequence are --sp"),
        (["--kernel", "flash", "--form", "absorbed"], "kernels that take this form"),
        (["--kernel", "none"], "unknown kernel"),
        (["--seq-len", "1001", "--sp", "8"], "does not split over sp 8 x tp 1: 1001; allowed: 1008 or 1000"),
    ],
)
def test_bad_input_is_one_message(cli, arguments, said):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def _eager(arguments: tuple[str, ...]) -> list[str]:
    """The kernel of a block where the arguments name none."""
    return [] if {"--scope", "--kernel"} & {*arguments} else ["--kernel", "eager"]
