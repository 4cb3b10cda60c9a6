"""Real dims, no memory: one cell's memory, traffic and flops on both sides, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from mla_cost.checks.reference.fake import count_flops, run_fake
from mla_cost.checks.reference.forms import make_stack
from mla_cost.checks.reference.measure import Recording
from mla_cost.checks.reference.spec import Dims, Spec
from mla_cost.checks.validation.cells import made, name, refusable
from mla_cost.checks.validation.predict import asked_point, point, predicted, predicted_stack
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.checks.validation.traces import (
    executor_kept,
    executor_steps,
    first_difference,
    kept_difference,
    model_kept,
    model_steps,
)
from mla_cost.language import evaluate
from mla_cost.language.evaluate import Evaluation
from mla_cost.language.machine import Phase
from mla_cost.language.polynomial import total
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.key import form_of
from mla_cost.pricing.resolve import Illegal, Point

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
PHASES: tuple[Phase, ...] = ("forward", "backward")
MODEL_FAULTS = (ValueError, LookupError, AssertionError, TypeError)  # what a wrong declaration can raise
PRODUCTS = ("mm", "bmm")  # the ops that FlopCounterMode counts in what is executed here


def check_cell(spec: Spec) -> Iterator[CheckRow]:
    """Every check of one cell: of one block all that the model says, of several the figures of the stack."""
    try:
        recording = run_fake(spec)
    except RuntimeError as problem:
        if spec.fused_attention == "stand-in":
            raise
        yield row("timeline", name(spec), "", f"torch selects no such backend here: {problem}", by_construction=True)
        return
    try:
        predicted(spec)
    except MODEL_FAULTS as problem:
        yield row("program", name(spec), f"the executor runs it, the model has none: {problem}")
        return
    yield from _stack(spec, recording) if spec.layers > 1 else _block(spec, recording)


def _block(spec: Spec, recording: Recording) -> Iterator[CheckRow]:
    at, cell, stated = predicted(spec), name(spec), recording.by_construction
    yield from (check(at, recording, cell, stated) for check in (saved_row, peak_row, timeline_row))
    yield _parameters(at, recording, spec)
    yield _collectives(at, recording, spec)
    yield _products(at, spec)
    if spec.by_construction or spec.fused_attention != "stand-in":
        yield _fused_attention(at, spec)


def check_refusals() -> Iterator[CheckRow]:
    """What the executor refuses the model refuses, and nothing else: forms, schemes, kernels, degrees."""
    for asked in refusable():
        ours, theirs = _answer_of_model(asked), "a program" if made([asked]) else "refused"
        cell = " ".join(
            str(part)
            for part in (
                asked["form"],
                asked["scheme"],
                asked["kernel"],
                f"v={asked['dims'].value}",
                f"sp={asked['sp']}",
            )
        )
        yield row("refusals", cell, f"model {ours}, executor {theirs}" if ours != theirs else "", ours)


def _answer_of_model(asked: Mapping[str, Any]) -> str:
    try:
        evaluation(asked_point(**asked))
    except Illegal:
        return "refused"
    except MODEL_FAULTS as problem:
        return f"fails: {problem}"
    return "a program"


# ---- memory


def saved_row(at: Evaluation, recording: Recording, cell: str, stated: bool) -> CheckRow:
    """The storages kept between forward and backward, one by one."""
    fault = kept_difference(model_kept(at), executor_kept(recording))
    detail = f"{at.saved_bytes():,} B in {len(recording.saved)} storages"
    return row("saved storages", cell, fault, detail, by_construction=stated)


def peak_row(at: Evaluation, recording: Recording, cell: str, stated: bool) -> CheckRow:
    """The most bytes that are alive at a moment."""
    ours, theirs = at.walk().peak, recording.peak
    event = at.account.timeline.events[ours.event]
    model = f"model {ours.bytes:,} B in {event.phase} at {event.op}"
    reported = f"{model}, executor {theirs.bytes:,} B in {theirs.phase} at {theirs.op}"
    fault = reported if ours.bytes != theirs.bytes else ""
    return row("live-byte peak", cell, fault, f"{ours.bytes:,} B", by_construction=stated)


def timeline_row(at: Evaluation, recording: Recording, cell: str, stated: bool) -> CheckRow:
    """Every allocation and free, in order."""
    ours, theirs = model_steps(at), executor_steps(recording)
    return row("timeline", cell, first_difference(ours, theirs), f"{len(ours)} events", by_construction=stated)


@lru_cache(maxsize=256)
def _parameter_bytes(dims: Dims, dtype: str, idle_mlp: int) -> int:
    """Bytes of one block's parameters; they are the same in every form."""
    with FakeTensorMode():
        block = make_stack(Spec(dims=dims, dtype=dtype, seq_len=2, sp=1, idle_mlp=idle_mlp))
        return sum(parameter.nbytes for parameter in block.parameters())


def _parameters(at: Evaluation, recording: Recording, spec: Spec) -> CheckRow:
    ours = at.parameter_bytes(), at.gradient_bytes()
    theirs = _parameter_bytes(spec.dims, spec.dtype, spec.idle_mlp), recording.parameter_gradient_bytes
    return row("parameters", name(spec), _figures(ours, theirs), f"{ours[0]:,} B and gradients {ours[1]:,} B")


def _figures(ours: Sequence[int], theirs: Sequence[int]) -> str:
    return "" if tuple(ours) == tuple(theirs) else f"model {_numbers(ours)}, executor {_numbers(theirs)}"


def _numbers(figures: Sequence[int]) -> str:
    return " and ".join(f"{figure:,}" for figure in figures)


def _stack(spec: Spec, recording: Recording) -> Iterator[CheckRow]:
    """A stack of blocks: figures only, since the model repeats one block's timeline in closed form."""
    it, cell, stated = predicted_stack(spec), name(spec), recording.by_construction
    for check, ours, theirs in (
        ("stack: saved", it.saved_bytes, recording.saved_bytes),
        ("stack: peak", it.peak_bytes, recording.peak_bytes),
        ("stack: gradients", it.gradient_bytes, recording.parameter_gradient_bytes),
    ):
        own = stated and check != "stack: gradients"
        yield row(check, cell, _figures([ours], [theirs]), f"{ours:,} B", by_construction=own)


# ---- traffic

Called = tuple[str, str, str, int, int]  # phase, kind, dtype, payload bytes, wire bytes


def model_calls(at: Evaluation) -> list[tuple[Called, str]]:
    """The collectives of the model in order, each with the tensor that it moves."""
    account = at.account
    return [
        ((called.phase, called.kind, DTYPES[called.dtype], at.sizes[payload], at.sizes[wire]), called.tensor)
        for called, (payload, wire) in zip(account.timeline.collectives, account.payloads, strict=True)
    ]


def wire_bytes(kind: str, payload: int, ranks: int) -> int:
    """What a rank sends, as section 1 of the design states it; a payload that ranks do not divide is padded."""
    if kind == "all_gather":
        return (ranks - 1) * payload
    return (ranks - 1) * -(-payload // ranks)


def _collectives(at: Evaluation, recording: Recording, spec: Spec) -> CheckRow:
    theirs = [
        (c.phase, c.kind, c.dtype, c.payload_bytes, wire_bytes(c.kind, c.payload_bytes, spec.sp))
        for c in recording.collectives
    ]
    ours = model_calls(at)
    return row("collectives", name(spec), calls_difference(ours, theirs), f"{len(ours)} calls")


def calls_difference(ours: Sequence[tuple[Called, str]], theirs: Sequence[Called]) -> str:
    """The first call on which two sides part; empty where all are the same, in order."""
    for at in range(max(len(ours), len(theirs))):
        mine = ours[at] if at < len(ours) else None
        other = theirs[at] if at < len(theirs) else None
        if mine is None or other is None or mine[0] != other:
            reported = "no call" if mine is None else f"{mine[1]}: {mine[0]}"
            return f"call {at}: model {reported}, executor {other or 'no call'}"
    return ""


# ---- flops


@lru_cache(maxsize=4096)
def _counted(spec: Spec) -> tuple[int, int]:
    """What FlopCounterMode counts in matrix products, forward and backward."""
    counted = count_flops(spec)
    forward, backward = (sum(counted[phase].get(op, 0) for op in PRODUCTS) for phase in ("forward", "backward"))
    return forward, backward


def _same_products(spec: Spec) -> Spec:
    """The cell without the settings that no matrix product depends on, so that it is counted once for all of them."""
    return replace(spec, v_layout="view", norm="fused", softmax_dtype="activation", mask="none", dtype="bf16")


def _products(at: Evaluation, spec: Spec) -> CheckRow:
    """Matrix products, those of eager attention included: exact ints on both sides."""
    run = at.account.timeline
    ours = [total(f.needed for f in run.flops if f.phase == p and not f.skips_masked).at(at.values) for p in PHASES]
    theirs = _counted(_same_products(spec))
    return row("product flops", name(spec), _figures(ours, theirs), _numbers(ours))


def _fused_attention(at: Evaluation, spec: Spec) -> CheckRow:
    """A fused kernel's flops against the formula typed out: scores and output forward, five products backward."""
    run = at.account.timeline
    ours = [evaluate.skipped_flops(run, phase).at(at.values) for phase in PHASES]
    return row("fused flops", name(spec), _figures(ours, fused_flops(spec)), _numbers(ours))


def fused_flops(spec: Spec) -> tuple[int, int]:
    """Literal: 2 b heads queries keys times the widths of each product.

    Forward is q k (query width) and p v (value width). Backward repeats q k, then makes dp and dv (value width), dq
    and dk (query width): 2.5 times forward where the widths are equal.
    """
    asked = point(spec)
    divided = asked.scheme.divides_heads
    heads = spec.dims.heads // spec.sp if divided else spec.dims.heads
    queries = spec.seq_len if divided else spec.seq_len // spec.sp
    qk, value = _widths(spec, asked)
    pairs = 2 * spec.micro_batch * heads * queries * spec.seq_len
    return pairs * (qk + value), pairs * (3 * qk + 2 * value)


def _widths(spec: Spec, asked: Point) -> tuple[int, int]:
    dims = spec.dims
    if form_of(asked.key.form).shared_key:
        return dims.kv_lora_rank + dims.rope, dims.kv_lora_rank
    qk = dims.nope + dims.rope
    return qk, qk if asked.key.value_padding != "none" else dims.value
