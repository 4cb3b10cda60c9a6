"""Out-of-memory errors of torch beside plans: sizes worked out by hand, parts that add up, advice that is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost import api
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs.command import settings_of
from mla_cost.inputs.oom_text import read, segment
from mla_cost.inputs.settings import PlanSettings
from mla_cost.studies.oom import Postmortem, examine

GIB, MIB = 2**30, 2**20
NEW = (
    "torch.OutOfMemoryError: {kind} out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the "
    "allocated memory 72.50 GiB is allocated by PyTorch, and 3.90 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
BRACKETS = (
    "RuntimeError: NPU out of memory. Tried to allocate 138.00 MiB (NPU 0; 60.97 GiB total capacity; 55.00 GiB "
    "already allocated; 55.00 GiB current active; 295.52 MiB free; 58.50 GiB reserved in total "
    "by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
)
OLD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.10 GiB already allocated; "
    "1.10 GiB free; 74.00 GiB reserved in total by PyTorch)"
)


def near(amount: int, gib: float) -> bool:
    return abs(amount - gib * GIB) <= 0.005 * GIB


def test_every_form_of_the_message_is_read() -> None:
    it = read("noise\n" + NEW.format(kind="HIP", tried="2.25 GiB"))
    assert (it.family, it.tried) == ("rocm", 9 * GIB // 4)
    assert near(it.outside, 79.10 - 1.10 - 72.50 - 3.90)
    npu = read(BRACKETS)
    assert (npu.family, npu.tried) == ("ascend", 138 * MIB)
    assert near(npu.unallocated, 58.50 - 55.00)
    assert near(npu.outside, 60.97 - 58.50 - 295.52 / 1024)
    old = read(OLD)
    assert near(old.unallocated, 3.90)
    typo = NEW.format(kind="CUDA", tried="20.00 MiB").replace("total capacity", "total capacty")  # of torch 2.1
    assert near(read(typo).total, 79.10)
    twice = OLD + "\n" + NEW.format(kind="CUDA", tried="3.00 GiB")
    assert read(twice).tried == 3 * GIB  # the last one
    for text in ("all is well", "CUDA out of memory. Tried to allocate 2.00 GiB"):
        with pytest.raises(InputError, match=r"out-of-memory error|does not say"):
            read(text)


def test_a_size_stands_for_the_tensor_or_for_its_segment() -> None:
    assert [segment(size) for size in (1, MIB, MIB + 1, 10 * MIB, 10 * MIB + 1)] == [
        2 * MIB, 2 * MIB, 20 * MIB, 10 * MIB, 12 * MIB,
    ]  # fmt: skip
    it = read(NEW.format(kind="CUDA", tried="2.25 GiB"))
    assert it.asked_for(9 * GIB // 4)
    assert it.asked_for(9 * GIB // 4 - MIB)  # its segment is 2.25 GiB
    assert not it.asked_for(9 * GIB // 4 + 6 * MIB)


MOONLIGHT = mla_cost.plan_file("moonlight-8-h100") | {"form": ("explicit",)}


def found(tried: str) -> Postmortem:
    return examine(read(NEW.format(kind="CUDA", tried=tried)), PlanSettings(**MOONLIGHT))


def test_the_tensors_of_that_size_are_named_with_their_moment() -> None:
    it = found("5.00 GiB")
    # fp32 logits of 8,192 tokens over 163,840 words
    assert {each.bytes for each in it.asked} == {4 * 8192 * 163840} == {5 * GIB}
    assert [(each.where, each.phase) for each in it.asked] == [
        ("stage 0, layer head", phase) for phase in ("forward", "forward", "backward", "backward")
    ]
    assert sum(amount for _, amount in it.parts) == it.error.total
    assert it.planned == mla_cost.plan(**MOONLIGHT).results[0].memory.allocated_peak_bytes
    assert it.uncounted == 0


def test_where_no_tensor_has_the_size_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    it = found("3.33 GiB")
    assert it.asked == ()
    assert it.near[0].bytes == 2 * 8192 * 163840  # bf16 logits
    log = tmp_path / "train.log"
    log.write_text(NEW.format(kind="CUDA", tried="3.33 GiB"))
    with pytest.raises(SystemExit):
        main(["oom", "moonlight-8-h100", "--form", "explicit", "--log", str(log)])
    told = capsys.readouterr().out
    assert "No tensor of the plan has 3.33 GiB; the nearest in size:" in told
    assert "3.90 GiB" in told
    assert "total                                                               79.10 GiB" in told


def test_the_change_would_have_fitted() -> None:
    """On a card that leaves torch what this one did the plan fits with the change, and does not without it."""
    it = found("5.00 GiB")
    assert it.change is not None
    assert it.command is not None
    assert it.calibrated is not None
    after = api.answer(it.calibrated).results[0].verdict
    assert after is not None
    assert after.status in {"fits", "tight"}
    room = it.error.total - it.error.outside - it.error.unallocated
    assert after.usable_bytes == min(room, after.usable_bytes or 0)
    changed = settings_of(it.command)
    same: dict[str, Any] = {name: getattr(it.calibrated, name) for name in ("sp", "dp", "micro_batches", "remat", "pp")}
    assert same == {name: getattr(changed, name) for name in same}
    before = it.calibrated.model_copy(
        update={name: MOONLIGHT.get(name, getattr(PlanSettings(), name)) for name in same}
    )
    verdict = api.answer(before.model_copy(update={"sp": 1})).results[0].verdict
    assert verdict is not None
    assert verdict.status == "oom"


def test_a_run_that_needed_more_than_planned_is_told_so() -> None:
    asked: Any = {"scope": "attention", "form": ("laga",), "device": ("h100-80gb",), "seq_len": 16384, "sp": 8}
    it = examine(read(NEW.format(kind="CUDA", tried="5.00 GiB")), PlanSettings(**asked))
    assert it.uncounted == it.error.allocated + it.error.tried - it.planned > 0
    with pytest.raises(InputError, match="the error is of ascend, and h100-80gb is of cuda"):
        examine(read(BRACKETS), PlanSettings(**asked))
