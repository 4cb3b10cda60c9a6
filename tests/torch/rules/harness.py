"""One case, two worlds: real torch under the recorder, and the rules on the abstract machine.

A case is written twice, once with torch's ops as docs/decisions/0001 writes them and once with the rules. Both run
from the same leaves, through the same layouts, to the same tail, and must leave the same storages in the same order:
the n-th allocation of one world is the n-th of the other, of the same size, freed between the same two neighbours,
saved or not. Importing this module skips the importing test module where torch is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from typing import Any, Literal

import pytest

from mla_cost.language.dims import Predicates, predicates_of
from mla_cost.language.machine import Allocation, Machine, Tensor, Timeline
from mla_cost.language.rules.elementwise import multiply

torch: Any = pytest.importorskip("torch")
torch.set_num_threads(1)  # on tensors this small, threads only wait for each other

Values = Mapping[str, int]
Order = Literal["as written", "last first", "swapped"]
ORDERS: tuple[Order, ...] = ("as written", "last first", "swapped")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WIDTHS = {"h": 13, "d_q": 11, "d_c": 8, "k": 3, "r": 4, "r_half": 2, "v": 5}


def values(**changed: int) -> dict[str, int]:
    """Base values: two sequences, three positions and two heads on each of two ranks, and widths that all differ."""
    base = {"b": 2, "s": 3, "l": 2, "P": 2, "n": 4} | WIDTHS | changed
    return base | {"n": base["P"] * base["l"], "r_half": base["r"] // 2}


# Batch 1 and 2; one position per rank, one head per rank, one rank, width-one parts, and several at once.
VALUES: tuple[dict[str, int], ...] = (
    values(),
    values(b=1),
    values(s=1),
    values(b=1, s=1),
    values(l=1),
    values(b=1, l=1),
    values(P=1),
    values(b=1, P=1),
    values(s=1, l=1),
    values(P=1, l=1),
    values(b=1, P=1, l=1),
    values(b=1, s=1, l=1),
    values(k=1, r=2, v=1),
)


def spelled(base: Values) -> str:
    """A test id: what differs from the usual values."""
    usual = values()
    return " ".join(f"{name}={base[name]}" for name in ("b", "s", "l", "P", "k", "r", "v") if base[name] != usual[name])


def each_value(*chosen: Values) -> pytest.MarkDecorator:
    """Run the test at each of these values (all of them by default)."""
    return pytest.mark.parametrize("base", chosen or VALUES, ids=lambda base: spelled(base) or "usual")


@dataclass(frozen=True)
class Operand:
    """What a case is given.

    made       an intermediate that nothing else holds, in the layout that is tried
    leaf       the block's input itself
    parameter  a weight, as written
    """

    name: str
    dims: str
    role: Literal["made", "leaf", "parameter"] = "made"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.dims.split())


def permutation(order: Order, rank: int) -> tuple[int, ...]:
    """Where each axis of a tensor lies in its storage, outermost first."""
    axes = tuple(range(rank))
    if order == "last first":
        return (axes[-1], *axes[:-1])
    return (axes[1], axes[0], *axes[2:]) if order == "swapped" and rank > 1 else axes


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(order.index(at) for at in range(len(order)))


# ---- the machine's world

Rules = Callable[..., Any]


def turned(machine: Machine, tensor: Tensor, order: Sequence[int]) -> Tensor:
    """`tensor.permute(order)`."""
    view = machine.view(tensor, tuple(tensor.axes[at] for at in order))
    back = inverse(order)

    def backward(gradients: list[Tensor | None]) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.view(gradient, tuple(gradient.axes[at] for at in back))]

    machine.attach([view], [tensor], backward)
    return view


def run_rules(case: Rules, operands: Sequence[Operand], layout: Layout, predicates: Predicates, dtype: str) -> Timeline:
    """Forward and backward of the rules, in the surround of the recorder."""
    machine = Machine(predicates, dtype)
    orders = [permutation(order, len(o.names)) for order, o in zip(layout.operands, operands, strict=True)]
    leaves = [_machine_leaf(machine, operand, order) for operand, order in zip(operands, orders, strict=True)]
    machine.op = "case"

    def function() -> list[Tensor]:
        given = [_machine_operand(machine, *args) for args in zip(operands, leaves, orders, strict=True)]
        return [turned(machine, y, permutation(layout.gradient, len(y.axes))) for y in as_list(case(machine, *given))]

    edge = _tail(machine, function())
    machine.mark_saved(edge)
    machine.timeline.forward_events = len(machine.timeline.events)
    machine.backward(edge, lambda: machine.parameter("seed", ()))
    machine.closed = True
    return machine.timeline


def _machine_leaf(machine: Machine, operand: Operand, order: Sequence[int]) -> Tensor:
    dims = [operand.names[at] for at in order]
    return machine.parameter(operand.name, dims) if operand.role == "parameter" else machine.input(operand.name, dims)


def _machine_operand(machine: Machine, operand: Operand, leaf: Tensor, order: Sequence[int]) -> Tensor:
    if operand.role == "parameter":
        return leaf
    if operand.role == "made":
        return turned(machine, multiply(machine, operand.name, leaf), inverse(order))
    return turned(machine, leaf, inverse(order))


def _tail(machine: Machine, outputs: list[Tensor]) -> Any:
    """The rest of the network: one node that makes a contiguous gradient for every output."""
    shapes = [(output.dims, output.dtype) for output in outputs]
    loss = machine.parameter("loss", ())
    machine.op = "tail"
    machine.attach([loss], outputs, lambda _: [machine.new("gradient", dims, dtype) for dims, dtype in shapes])
    return loss.edge


def as_list(result: Any) -> list[Any]:
    """One output or several, as several."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


# ---- torch's world


class Sizes:
    """Turns the names of dims into numbers: `size("s b n k+r")` is a shape, `size.n` a number."""

    def __init__(self, predicates: Predicates, base: Values) -> None:
        self._predicates = predicates
        self._base = base

    def __call__(self, dims: str) -> tuple[int, ...]:
        return tuple(self._predicates.size(name).at(self._base) for name in dims.split())

    def __getattr__(self, name: str) -> int:
        return self._predicates.size(name).at(self._base)


def run_torch(case: Any, operands: Sequence[Operand], layout: Layout, size: Sizes, dtype: str, tables: Any = ()) -> Any:
    """The recording of torch's ops."""
    from mla_cost.checks.reference.measure import record

    orders = [permutation(order, len(o.names)) for order, o in zip(layout.operands, operands, strict=True)]
    leaves = [_torch_leaf(o, order, size, dtype) for o, order in zip(operands, orders, strict=True)]
    tables = [table(size) for table in tables]

    def function(*_: Any) -> list[Any]:
        given = [_torch_operand(*args) for args in zip(operands, leaves, orders, strict=True)]
        outputs = as_list(case(size, *given, *tables))
        return [y.permute(permutation(layout.gradient, y.dim())) for y in outputs]

    roles = [operand.role for operand in operands]
    inputs = [leaf for leaf, role in zip(leaves, roles, strict=True) if role != "parameter"]
    weights = [leaf for leaf, role in zip(leaves, roles, strict=True) if role == "parameter"]
    return record(function, inputs, parameters=weights, tables=tables)


def _torch_leaf(operand: Operand, order: Sequence[int], size: Sizes, dtype: str) -> Any:
    shape = size(" ".join(operand.names[at] for at in order))
    return torch.ones(shape, dtype=DTYPES[dtype], requires_grad=True)


def _torch_operand(operand: Operand, leaf: Any, order: Sequence[int]) -> Any:
    if operand.role == "parameter":
        return leaf
    return (leaf * 0.5 if operand.role == "made" else leaf).permute(inverse(order))


@cache
def _fake_store() -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


@contextmanager
def ranks(number: int) -> Iterator[Any]:
    """Rank 0 of a process group that exchanges nothing, in this process."""
    import torch.distributed as dist

    dist.init_process_group("fake", rank=0, world_size=number, store=_fake_store())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


# ---- the comparison


@dataclass(frozen=True)
class Layout:
    """How the operands lie in storage and how the gradients arrive."""

    operands: tuple[Order, ...]
    gradient: Order


def layouts(operands: Sequence[Operand]) -> Iterator[Layout]:
    """Nine layouts in which any two operands (weights aside) or gradients meet in every pair of orders."""
    turnable = [operand.role != "parameter" and len(operand.names) > 1 for operand in operands]
    for first, second in product(range(3), repeat=2):
        columns = [first, second, first + second, first + 2 * second]
        chosen = [ORDERS[columns.pop(0) % 3] if turns else ORDERS[0] for turns in turnable]
        yield Layout(tuple(chosen), ORDERS[columns.pop(0) % 3])


def lines(events: Sequence[tuple[str, str, int, int]]) -> list[str]:
    """Events as text: `forward +24 #3`. Frees between two allocations are in order of number."""
    runs = groupby(events, key=lambda event: event[:2])
    ordered = [e for key, run in runs for e in (sorted(run, key=lambda e: e[2]) if key[1] == "-" else run)]
    return [f"{phase} {sign}{size} #{number}" for phase, sign, number, size in ordered]


def events_of_rules(timeline: Timeline, base: Values) -> list[str]:
    """Allocations and frees of the machine, evaluated. What torch does not show (size zero) has no number."""
    numbers = _numbers(timeline, base)
    signs = {"alloc": "+", "free": "-"}
    shown = [(event, event.allocation) for event in timeline.events if event.allocation is not None]
    return lines(
        [
            (event.phase, signs[event.what], numbers[allocation.number], allocation.size.at(base))
            for event, allocation in shown
            if allocation.number in numbers
        ]
    )


def _numbers(timeline: Timeline, base: Values) -> dict[int, int]:
    shown = [allocation.number for allocation in timeline.allocations if allocation.size.at(base)]
    return {number: at for at, number in enumerate(shown)}


def events_of_torch(recording: Any) -> list[str]:
    """Allocations and frees that the recorder saw."""
    signs = {"alloc": "+", "free": "-"}
    return lines([(e.phase, signs[e.kind], e.storage, e.bytes) for e in recording.events])


def saved_by_rules(timeline: Timeline, base: Values) -> list[tuple[int, int]]:
    """Number and bytes of each storage kept for backward."""
    numbers = _numbers(timeline, base)
    kept: list[Allocation] = [allocation for allocation in timeline.allocations if allocation.saved]
    return [(numbers[a.number], a.size.at(base)) for a in kept if a.number in numbers]


def saved_by_torch(recording: Any) -> list[tuple[int, int]]:
    """Number and bytes of each storage packed for backward."""
    return sorted((storage.serial, storage.bytes) for storage in recording.saved)


def check(
    base: Values,
    operands: Sequence[Operand],
    torch_case: Callable[..., Any],
    rules_case: Rules,
    *,
    dtype: str = "bf16",
    heads_divided: bool = True,
    tables: Sequence[Callable[[Sizes], Any]] = (),
    tried: Callable[[Sequence[Operand]], Iterator[Layout]] = layouts,
) -> None:
    """Assert that both worlds leave the same storages, in every layout of the operands and of the gradients.

    torch_case(size, *operands, *tables) and rules_case(machine, *operands) return one output or several.
    """
    predicates = predicates_of(base, heads_divided)
    size = Sizes(predicates, base)
    for layout in tried(operands):
        theirs = run_torch(torch_case, operands, layout, size, dtype, tables)
        ours = run_rules(rules_case, operands, layout, predicates, dtype)
        assert_same(ours, theirs, base, layout)


def assert_same(ours: Timeline, theirs: Any, base: Values, reported: object = "") -> None:
    """Assert that a timeline and a recording have the same storages, events, saves and collectives."""
    same = events_of_rules(ours, base) == events_of_torch(theirs)
    same = same and saved_by_rules(ours, base) == saved_by_torch(theirs)
    if not same:  # telling the story takes longer than the comparison
        story = f"{reported}\nrules: {_story_of_rules(ours, base)}\ntorch: {_story_of_torch(theirs)}"
        assert events_of_rules(ours, base) == events_of_torch(theirs), story
        assert saved_by_rules(ours, base) == saved_by_torch(theirs), story
    check_collectives(ours, theirs, base)


def check_collectives(ours: Timeline, theirs: Any, base: Values) -> None:
    """Assert that both worlds called the same collectives with the same payload."""
    counted = [(c.kind, c.phase, c.payload.at(base)) for c in ours.collectives]
    called = [(c.kind, c.phase, c.payload_bytes) for c in theirs.collectives]
    assert counted == called


def _story_of_rules(timeline: Timeline, base: Values) -> str:
    numbers = _numbers(timeline, base)
    return "; ".join(
        f"#{numbers[a.number]} {a.label} [{' '.join(a.dims)}] {a.size.at(base)}"
        for a in timeline.allocations
        if a.number in numbers
    )


def _story_of_torch(recording: Any) -> str:
    return "; ".join(f"#{s.serial} {s}" for s in recording.storages)
