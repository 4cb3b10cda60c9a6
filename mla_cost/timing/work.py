"""What a program runs, ready to be timed: every distinct amount once, memory-bound calls of a class summed.

The amounts are polynomials; whoever asks puts numbers or arrays in and hands them to `timed`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Collective, Timeline, once_per_timeline
from mla_cost.language.numbers import ceil_divide, is_array, maximum, minimum
from mla_cost.language.polynomial import Polynomial, total
from mla_cost.language.timeline import KernelRun
from mla_cost.timing import rules
from mla_cost.timing.ceilings import Ceilings
from mla_cost.timing.placement import Placement

MULTIPLIES: Final = frozenset({"gemm", "grouped_gemm", "attention"})
PHASES: Final = ("forward", "recompute", "backward")


class KernelCall(NamedTuple):
    """One kernel, or all memory-bound ones of a class in a phase, with where its amounts stand in the account.

    shape: batch, m, n, k of a product, else None.
    """

    phase: str
    work: str
    op: str
    bytes: int
    launches: int
    flops: int | None
    shape: tuple[int, int, int, int] | None
    dtype: str
    skips_masked: bool
    of_weight: bool


class Sending(NamedTuple):
    """One collective, with where its wire bytes stand."""

    phase: str
    called: Collective
    wire: int


class WorkAccount:
    """A timeline's work. calls: products one by one, the rest summed by phase and class; each: all one by one."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._index: dict[Polynomial, int] = {}
        products = [k for k in timeline.kernels if k.work in MULTIPLIES]
        self.calls = [*map(self._call, products), *self._sums()]
        self.sendings = [Sending(c.phase, c, self._number(c.wire)) for c in timeline.collectives]
        self.summed = tuple(self._index)

    def _number(self, polynomial: Polynomial) -> int:
        return self._index.setdefault(polynomial, len(self._index))

    def _call(self, kernel: KernelRun) -> KernelCall:
        return KernelCall(
            kernel.phase,
            kernel.work,
            kernel.op,
            self._number(total((*kernel.reads, *kernel.writes))),
            self._number(kernel.launches),
            None if kernel.flops is None or kernel.work not in MULTIPLIES else self._number(kernel.flops),
            None if kernel.product is None else self._shape(kernel),
            kernel.dtype,
            kernel.skips_masked,
            kernel.of_weight,
        )

    def _shape(self, kernel: KernelRun) -> tuple[int, int, int, int]:
        assert kernel.product is not None
        batch, m, n, k = map(self._number, kernel.product)
        return batch, m, n, k

    def _sums(self) -> list[KernelCall]:
        found: dict[tuple[str, str], list[KernelRun]] = {}
        for kernel in self.timeline.kernels:
            if kernel.work not in MULTIPLIES and kernel.collective is None:
                found.setdefault((kernel.phase, rules.OF_MEMORY.get(kernel.work, "elementwise")), []).append(kernel)
        calls = []
        for (phase, work), kernels in found.items():
            through = self._number(total(part for k in kernels for part in (*k.reads, *k.writes)))
            launches = self._number(total(k.launches for k in kernels))
            calls.append(KernelCall(phase, work, "", through, launches, None, None, "", False, False))
        return calls

    def in_order(self) -> list[KernelCall | Sending]:
        """Every call by itself, in the order in which they run; amounts that are new are added to the account."""
        sendings = iter(self.sendings)
        return [next(sendings) if k.collective is not None else self._call(k) for k in self.timeline.kernels]

    @property
    def polynomials(self) -> tuple[Polynomial, ...]:
        """Every amount so far."""
        return tuple(self._index)


@once_per_timeline
def work_of(timeline: Timeline) -> WorkAccount:
    """The account of a timeline, made once."""
    return WorkAccount(timeline)


Uses = dict[tuple[int, ...], Any]  # how products of outputs of these sizes fill the device, and tiles along a size


def limits(
    call: KernelCall, amounts: Sequence[Any], on: Ceilings, causal: bool, uses: Uses | None = None
) -> rules.Limits:
    """What a call needs of every limit. amounts: the account's, evaluated. causal: half is masked. uses: known ones."""
    through, launches = amounts[call.bytes], amounts[call.launches]
    if call.flops is None or call.shape is None:
        return rules.moved(on, call.work, through, launches)
    flops = amounts[call.flops]
    shape = rules.ProductShape(*(amounts[at] for at in call.shape))
    if call.work == "attention":
        ran = flops / 2 if causal and call.skips_masked else flops
        return rules.attended(on, ran, through, shape.n, launches, call.phase == "backward")
    if call.work == "grouped_gemm":
        ratio = 1.0 if call.phase != "backward" else on.weight_ratio if call.of_weight else on.input_ratio
        return rules.multiplied_by_groups(on, call.dtype, flops, through, shape, ratio)
    return rules.multiplied(on, call.dtype, flops, through, shape, _use(call.shape, amounts, on, uses))


def _use(places: tuple[int, int, int, int], amounts: Sequence[Any], on: Ceilings, uses: Uses | None) -> Any:
    """How a product fills the device; alike for one of the same batch and output, whichever way that lies."""
    if uses is None:
        return None
    output = (places[0], *sorted(places[1:3]))
    if output not in uses:
        for at in places[1:3]:
            if (at,) not in uses:
                uses[at,] = rules.along(int(on.tile), amounts[at])
        shape = rules.ProductShape(*(amounts[at] for at in places))
        uses[output] = rules.tile_use(on, shape, (uses[places[1],], uses[places[2],]))
    return uses[output]


class ExpertChoice(NamedTuple):
    """How a token chooses: so many experts, from so many of the groups that experts lie in."""

    experts: Any = 1
    groups: int = 1
    of: int = 1


class LinkTraffic(NamedTuple):
    """How collectives run: where groups lie, how experts' rows are sent, and what a token chooses."""

    lie: Placement
    dispatch: bool = False  # whether a dispatcher sends rows, rather than an all-to-all
    chosen: ExpertChoice = ExpertChoice()


def group_of(called: Collective, values: Mapping[str, Any], lie: Placement) -> rules.Crossing:
    """How the ranks of a collective lie on nodes; the outer of two groups of a sequence takes one of each inner one."""
    apart = values["A"] if called.ranks == "C" else 1
    return lie.of(called.axis, values[called.ranks], apart)


def sent_by_link(
    at: Evaluation, lie: Placement, phases: Container[str] = PHASES, axis: str | None = None
) -> rules.SentByLink:
    """Wire bytes of a program by the class of their links, in these phases. axis: over this one alone."""
    found = rules.SentByLink(0, 0)
    account = at.account
    for called, (_, wire) in zip(account.timeline.collectives, account.payloads, strict=True):
        if called.phase in phases and axis in {None, called.axis}:
            one = rules.sent(called.kind, at.sizes[wire], group_of(called, at.values, lie))
            found = rules.SentByLink(found.inside + one.inside, found.between + one.between)
    return found


def busiest_link(at: Evaluation, axis: str = "sp") -> int:
    """Bytes that a program sends to the rank that gets most of them.

    What is passed on goes to one neighbour whole; every other collective sends each other rank a like part.
    """
    found = 0
    for called, (_, wire) in zip(at.account.timeline.collectives, at.account.payloads, strict=True):
        if called.axis == axis:
            others = 1 if called.kind == "point_to_point" else max(at.values[called.ranks] - 1, 1)
            found += ceil_divide(at.sizes[wire], others)
    return found


def sending_seconds(
    sending: Sending, amounts: Sequence[Any], on: Ceilings, values: Mapping[str, Any], by: LinkTraffic
) -> Any:
    """How long a collective takes."""
    called = sending.called
    group = group_of(called, values, by.lie)
    rate, once = called.kind, 1.0
    if by.dispatch and called.axis == "ep" and called.kind == "all_to_all":
        rate, once = "dispatch", rows_per_node(group, by.chosen)
    return rules.collective(on, called.kind, rate, amounts[sending.wire], group, once)


def rows_per_node(group: rules.Crossing, chosen: ExpertChoice) -> Any:
    """The part of the rows between nodes that is left where each goes to a node once, choices falling evenly.

    Groups of experts lie on ranks in order, so a token whose experts lie in few groups goes to few nodes.
    """
    reach = minimum(group.nodes, maximum(group.nodes * chosen.groups / chosen.of, 1.0))  # nodes, in its groups alone
    there = minimum(group.ranks, maximum(group.ranks * chosen.groups / chosen.of, 1.0))
    return hit(reach, chosen.experts) / hit(there, chosen.experts)


def hit(places: Any, times: Any) -> Any:
    """How many of the places so many even throws are expected to hit."""
    return places * (1.0 - (1.0 - 1.0 / places) ** times)


class PhaseTime(NamedTuple):
    """One phase of one program. Seconds. device: by class, as limits give it; links: by axis; launches: kernels."""

    device: Mapping[str, Any]
    links: Mapping[str, Any]
    launches: Any


def timed(
    account: WorkAccount, amounts: Sequence[Any], on: Ceilings, causal: bool, values: Mapping[str, Any], by: LinkTraffic
) -> dict[str, PhaseTime]:
    """Every phase of a program. amounts: of `account.summed`, evaluated at `values`; numbers or arrays."""
    device: dict[str, dict[str, Any]] = {phase: {} for phase in PHASES}
    links: dict[str, dict[str, Any]] = {phase: {} for phase in PHASES}
    launches: dict[str, Any] = dict.fromkeys(PHASES, 0)
    uses: Uses | None = {} if any(map(is_array, amounts)) else None  # numbers are looked up by themselves
    known: dict[tuple[Any, ...], Any] = {}  # a product that is run again takes as long
    for call in account.calls:
        of_class, alike = device[call.phase], (call.phase == "backward", *call[1:])
        if alike not in known:
            known[alike] = limits(call, amounts, on, causal, uses).seconds
        of_class[call.work] = of_class.get(call.work, 0.0) + known[alike]
        launches[call.phase] = launches[call.phase] + amounts[call.launches]
    for sending in account.sendings:
        over, seconds = links[sending.phase], sending_seconds(sending, amounts, on, values, by)
        over[sending.called.axis] = over.get(sending.called.axis, 0.0) + seconds
        launches[sending.phase] = launches[sending.phase] + 1
    return {phase: PhaseTime(device[phase], links[phase], launches[phase]) for phase in PHASES}
