"""What a plan answers: plain typed records with the fields of the JSON (schema mla-cost/plan/1). Views read them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

SCHEMA = "mla-cost/plan/1"
Status = Literal["fits", "tight", "oom", "unsupported", "illegal"]


class TensorCost(NamedTuple):
    """One storage. Equal `storage` numbers share bytes; `formula` gives the bytes from the symbols of `dims`."""

    name: str
    dims: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: int
    saved: bool
    alive_at_peak: bool
    formula: str


class Breakdown(NamedTuple):
    """A part of a total. counted: follows from the program; budgeted: a stated allowance."""

    name: str
    bytes: int
    basis: Literal["counted", "budgeted"]


class PeakEvent(NamedTuple):
    """When something happens: the phase and the op that runs."""

    phase: str
    op: str


class Stage(NamedTuple):
    """One pipeline stage of the model scope, from 0. in_flight: micro-batches kept per chunk at the peak event.

    kept: of the micro-batches in flight but one; working: of that one, at its peak; saved: what any one of them keeps
    between its forward and its backward. Where the peak event is inside
    the optimizer step, nothing is in flight or kept, and working is what the step makes. moments: Adam's part of the
    optimizer, which the first step makes. sent: wire bytes of one rank in one optimizer step, over all axes.
    between_steps: what is allocated when a step has ended, as logs tell it: states, persistent buffers, and what a
    pipeline's loop goes on holding. host: in the memory of the rank's host.
    """

    stage: int
    layers: int
    mtp_modules: int
    embedding: bool
    loss: bool
    in_flight: tuple[int, ...]
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    working_bytes: int
    allocated_peak_bytes: int
    moment: str
    saved_bytes: int = 0
    moments_bytes: int = 0
    sent_bytes: int = 0
    between_steps_bytes: int = 0
    host_bytes: int = 0


class Memory(NamedTuple):
    """Bytes on one rank; what each figure counts is in docs/notation.md. None where no program exists."""

    saved_bytes: int | None = None
    peak_bytes: int | None = None
    parameter_bytes: int | None = None
    parameter_gradient_bytes: int | None = None
    parameter_gradient_total_bytes: int | None = None
    optimizer_bytes: int | None = None
    kernel_workspace_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    peak_moment: PeakEvent | None = None
    allocated_peak_moment: PeakEvent | None = None
    tensors: tuple[TensorCost, ...] = ()
    breakdown: tuple[Breakdown, ...] = ()
    stages: tuple[Stage, ...] | None = None


class CollectiveCost(NamedTuple):
    """One collective of one rank. payload: the tensor handed over; wire: what the rank sends of it.

    apart: how many places of the axis lie between neighbours of the group, more than one for a group of groups.
    """

    kind: str
    tensor: str
    phase: str
    axis: str
    group_size: int
    count: int  # type: ignore[assignment]  # the field has the name of a method of tuples
    dtype: str
    payload_bytes: int
    wire_bytes: int
    apart: int = 1


class AxisLinks(NamedTuple):
    """What one rank sends over an axis, by link: to ranks of its own node, and to those of others. Bytes."""

    axis: str
    inside_bytes: int
    between_bytes: int


class Traffic(NamedTuple):
    """Sums over the collectives of one phase."""

    payload_bytes: int | None = None
    wire_bytes: int | None = None


class Communication(NamedTuple):
    """What one rank hands to collectives and sends. links: by axis, adding up to the wire bytes; of a device."""

    forward: Traffic = Traffic()
    backward: Traffic = Traffic()
    collectives: tuple[CollectiveCost, ...] = ()
    links: tuple[AxisLinks, ...] = ()


class FlopCount(NamedTuple):
    """Multiply-adds counted as two. model: causal attention counts half; executed: what the kernel runs."""

    model: int | None = None
    executed: int | None = None


class Flops(NamedTuple):
    """Flops of one rank by phase."""

    forward: FlopCount = FlopCount()
    backward: FlopCount = FlopCount()


class Difference(NamedTuple):
    """What one group of tensors adds against the baseline form."""

    tensor: str
    saved_delta_bytes: int
    peak_delta_bytes: int
    allocated_peak_delta_bytes: int


class Basis(NamedTuple):
    """One item of a verdict's arithmetic, with where it comes from.

    low_bytes, high_bytes: the ends of an item that is known as a range, with the sign of bytes; else None.
    """

    name: str
    bytes: int
    source: str
    low_bytes: int | None = None
    high_bytes: int | None = None


class FusedOption(NamedTuple):
    """A fused kernel that can train this form on this device, and what the block saves under it."""

    kernel: str
    value_padding: str
    implementation: str
    saved_bytes: int
    source: str


class Lever(NamedTuple):
    """One change of a plan, what there is then and the difference from the plan. None where it makes no program.

    lever: the setting that is turned; settings: all that change with it. ranks_factor: by how much the number of ranks
    grows. sent, flops: forward and backward; at the model scope in one optimizer step, on the stage that has most of
    them. reason: why it is refused. dropped, kept: of a recomputation, what a micro-batch then no longer keeps for
    backward on the stage that is selected (or in the blocks), and what it keeps instead. seconds: of the blocks, or of
    an optimizer step, and the difference; None where time is not predicted.
    """

    lever: str
    change: str
    settings: Mapping[str, Any]
    required_bytes: int | None
    required_delta_bytes: int | None
    sent_bytes: int | None
    sent_delta_bytes: int | None
    flops: int | None
    flops_delta: int | None
    ranks_factor: int
    status: Status
    reason: str
    dropped_bytes: int | None = None
    kept_bytes: int | None = None
    seconds: float | None = None
    seconds_delta: float | None = None


class Verdict(NamedTuple):
    """Whether the priced scope fits, and the arithmetic behind it.

    levers, remedy: filled in on request; remedy is the smallest change that makes it fit, in words. counted, budgeted:
    what required is made of, the second being allowances and other memory; the reserve, all of it budgeted, is in
    basis and stands between visible and usable memory. least_headroom: what is left at the high ends of its items.
    """

    status: Status
    required_bytes: int | None
    usable_bytes: int | None
    headroom_bytes: int | None
    reason: str
    basis: tuple[Basis, ...] = ()
    levers: tuple[Lever, ...] = ()
    fused_kernels: tuple[FusedOption, ...] = ()
    remedy: str | None = None
    counted_bytes: int | None = None
    budgeted_bytes: int | None = None
    least_headroom_bytes: int | None = None


class Seconds(NamedTuple):
    """A duration and its band, from the spread of the device's ceilings. Seconds."""

    seconds: float
    low: float
    high: float


class TimePart(NamedTuple):
    """A part of a time. limit: what sets it: compute, memory, launch, link, host, schedule."""

    name: str
    seconds: float
    limit: str


class Time(NamedTuple):
    """How long it takes, as far as the device's ceilings tell. Seconds; docs/time.md says what is modelled.

    Attention scope: forward and backward of the blocks. Model scope: one optimizer step; forward and backward are
    those of one micro-batch on the slowest stage. parts add up to total. exposed, hidden: of collectives, by axis.
    idle: what the schedule leaves of the step to the stage that waits least, closed_idle: by the closed formula.
    """

    total: Seconds
    forward: Seconds
    backward: Seconds
    parts: tuple[TimePart, ...]
    exposed: Mapping[str, float]
    hidden: Mapping[str, float]
    inside_bytes: int
    between_bytes: int
    bound: str
    tokens_per_second: float | None = None
    tokens_per_second_per_device: float | None = None
    model_flops_utilisation: float | None = None
    idle: float | None = None
    closed_idle: float | None = None
    days: float | None = None
    device_hours: float | None = None
    price: float | None = None
    estimated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def too_close(self, other: "Time") -> bool:
        """Whether the ceilings' spread could turn the order of two plans on one device.

        What is equal in both cancels; of the rest each part may be off by as much as the whole is.
        """
        gap = abs(other.total.seconds - self.total.seconds)
        ours, theirs = ({part.name: part.seconds for part in time.parts} for time in (self, other))
        apart = sum(abs(ours.get(name, 0.0) - theirs.get(name, 0.0)) for name in ours.keys() | theirs.keys())
        spread = (other.total.high - other.total.low) / 2 / other.total.seconds
        return gap < apart * spread


class TraceSlice(NamedTuple):
    """Something that a rank of a stage does, from `start` on, in seconds; stream: device or links; told: figures."""

    stage: int
    stream: str
    name: str
    start: float
    seconds: float
    told: Mapping[str, Any]


class HostMemory(NamedTuple):
    """What ranks keep in their host's memory, and whether a node has it. Bytes.

    bytes: of the rank that keeps most; node: of as many such `ranks`. available: of a node, None where it is not known,
    and then status is `unknown`. to_host, from_host: over a rank's host link, in one optimizer step.
    """

    bytes: int
    ranks: int
    node_bytes: int
    available_bytes: int | None
    status: Literal["fits", "oom", "unknown"]
    to_host_bytes: int
    from_host_bytes: int
    source: str


class Beside(NamedTuple):
    """The same blocks op by op under an eager kernel, where a fused one was chosen for them. Bytes."""

    kernel: str
    saved_bytes: int
    peak_bytes: int
    allocated_peak_bytes: int
    status: Status
    reason: str


class Result(NamedTuple):
    """One device, form, scheme, kernel and profile. beside: at the attention scope, where a kernel was chosen."""

    device: str | None
    scope: str
    form: str
    scheme: str
    kernel: str
    profile: str
    settings: Mapping[str, Any]
    key: str
    memory: Memory
    communication: Communication
    flops: Flops
    compared_to_explicit: tuple[Difference, ...]
    verdict: Verdict | None
    notes: tuple[str, ...] = ()
    time: Time | None = None
    beside: Beside | None = None
    host: HostMemory | None = None


class TermItem(NamedTuple):
    """A part of a number. where: what it belongs to; formula: how its bytes come about, in symbols or in figures."""

    where: str
    name: str
    formula: str
    bytes: int


class Term(NamedTuple):
    """One number of a row and the items that add up to it. Bytes on one rank; stage: of the model scope, from 0."""

    term: str
    meaning: str
    device: str | None
    form: str
    kernel: str
    stage: int | None
    total_bytes: int
    items: tuple[TermItem, ...]


class FormulaTerm(NamedTuple):
    """One summand of a formula; value where the symbols have values."""

    tensor: str
    where: str
    formula: str
    value: int | None


class FormulaSymbol(NamedTuple):
    """A symbol of a formula, what it means, and its value where it has one."""

    name: str
    meaning: str
    value: int | None


class Formula(NamedTuple):
    """A formula of one quantity for one structural key. others: of a peak, the other moments that can win."""

    form: str
    scheme: str
    kernel: str
    quantity: str
    meaning: str
    holds_for: str
    moment: str | None
    terms: tuple[FormulaTerm, ...]
    total: int | None
    symbols: tuple[FormulaSymbol, ...]
    others: tuple["Formula", ...] = ()

    def to_json(self) -> str:
        """The JSON text that `mla-cost explain --format json` prints."""
        return json.dumps({"schema": "mla-cost/explain/1", **plain(self)}, indent=2)


class ProgramLine(NamedTuple):
    """A statement of a program as it runs. dims: of each result, none of them for a result that is absent."""

    depth: int
    text: str
    dims: tuple[tuple[str, ...], ...]
    note: str


class ProgramListing(NamedTuple):
    """The forward program of one structural key after its rewrites."""

    form: str
    scheme: str
    kernel: str
    profile: str
    layer: str
    remat: str
    holds_for: str
    lines: tuple[ProgramLine, ...]

    def to_json(self) -> str:
        """The JSON text that `mla-cost explain --program --format json` prints."""
        return json.dumps({"schema": "mla-cost/program/1", **plain(self)}, indent=2)


def terms_json(terms: tuple[Term, ...]) -> str:
    """The JSON text that `mla-cost plan --explain-term NAME --format json` prints."""
    return json.dumps({"schema": "mla-cost/term/1", "terms": plain(terms)}, indent=2)


class Plan:
    """The answer to one question: every resolved input and one result per device and form."""

    schema = SCHEMA

    def __init__(self, inputs: Mapping[str, Any], results: tuple[Result, ...]) -> None:
        self.inputs = inputs
        self.results = results

    def to_dict(self) -> dict[str, Any]:
        """The JSON object as plain dicts and lists."""
        return {
            "schema": self.schema,
            "inputs": plain(self.inputs),
            "results": [plain(result) for result in self.results],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The JSON text that `mla-cost plan --format json` prints."""
        return json.dumps(self.to_dict(), indent=indent)

    def __iter__(self) -> Iterator[Result]:
        """The results, in order."""
        return iter(self.results)

    def __getitem__(self, form: str) -> Result:
        """The result of a form on the first device.

        Raises:
            KeyError: no result has that form.

        """
        for result in self.results:
            if result.form == form:
                return result
        raise KeyError(form)


def plain(value: Any) -> Any:
    """Records as dicts, sequences as lists, all the way down."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
