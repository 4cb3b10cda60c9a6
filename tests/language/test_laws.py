"""Laws that hold for every form, scheme and kernel at every size: three evaluators agree, nothing goes below zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mla_cost
from mla_cost.batch.matrices import Folded, evaluated, monomials_of, over_others, rows_of
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.explaining.explain import QUANTITIES, explain_point
from mla_cost.inputs.config import AttentionDims, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import evaluate
from mla_cost.language.evaluate import EXACT_LIMIT
from mla_cost.language.machine import Timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import Illegal, Point, resolve
from tests.choosing import EXHAUSTIVE

FAMILIES = ("cuda", "ascend", "rocm", "cpu", "none")
PHASES = ("forward", "backward")
# Equal draws make equal sums; ones and zeros change which copies exist.
WIDTHS = st.sampled_from((1, 2, 3, 8, 12, 16, 64, 128))


def draws(exhaustive: int) -> int:
    """A third of them in an everyday run; draws differ from run to run."""
    return exhaustive if EXHAUSTIVE else max(5, exhaustive // 3)


@st.composite
def questions(draw: Any, *, largest: int = 40, degrees: Any = None) -> tuple[ModelConfig, str, PlanSettings]:
    sp = draw(st.integers(1, 64) if degrees is None else degrees)
    heads = draw(st.sampled_from((24, 1, 2, 128)) | st.integers(1, 3).map(lambda times: times * sp))
    dims = AttentionDims(
        hidden=draw(WIDTHS),
        heads=heads,
        q_lora_rank=draw(st.none() | WIDTHS),
        kv_lora_rank=draw(WIDTHS),
        qk_nope_head_dim=draw(WIDTHS),
        qk_rope_head_dim=draw(st.sampled_from((0, 0, 2, 4, 64))),
        v_head_dim=draw(WIDTHS),
    )
    asked = PlanSettings(
        scheme=draw(st.none() | st.sampled_from(sorted(SCHEMES))),
        kernel=draw(st.sampled_from(sorted(KERNELS))),
        seq_len=max(2, sp * draw(st.integers(1, largest))),
        micro_batch=draw(st.integers(1, 3)),
        sp=sp,
        dtype=draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        v_layout=draw(st.sampled_from(("view", "contiguous"))),
        value_padding=draw(st.sampled_from((None, "none", "qk"))),
        attention_layout=draw(st.sampled_from(("sbnd", "bsht", "bnsd"))),
        softmax_dtype=draw(st.sampled_from(("activation", "fp32"))),
        mask=draw(st.sampled_from(("none", "tensor"))),
        norm=draw(st.sampled_from(("fused", "composite"))),
        scope="attention",
    )
    return ModelConfig(name="drawn", title="drawn", dims=dims), draw(st.sampled_from(sorted(FORMS))), asked


def pointed(question: tuple[ModelConfig, str, PlanSettings]) -> Point:
    """The program of a question; a draw without one is passed over."""
    try:
        point = resolve(*question)
        evaluation(point)
    except Illegal:
        assume(False)
    return point


def run_of(it: BlockFigures) -> Timeline:
    return it.at.account.timeline


def ints(it: BlockFigures) -> dict[str, int]:
    """Every figure from the exact int evaluator."""
    pairs = [it.at.account.payloads[at] for at in range(len(run_of(it).collectives))]
    found = {
        "saved": it.at.saved_bytes(),
        "peak": it.at.walk().peak.bytes,
        "allocated": it.at.walk_allocated(it.kinds).peak.bytes,
        "parameters": it.at.parameter_bytes(),
    }
    for phase in PHASES:
        own = [pair for pair, called in zip(pairs, run_of(it).collectives, strict=True) if called.phase == phase]
        found[f"payload {phase}"] = sum(it.at.sizes[payload] for payload, _ in own)
        found[f"wire {phase}"] = sum(it.at.sizes[wire] for _, wire in own)
    return found


def polynomials(run: Timeline) -> dict[str, Any]:
    found = {"saved": evaluate.saved(run), "parameters": evaluate.parameters(run)}
    for phase in PHASES:
        found[f"payload {phase}"] = evaluate.payload(run, phase)
        found[f"wire {phase}"] = evaluate.wire(run, phase)
    return found


def rows(sums: Sequence[Polynomial], values: Mapping[str, int]) -> list[Any]:
    """Sums as sweeps have them: rows over monomials, with each symbol an array of two points, the second all ones."""
    each = [over_others(polynomial) for polynomial in sums]
    monomials = monomials_of(each)
    at = {name: np.array([value, 1], dtype=np.float64) for name, value in values.items()}
    found = evaluated(Folded(monomials, rows_of(each, monomials), ()), at, 2)
    return found[:, 0].tolist()


def arrays(it: BlockFigures) -> dict[str, int]:
    """Every figure from numpy."""
    run = run_of(it)
    named = polynomials(run)
    found = dict(zip(named, rows(list(named.values()), it.at.values), strict=True))
    found["peak"] = max(rows([moment.bytes for moment in evaluate.candidates(run)], it.at.values))
    found["allocated"] = max(rows([moment.bytes for moment in evaluate.candidates(run, it.kinds)], it.at.values))
    return {name: int(value) for name, value in found.items()}


def symbols(it: BlockFigures) -> dict[Any, int]:
    point = it.at.values
    whole = {"S": point["s"] * point["P"], "n": point["l"] * point["P"] if "l" in point else point["n"]}
    return {sympy.Symbol(name, positive=True, integer=True): value for name, value in {**point, **whole}.items()}


def expressions(it: BlockFigures) -> dict[str, int]:
    """Every figure from sympy."""
    run = run_of(it)
    sums = {name: [polynomial] for name, polynomial in polynomials(run).items()}
    sums["peak"] = [moment.bytes for moment in evaluate.candidates(run)]
    sums["allocated"] = [moment.bytes for moment in evaluate.candidates(run, it.kinds)]
    at = symbols(it)
    return {name: max(int(evaluate.expression(it).subs(at)) for it in those) for name, those in sums.items()}


@settings(max_examples=draws(150))
@given(questions(), st.sampled_from(FAMILIES))
def test_ints_and_arrays_agree(question, family):
    it = figures(pointed(question), family)
    assert arrays(it) == ints(it)


@settings(max_examples=draws(12))
@given(questions(), st.sampled_from(FAMILIES))
def test_ints_and_sympy_agree(question, family):
    it = figures(pointed(question), family)
    assert expressions(it) == ints(it)


@settings(max_examples=draws(25))
@given(questions())
def test_an_explanation_is_worth_what_the_plan_counts(question):
    it = figures(pointed(question), "none")
    counted = ints(it)
    run = run_of(it)
    expected = {
        "saved": counted["saved"],
        "peak": counted["peak"],
        "payload": sum(counted[f"payload {phase}"] for phase in PHASES),
        "wire": sum(counted[f"wire {phase}"] for phase in PHASES),
        "flops": sum(f.needed.at(it.at.values) + f.recomputed.at(it.at.values) for f in run.flops),
    }
    for quantity in QUANTITIES:
        reported = explain_point(it.point, it.at.values, quantity)
        assert reported.value() == expected[quantity]
        assert reported.expression().subs(symbols(it)) == expected[quantity]


@settings(max_examples=draws(100))
@given(questions(), st.sampled_from(FAMILIES))
def test_nothing_is_ever_negative_and_all_of_it_goes(question, family):
    """Walked literally, event by event: what is left is the input, its gradient and those of the parameters."""
    it = figures(pointed(question), family)
    run, sizes = run_of(it), it.at.bytes_of
    live: dict[int, int] = {}
    most = 0
    for at, event in enumerate(run.events):
        allocation = event.allocation
        if allocation is None:
            continue
        if event.what == "alloc":
            assert allocation.number not in live
            live[allocation.number] = sizes(allocation.number)
            assert live[allocation.number] > 0
        else:
            live.pop(allocation.number)  # a KeyError is a free of what is not there
        seen = sum(size for number, size in live.items() if run.allocations[number].kind != "parameter_gradient")
        most = max(most, seen)
        if at == run.forward_events - 1:
            kept = sum(size for number, size in live.items() if run.allocations[number].saved)
            assert kept == it.saved_bytes
    assert most == it.peak_bytes
    left = [run.allocations[number].label for number in live]
    parameters = [parameter.label for parameter in run.parameters]
    assert sorted(left) == sorted(["x", *(f"gradient of {name}" for name in ("x", *parameters))])


@settings(max_examples=draws(100))
@given(questions(), st.sampled_from(FAMILIES))
def test_saved_is_at_most_the_peak(question, family):
    it = figures(pointed(question), family)
    assert 0 < it.saved_bytes <= it.peak_bytes
    left = it.saved_bytes + it.at.bytes_of(0)  # and the output, as wide as the input
    assert it.at.walk().after_forward == left <= it.peak_bytes
    assert it.peak_bytes <= it.allocated_peak_bytes
    assert all(value >= 0 for value in ints(it).values())


@settings(max_examples=draws(60))
@given(questions(degrees=st.just(1)))
def test_one_rank_moves_nothing(question):
    it = figures(pointed(question), "none")
    assert run_of(it).collectives == []


# payloads that are sent, of P ranks: a fraction
SENT = {
    "all_to_all": lambda ranks: (ranks - 1, ranks),
    "reduce_scatter": lambda ranks: (ranks - 1, ranks),
    "all_gather": lambda ranks: (ranks - 1, 1),
    "point_to_point": lambda _: (1, 1),  # what is handed to the next rank is all sent
}


@settings(max_examples=draws(100))
@given(questions(degrees=st.integers(2, 64)))
def test_what_is_sent_of_what_is_handed_over(question):
    it = figures(pointed(question), "none")
    called = run_of(it).collectives
    assert called
    for collective, (payload, wire) in zip(called, it.at.account.payloads, strict=True):
        parts, of = SENT[collective.kind](it.at.values[collective.ranks])
        assert it.at.sizes[wire] * of == it.at.sizes[payload] * parts
        assert it.at.sizes[payload] > 0


@settings(max_examples=draws(60))
@given(questions(degrees=st.integers(2, 64)))
def test_backward_is_the_transpose_of_forward(question):
    """But for what forward sent and did not keep, which goes once more: the same tensor by the same kind."""
    point = pointed(question)
    run = timeline(point.key)
    # the sums of gather-rotate go home from rank to rank: a reduce-scatter, taken apart
    transposed = {
        "all_gather": "point_to_point" if point.scheme.name == "gather-rotate" else "reduce_scatter",
        "reduce_scatter": "all_gather",
        "all_to_all": "all_to_all",
        "point_to_point": "point_to_point",
    }
    forward = [c for c in run.collectives if c.phase == "forward"]
    sent = {(c.kind, c.tensor) for c in forward}
    back = [c for c in run.collectives if c.phase == "backward" and (c.kind, c.tensor) not in sent]
    assert sorted(transposed[c.kind] for c in forward) == sorted(c.kind for c in back)


@settings(max_examples=draws(80))
@given(questions(), st.sampled_from(FAMILIES), st.integers(2, 4))
def test_more_tokens_never_cost_less(question, family, times):
    model, form, asked = question
    assume(asked.seq_len > asked.sp)  # one position per rank is a program of its own
    less = figures(pointed(question), family)
    longer = asked.model_copy(update={"seq_len": asked.seq_len * times})
    more = figures(pointed((model, form, longer)), family)
    before, after = ints(less), ints(more)
    assert all(before[name] <= after[name] for name in before)
    assert before["saved"] < after["saved"]
    assert before["parameters"] == after["parameters"]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_formula_of_a_peak_takes_numbers(form):
    """The maximum over the moments that can win, with numbers put in, is what the plan counts."""
    it = figures(resolve(typed_model(), form, PlanSettings(scope="attention")), "none")
    formula = mla_cost.formula(form, "peak", one=["batch"])
    assert formula.xreplace(symbols(it)) == it.peak_bytes


def typed_model() -> ModelConfig:
    dims = AttentionDims(
        hidden=7168,
        heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    return ModelConfig(name="deepseek-v3", title="typed by hand", dims=dims)


# ---- the exact-integer limit

HUGE = st.sampled_from((2**4, 2**8, 2**12, 2**16))


@st.composite
def huge_questions(draw: Any) -> tuple[ModelConfig, str, PlanSettings]:
    dims = AttentionDims(
        hidden=draw(HUGE),
        heads=draw(HUGE),
        q_lora_rank=draw(st.none() | HUGE),
        kv_lora_rank=draw(HUGE),
        qk_nope_head_dim=draw(HUGE),
        qk_rope_head_dim=draw(HUGE),
        v_head_dim=draw(HUGE),
    )
    asked = PlanSettings(
        kernel=draw(st.sampled_from(("eager", "mem-efficient"))),
        seq_len=2 ** draw(st.integers(10, 30)),
        sp=2 ** draw(st.integers(0, 4)),
        micro_batch=2 ** draw(st.integers(0, 16)),
        layers=10 ** draw(st.integers(0, 3)),
        scope="attention",
    )
    return ModelConfig(name="huge", title="huge", dims=dims), draw(st.sampled_from(sorted(FORMS))), asked


@settings(max_examples=draws(150))
@given(huge_questions())
def test_the_exact_limit_refuses_and_never_wraps(question):
    point = resolve(*question)
    run, layers = timeline(point.key), question[2].layers
    values = {**point.values, "fused_workspace": 0}
    live, most = 0, 0
    for event in run.events:
        if event.allocation is not None and event.allocation.kind != "parameter_gradient":
            live += event.allocation.size.at(values) * (1 if event.what == "alloc" else -1)
            most = max(most, live)
    it = attempt(point, layers)
    if it is None:  # refused: then not even a bound from above is small
        every = [*run.allocations, *run.parameters]
        assert 2 * layers * sum(allocation.size.at(values) for allocation in every) >= EXACT_LIMIT or run.fused_calls
        return
    assert most < EXACT_LIMIT
    assert all(0 <= value < EXACT_LIMIT for value in ints(it).values())
    assert max(it.peak_bytes, it.allocated_peak_bytes) < EXACT_LIMIT
    assert layers * it.at.saved_bytes() == it.saved_bytes < EXACT_LIMIT


def attempt(point: Point, layers: int) -> BlockFigures | None:
    try:
        return figures(point, "cuda", layers)
    except Illegal:
        return None


@settings(max_examples=draws(150))
@given(huge_questions())
def test_arrays_are_exact_or_refuse(question):
    point = resolve(*question)
    run = timeline(point.key)
    named = polynomials(run)
    for name, found in zip(named, rows(list(named.values()), point.values), strict=True):
        exact = named[name].at(point.values)
        assert (found >= EXACT_LIMIT) == (exact >= EXACT_LIMIT), name
        assert found == exact or exact >= EXACT_LIMIT, name


def test_the_exact_limit_stands_at_2_to_the_53():
    """2 x S^2 bytes of probabilities for one head: S = 2^26 is exactly 2^53."""
    at: dict[str, Any] = {"scope": "attention", "sp": 1, "form": "explicit", "device": None, "dims": {"heads": 1}}
    refused = mla_cost.plan(seq_len=2**26, **at)["explicit"].verdict
    assert refused is not None
    assert refused.status == "illegal"
    assert str(2**53) in refused.reason
    allowed = mla_cost.plan(seq_len=2**25, **at)["explicit"].memory
    assert allowed.saved_bytes is not None
    assert allowed.saved_bytes > 2 * 2**50
    assert rows([evaluate.saved(timeline(_key()))], {**_ones(), "s": 2**26})[0] >= EXACT_LIMIT


def _key() -> Any:
    dims = AttentionDims(
        hidden=2, heads=2, q_lora_rank=2, kv_lora_rank=2, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=2
    )
    return resolve(ModelConfig(name="x", title="x", dims=dims), "explicit", PlanSettings(sp=1, scope="attention")).key


def _ones() -> dict[str, int]:
    names = timeline(_key())
    return dict.fromkeys(set().union(*[a.size.symbols() for a in names.allocations]), 1)
