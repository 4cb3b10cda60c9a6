"""`--layers N` has a closed form; here the N blocks are really walked, event by event, and run by the executor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mla_cost
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Event
from mla_cost.pricing.block import figures
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import Illegal
from tests.choosing import EXHAUSTIVE
from tests.language.test_laws import FAMILIES, questions

with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


class Walked(NamedTuple):
    """What a literal walk finds. left: bytes alive at its end, without the gradients of parameters."""

    peak: int
    left: int
    gradients: int


class Stack:
    """Blocks in a row, storage by storage: a block's output is the next one's input, a gradient of an input the one
    that the block before is handed.
    """

    def __init__(self, blocks: list[Evaluation], kinds: frozenset[str] | None) -> None:
        self.blocks = blocks
        self.kinds = kinds
        self.live: dict[tuple[int, int], int] = {}
        self.names: dict[tuple[int, int], tuple[int, int]] = {}  # a second name -> the storage
        self.sum = (-1, -1)
        self.peak = 0

    def walk(self) -> Walked:
        for block in range(len(self.blocks)):
            events = self.events(block)
            before = self.forward_of(block)
            for event in events[:before]:
                self.happens(block, event)
            if block + 1 < len(self.blocks):
                self.names[block + 1, 0] = (block, self.output(block))
        for block in reversed(range(len(self.blocks))):
            for event in self.events(block)[self.forward_of(block) :]:
                self.happens(block, event)
            if block:
                (gradient,) = [key for key in self.live if key[0] == block and not self.of_parameter(key)]
                self.names[block - 1, self.handed(block - 1)] = gradient
        gradients = sum(size for key, size in self.live.items() if self.of_parameter(key))
        return Walked(self.peak, sum(self.live.values()) - gradients, gradients)

    def events(self, block: int) -> list[Event]:
        return self.blocks[block].account.timeline.events

    def forward_of(self, block: int) -> int:
        return self.blocks[block].account.timeline.forward_events

    def output(self, block: int) -> int:
        """The block's output is the first that goes when forward is over."""
        event = self.events(block)[self.forward_of(block)]
        assert event.what == "free"
        assert event.allocation is not None
        assert event.allocation.label == "y"
        return event.allocation.number

    def handed(self, block: int) -> int:
        """The gradient that backward begins with."""
        event = next(event for event in self.events(block)[self.forward_of(block) :] if event.what == "alloc")
        assert event.allocation is not None
        assert event.allocation.label == "gradient of output"
        return event.allocation.number

    def of_parameter(self, key: tuple[int, int]) -> bool:
        return self.blocks[key[0]].account.timeline.allocations[key[1]].kind == "parameter_gradient"

    def happens(self, block: int, event: Event) -> None:
        if event.allocation is None:
            work = sum(size.at(self.blocks[block].values) for kind, size in event.work if kind in (self.kinds or ()))
            self.peak = max(self.peak, self.counted() + work)
            return
        key = (block, event.allocation.number)
        if event.merged and self.kinds is not None:
            self.added_in_place(key, event)
            return
        last = block + 1 == len(self.blocks)
        if event.what == "alloc":
            if key not in self.names:  # else it is there already
                self.live[key] = self.blocks[block].bytes_of(event.allocation.number)
            self.peak = max(self.peak, self.counted())
        elif last or event is not self.events(block)[self.forward_of(block)]:
            del self.live[self.names.get(key, key)]
        # else the next block still holds this block's output, and lets go of it under its own name

    def added_in_place(self, key: tuple[int, int], event: Event) -> None:
        """An allocator sees one storage where a dispatcher sees a sum come and a summand go: both are its names."""
        if event.what == "alloc":
            self.sum = key
        else:
            self.names[self.sum] = self.names.get(key, key)

    def counted(self) -> int:
        """Live bytes: a dispatcher's view leaves gradients of parameters out."""
        return sum(size for key, size in self.live.items() if self.kinds is not None or not self.of_parameter(key))


@settings(max_examples=80 if EXHAUSTIVE else 25)
@given(questions(largest=6), st.sampled_from(FAMILIES), st.integers(2, 6))
def test_the_closed_form_is_the_walk(question, family, layers):
    model, form, asked = question
    from mla_cost.pricing.resolve import resolve

    try:
        point = resolve(model, form, asked)
        reported = figures(point, family, layers)
    except Illegal:
        assume(False)
    inner = evaluation(point._replace(key=point.key._replace(input_held=False)))
    blocks = [reported.at] + [inner] * (layers - 1)
    seen = Stack(blocks, None).walk()
    allocated = Stack(blocks, reported.kinds).walk()
    own = 2 * reported.at.bytes_of(0)  # the first block's input and its gradient
    assert seen.peak == reported.peak_bytes
    assert allocated.peak + layers * reported.at.parameter_bytes() == reported.allocated_peak_bytes
    assert seen.left == allocated.left == own
    assert allocated.gradients == layers * reported.at.gradient_bytes() == reported.gradient_bytes
    assert reported.saved_bytes == layers * reported.at.saved_bytes()


@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_what_grows_with_layers_and_what_does_not(form):
    """Saved bytes grow with every block, the workspace of the softmax does not."""
    one, two, nine = (
        mla_cost.plan(form=form, device="a100-80gb", layers=layers, scope="attention", kernel="eager").results[0].memory
        for layers in (1, 2, 9)
    )
    assert one.saved_bytes is not None
    assert (two.saved_bytes, nine.saved_bytes) == (2 * one.saved_bytes, 9 * one.saved_bytes)
    assert nine.parameter_bytes == 9 * (one.parameter_bytes or 0)
    assert nine.kernel_workspace_bytes == one.kernel_workspace_bytes
    assert one.peak_bytes is not None
    assert two.peak_bytes is not None
    assert nine.peak_bytes is not None
    assert (nine.peak_bytes - two.peak_bytes) == 7 * (two.peak_bytes - one.peak_bytes)


def test_the_saved_copy_grows_with_layers():
    """Absorbed against explicit: the S x S copy is saved in each of nine blocks, 2 x 16384^2 x 16 bytes each."""
    plan = mla_cost.plan(device=None, layers=9, scope="attention", kernel="eager")
    saved = {row.form: row.memory.saved_bytes or 0 for row in plan.results}
    assert 9 * 2 * 16384**2 * 16 < saved["absorbed"] - saved["explicit"] < 10 * 2 * 16384**2 * 16


CELLS: list[dict[str, Any]] = [
    {"form": form, "sp": sp, "layers": layers, "kernel": kernel}
    for form in ("explicit", "absorbed", "laga")
    for sp, layers, kernel in ((1, 2, "eager"), (4, 3, "eager"), (8, 2, "eager-bmm"), (2, 5, "mem-efficient"))
]


@with_torch
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_closed_form_is_what_the_executor_runs(cell):
    from mla_cost.checks.reference import DIMS, Spec, run_fake

    tiny = DIMS["tiny"]
    dims = {
        "hidden": tiny.hidden,
        "heads": tiny.heads,
        "q_lora_rank": tiny.q_lora_rank,
        "kv_lora_rank": tiny.kv_lora_rank,
        "qk_nope_head_dim": tiny.nope,
        "qk_rope_head_dim": tiny.rope,
        "v_head_dim": tiny.value,
    }
    ran = run_fake(Spec(dims=tiny, seq_len=32, **cell))
    memory = mla_cost.plan(device=None, scope="attention", dims=dims, seq_len=32, **cell).results[0].memory
    assert memory.saved_bytes == ran.saved_bytes
    assert memory.peak_bytes == ran.peak_bytes
    assert memory.parameter_gradient_total_bytes == ran.parameter_gradient_bytes


@with_torch
@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_three_blocks_of_deepseek_v3(form):
    from mla_cost.checks.reference import Spec, run_fake

    ran = run_fake(Spec(form=form, layers=3))
    memory = mla_cost.plan(device=None, form=form, layers=3, scope="attention").results[0].memory
    assert (memory.saved_bytes, memory.peak_bytes) == (ran.saved_bytes, ran.peak_bytes)
