"""A table of passes in a user's file: what it prices, and what is wrong with it, by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.errors import InputError
from mla_cost.inputs import schedules
from mla_cost.language.schedule import ScheduleRow, ScheduleSize, table
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.schedule import idle, passes_in_order, worst_passes

TWO = [  # 1F1B of two stages and two micro-batches, typed: stage, slot, kind, chunk, micro-batch
    *([0, 0, "forward", 0, 0], [0, 1, "forward", 0, 1], [0, 3, "backward", 0, 0], [0, 5, "backward", 0, 1]),
    *([1, 1, "forward", 0, 0], [1, 2, "backward", 0, 0], [1, 3, "forward", 0, 1], [1, 4, "backward", 0, 1]),
]
PLAN: dict[str, Any] = {"model": "deepseek-v2-lite", "device": "h100-80gb", "form": "explicit", "seq_len": 4096}


def written(path: Path, rows: list[Any], name: str = "mine.yaml") -> str:
    lines = "".join(f"  - [{', '.join(map(str, row))}]\n" if isinstance(row, list) else f"  - {row}\n" for row in rows)
    (path / name).write_text(f"rows:\n{lines}")
    return str(path / name)


def listed(rows: list[ScheduleRow]) -> list[Any]:
    return [[row.stage, row.slot, row.kind.value, row.chunk, row.micro_batch] for row in rows]


@pytest.mark.parametrize(
    ("name", "size"),
    [("1f1b", ScheduleSize(3, 1, 5)), ("gpipe", ScheduleSize(4, 1, 6)), ("interleaved", ScheduleSize(3, 2, 6))],
)
def test_a_schedule_written_out_as_its_table_is_that_schedule(tmp_path: Path, name: str, size: ScheduleSize) -> None:
    declared = SCHEDULES[name]
    found = schedules.find(written(tmp_path, sorted(listed(table(declared, size)))))
    parallel = Parallel(
        pp=size.stages, virtual_stages=size.chunks, num_micro_batches=size.num_micro_batches, schedule=found
    )
    known = parallel._replace(schedule=declared)
    for stage in range(size.stages):
        assert list(passes_in_order(parallel, stage)) == list(passes_in_order(known, stage))
        assert set(worst_passes(parallel, stage)) == set(worst_passes(known, stage))
    assert idle(parallel) == idle(known)


def test_a_table_is_priced_as_the_schedule_that_it_is(tmp_path: Path) -> None:
    """GPipe's table of three stages and six micro-batches, in plan, sweep and search."""
    file = written(tmp_path, listed(table(SCHEDULES["gpipe"], ScheduleSize(3, 1, 6))))
    degrees: dict[str, Any] = {"pp": 3, "micro_batches": 6, "dp": 4}
    mine, gpipe, usual = (mla_cost.plan(**PLAN, **degrees, schedule=name).results[0] for name in (file, "gpipe", None))
    assert (mine.memory, mine.communication, mine.flops) == (gpipe.memory, gpipe.communication, gpipe.flops)
    assert (mine.memory.allocated_peak_bytes or 0) > (usual.memory.allocated_peak_bytes or 0)
    assert f"schedule {file}: a stage waits in 4 of 16 slots (25.0 %), were all passes alike" in mine.notes
    study = mla_cost.sweep(**PLAN, **degrees, over={"schedule": [file, "gpipe", "1f1b"]})
    assert [study[at]["required_bytes"] for at in range(3)] == [
        row.verdict.required_bytes for row in (mine, gpipe, usual) if row.verdict
    ]
    asked: dict[str, Any] = {"devices": 12, "global_batch": 24, "pp": 3, "tp": 1, "sp": 1, "ep": 1, "micro_batch": 1}
    asked |= {"max_idle": 50, "remat": ["none", "full"], "sharding": ["distributed", "ddp"]}
    one, other = (
        mla_cost.search("deepseek-v2-lite", "h200-141gb", **asked, form="explicit", seq_len=2048, schedule=name)
        for name in (file, "gpipe")
    )
    assert one.best is not None
    assert one.best.micro_batches == 6
    assert [row._replace(command="") for row in one.results] == [row._replace(command="") for row in other.results]
    assert f"--schedule {file}" in one.best.command


def test_a_table_is_of_one_size_and_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each refusal names the number to take, and taking them all gives a plan."""
    file, reported = written(tmp_path, TWO), []
    given: dict[str, Any] = {}
    for _ in range(3):
        row = mla_cost.plan(**PLAN, **given, schedule=file).results[0]
        if row.verdict is None or row.verdict.status != "illegal":
            break
        reported.append(row.verdict.reason)
        field, number = re.findall(r"change (\w+) to (\d+)", row.verdict.reason)[-1]
        given[field] = int(number)
    assert given == {"pp": 2, "micro_batches": 2}
    assert reported[0].startswith(f"schedule {file} is a table of 2 stages, and pp is 1; change pp to 2")
    flags = ["--model", "deepseek-v2-lite", "--device", "h100-80gb", "--form", "explicit", "--seq-len", "4096"]
    with pytest.raises(SystemExit) as ending:
        main(["plan", *flags, "--schedule", file])
    assert ending.value.code == 2
    assert "change pp to 2" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ending:
        main(["plan", *flags, "--schedule", file, "--pp", "2", "--micro-batches", "2"])
    assert ending.value.code == 0


def changed(number: int, row: Any) -> list[Any]:
    """TWO with another row of that number, from 1; without it where the row is None."""
    return [each for at, each in enumerate([*TWO[: number - 1], row, *TWO[number:]]) if each is not None]


FIRST = "forward of micro-batch 0 through chunk 0 on stage"
BACK = "backward of micro-batch 0 through chunk 0 on stage"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changed(3, None), f"rows: no row runs the {BACK} 0; allowed: every pass of every stage"),
        (changed(2, [0, 9, "forward", 0, 0]), f"row 2: {FIRST} 0 is row 1 already"),
        (changed(2, [0, 0, "forward", 0, 1]), "row 2: stage 0 runs row 1 in slot 0: one pass, one slot"),
        (
            changed(5, [1, 0, "forward", 0, 0]),
            f"row 5: slot 0 of the {FIRST} 1 comes before the {FIRST} 0 is done, which is row 1 in slot 0; give it a ",
        ),
        (
            changed(3, [0, 2, "backward", 0, 0]),
            f"row 3: slot 2 of the {BACK} 0 comes before the {BACK} 1 is done, which is row 6 in slot 2",
        ),
        (
            changed(1, [0, 0, "foward", 0, 0]),
            "row 1: kind: is no kind of pass: 'foward'; allowed: forward, backward; did you mean forward",
        ),
        (changed(1, [0, 0, "backward-weight", 0, 0]), "row 1: kind: backward-weight is not priced: what a stage keeps"),
        (changed(1, [0, -1, "forward", 0, 0]), "row 1: slot: must be a whole number, not -1; allowed: 0 to"),
        (changed(1, [0, 0, "forward", 0, "true"]), "row 1: micro-batch: must be a whole number, not true"),
        (changed(1, [0, 0, "forward", 0]), "row 1: must be a list of five, not of 4; allowed: [stage, slot, kind,"),
        (changed(1, "forward"), "row 1: must be a list of five, not 'forward'"),
        ([], "rows: must be a list of passes"),
    ],
)
def test_what_is_wrong_is_told_by_row(tmp_path: Path, rows: list[Any], said: str) -> None:
    file = written(tmp_path, rows)
    with pytest.raises(InputError) as error:
        mla_cost.plan(**PLAN, pp=2, micro_batches=2, schedule=file)
    assert f"{file}: {said}" in str(error.value)


def test_a_deadlock_names_both_rows(tmp_path: Path) -> None:
    """Stage 0 wants the backward of 0 before it sends 1; stage 1 wants the forward of 1 before that backward."""
    rows = [
        *([0, 0, "forward", 0, 0], [0, 3, "backward", 0, 0], [0, 4, "forward", 0, 1], [0, 7, "backward", 0, 1]),
        *([1, 1, "forward", 0, 0], [1, 2, "forward", 0, 1], [1, 5, "backward", 0, 0], [1, 6, "backward", 0, 1]),
    ]
    with pytest.raises(InputError) as error:
        schedules.find(written(tmp_path, rows))
    assert str(error.value).endswith(
        "row 2: deadlock: the backward of micro-batch 0 through chunk 0 on stage 0 waits for row 7, the backward of "
        "micro-batch 0 through chunk 0 on stage 1, which stands behind row 6, the forward of micro-batch 1 through "
        "chunk 0 on stage 1, waiting too"
    )


def test_a_backward_before_its_own_forward_is_a_deadlock(tmp_path: Path) -> None:
    rows = [[0, 0, "backward", 0, 0], [0, 1, "forward", 0, 0]]
    with pytest.raises(InputError, match=r"row 1: deadlock: the backward of .* waits for row 2, the forward of"):
        schedules.find(written(tmp_path, rows))


def test_unknown_names_and_files() -> None:
    known = "gpipe, interleaved, 1f1b, or the path of a .yaml file"
    wrong = {"gpip": f"unknown schedule 'gpip'; allowed: {known}; did you mean gpipe?", "absent.yaml": "absent.yaml: "}
    for name, said in wrong.items():
        with pytest.raises(InputError) as error:
            mla_cost.plan(**PLAN, schedule=name)
        assert said in str(error.value)
        with pytest.raises(InputError) as error:
            mla_cost.sweep(**PLAN, over={"schedule": [name, "1f1b"]})
        assert said in str(error.value)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    import os

    file = written(tmp_path, TWO)
    before = schedules.find(file)
    assert schedules.find(file) is before
    written(tmp_path, listed(table(SCHEDULES["gpipe"], ScheduleSize(2, 1, 2))))
    os.utime(file, ns=(1, 1))
    assert [turn.kind.value for turn in schedules.find(file).word(ScheduleSize(2, 1, 2), 0)] == [  # type: ignore[union-attr]
        *("forward", "forward", "backward", "backward")
    ]


def test_the_table_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/parallelism.md").read_text()
    (block,) = re.findall(r"```yaml\n(rows:.*?)```", page, re.DOTALL)
    (tmp_path / "docs.yaml").write_text(block)
    found = mla_cost.plan(**PLAN, pp=2, micro_batches=1, schedule=str(tmp_path / "docs.yaml")).results[0]
    usual = mla_cost.plan(**PLAN, pp=2, micro_batches=1).results[0]
    assert found.memory == usual.memory
