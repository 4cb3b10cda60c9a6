"""`validate` sets the model's prediction against the torch reference executor, cell by cell. It needs torch.

A residual is a fault to name, never a tolerance: how a disagreement is settled is in docs/validation.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from mla_cost.errors import InputError, install

if TYPE_CHECKING:
    from mla_cost.checks.validation.report import CheckRow, Report

Size = Literal["quick", "default", "full"]
SIZES: tuple[Size, ...] = ("quick", "default", "full")
RANKS = {"quick": 4, "default": 8, "full": 8}  # gloo processes where the caller does not say
ALLOWED_RANKS = (0, 1, 2, 4, 8)
INSTALL = f"validate runs torch, which is not installed: {install('reference')}"
LEFT_OUT = (
    "real allocator: fused norms and fused attention, since a stand-in's inside is not a kernel's",
    "real allocator: bf16, whose products bring workspaces of their own",
    "stacks of blocks on fake tensors: the timeline, which the model repeats in closed form",
)
Cell = TypeVar("Cell")
Watch = Callable[[str, int], None]  # a stage and how many of its cells are still to come


def validate(
    size: Size = "default", ranks: int | None = None, records: Path | None = None, watch: Watch | None = None
) -> Report:
    """Compare model and executor on a grid, or with `records` on what devices measured.

    ranks: gloo processes to start, 0 for none; they import the caller's script, which therefore calls this under
    `if __name__ == "__main__":`. watch: called before every cell.

    Raises:
        InputError: torch is missing, ranks is not among ALLOWED_RANKS, or a record cannot be read.

    """
    if find_spec("torch") is None:
        raise InputError(INSTALL)
    if ranks is not None and ranks not in ALLOWED_RANKS:
        allowed = ", ".join(map(str, ALLOWED_RANKS))
        raise InputError("must be a number of processes", field="--ranks", value=ranks, allowed=allowed)
    watch = watch or (lambda _stage, _left: None)
    if records is not None:
        return _records(records)
    return _grid(size, RANKS[size] if ranks is None else ranks, watch)


def _records(file: Path) -> Report:
    from mla_cost.checks.validation.device import check_records
    from mla_cost.checks.validation.report import Report

    return Report(tuple(check_records(file)))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """One thread, since on tensors this small threads wait for each other; and our own traceback.

    Every process group that torch makes wraps the hook that prints tracebacks, and nothing unwraps it.
    """
    import torch

    threads, hook = torch.get_num_threads(), sys.excepthook
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        sys.excepthook = hook


def _grid(size: Size, ranks: int, watch: Watch) -> Report:
    from mla_cost.checks.validation import allocator, cells, fake, layers, pipelines
    from mla_cost.checks.validation.ranks import check_ranks
    from mla_cost.checks.validation.report import Report

    def each(stage: str, check: Callable[[Cell], Iterable[CheckRow]], specs: Sequence[Cell]) -> Iterator[CheckRow]:
        for done, spec in enumerate(specs):
            watch(stage, len(specs) - done)
            yield from check(spec)

    stages: dict[str, Callable[[str], Iterable[CheckRow]]] = {
        "refusals": lambda _: fake.check_refusals(),
        "fake tensors": lambda stage: each(stage, fake.check_cell, cells.fake_cells(size)),
        "layers": lambda stage: each(stage, layers.check_layer, layers.layer_cells(size)),
        "pipelines": lambda stage: each(stage, pipelines.check_pipeline, pipelines.pipeline_cells(size)),
        "real allocator": lambda stage: each(stage, allocator.check_allocator, cells.allocator_cells(size)),
        "real ranks": lambda _: check_ranks(cells.rank_cells(size, ranks)) if ranks else (),
    }
    rows: list[CheckRow] = []
    seconds: dict[str, float] = {}
    with _undisturbed():
        for stage, run in stages.items():
            start = time.perf_counter()
            watch(stage, 0)
            rows += run(stage)
            seconds[stage] = time.perf_counter() - start
    return Report(tuple(rows), seconds, LEFT_OUT if ranks else (*LEFT_OUT, "real ranks: none were asked for"))
