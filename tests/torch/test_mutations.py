"""A check that never fails proves nothing: declarations and rules are broken, one at a time, and validate sees each.

The cells are blocks of `mla-cost validate`; the executor runs once, since it is never broken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference.fake import run_fake
from mla_cost.checks.reference.spec import Spec
from mla_cost.checks.validation import allocator, cells, fake
from mla_cost.checks.validation.report import CheckRow
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.polynomial import ZERO
from mla_cost.language.program import Form, Kernel, Scheme
from mla_cost.language.rules import RULES, Call
from mla_cost.pricing import compile as cost

Patch = pytest.MonkeyPatch
BLOCKS = [spec for spec in cells.fake_cells("default") if spec.layers == 1 and spec.fused_attention == "stand-in"]
FEW = BLOCKS[
    1::7
]  # nearly every mutation is seen in these; that nothing disagrees in the others is for validate to say
record = cache(run_fake)


def module(name: str) -> ModuleType:
    """A module of rules; the package has functions of the same names."""
    return sys.modules[f"mla_cost.language.rules.{name}"]


# ---- ways to break a declaration


def reworded(old: str, new: str, *forms: str) -> Callable[[Patch], None]:
    """A line of the forms' text says something else."""

    def apply(patch: Patch) -> None:
        for name in forms:
            form = FORMS[name]
            assert isinstance(form, Form)
            assert old in form.text
            patch.setitem(FORMS, name, form._replace(text=form.text.replace(old, new)))

    return apply


def rekerneled(old: str, new: str, *kernels: str) -> Callable[[Patch], None]:
    """A line of the kernels' text says something else."""

    def apply(patch: Patch) -> None:
        for name in kernels:
            kernel: Kernel = KERNELS[name]
            assert old in kernel.text
            shared = kernel.shared_text and kernel.shared_text.replace(old, new)
            patch.setitem(KERNELS, name, kernel._replace(text=kernel.text.replace(old, new), shared_text=shared))

    return apply


def rescheduled(name: str, **changes: Any) -> Callable[[Patch], None]:
    """A scheme moves something else."""

    def apply(patch: Patch) -> None:
        scheme: Scheme = SCHEMES[name]
        moves: Any = {tag: move for tag, move in {**scheme.moves, **changes}.items() if move}
        patch.setitem(SCHEMES, name, scheme._replace(moves=moves))

    return apply


def unrequired(patch: Patch) -> None:
    """A scheme forgets its last condition."""
    scheme: Scheme = SCHEMES["latent-gather"]
    patch.setitem(SCHEMES, "latent-gather", scheme._replace(requires=scheme.requires[:-1]))


# ---- ways to break a rule


def keeps_more(name: str) -> Callable[[Patch], None]:
    """An op keeps its result too."""
    rule = RULES[name]

    def broken(call: Call, given: list[Tensor]) -> list[Tensor]:
        results = rule(call, given)
        edge = results[0].edge
        assert edge is not None
        edge[0].saved.append(Tensor(results[0].storage, results[0].axes, results[0].dtype, results[0].label))
        return results

    return lambda patch: patch.setitem(RULES, name, broken)


def keeps_nothing(name: str) -> Callable[[Patch], None]:
    """An op keeps nothing for backward."""
    rule = RULES[name]

    def broken(call: Call, given: list[Tensor]) -> list[Tensor]:
        results = rule(call, given)
        edge = results[0].edge
        assert edge is not None
        edge[0].saved.clear()
        return results

    return lambda patch: patch.setitem(RULES, name, broken)


def one_way(patch: Patch) -> None:
    """sequence_to_heads goes there, and its gradient never comes back: the transposed exchange is forgotten."""
    exchange = module("exchange")

    def back(machine: Machine, label: str, tensor: Tensor) -> Tensor:
        return machine.new(label, ("s", tensor.dims[1], "n", tensor.dims[3]))

    def broken(call: Call, given: list[Tensor]) -> list[Tensor]:
        return [exchange._with_transpose(call.machine, call.label, given[0], exchange._sequence_to_heads, back)]

    patch.setitem(RULES, "sequence_to_heads", broken)


def unrotated(patch: Patch) -> None:
    """RoPE without its rotated half: one product in place of five ops."""
    patch.setitem(RULES, "rope", RULES["scale"])


def unsummed(patch: Patch) -> None:
    """The gradient of an expanded axis is not summed."""
    split = module("split")

    def broken(call: Call, given: list[Tensor]) -> list[Tensor]:
        wide = split.expand(call.machine, call.label, given[0], 2, given[1].dims[2])

        def backward(gradients: Gradients) -> list[Tensor | None]:
            gradient = gradients[0]
            assert gradient is not None
            return [call.machine.view(gradient, (*gradient.axes[:2], *gradient.axes[3:]))]

        call.machine.attach([wide], [given[0]], backward)
        return [wide]

    patch.setitem(RULES, "expand", broken)


def uncopied(patch: Patch) -> None:
    """einsum takes every permuted operand for a view."""
    patch.setattr(module("einsum"), "can_view", lambda *_: True)


def forward_only(patch: Patch) -> None:
    """Backward computes nothing."""
    count = Machine.flops

    def broken(self: Machine, *args: object, **settings: object) -> None:
        if self.phase == "forward":
            count(self, *args, **settings)  # type: ignore[arg-type]

    patch.setattr(Machine, "flops", broken)


def to_itself(patch: Patch) -> None:
    """A rank counts what it keeps as sent."""
    patch.setattr(module("exchange"), "ONE", ZERO)


def first_come(patch: Patch) -> None:
    """Backward runs the node made first before the node made last."""
    engine = sys.modules["mla_cost.language.machine"]

    class Turned:
        heappush = staticmethod(lambda queue, item: queue.append(item))
        heappop = staticmethod(lambda queue: queue.pop(0))

    patch.setattr(engine, "heapq", Turned)


@dataclass(frozen=True)
class Mutation:
    """A way to be wrong, and a check that must see it."""

    apply: Callable[[Patch], None]
    seen_by: str


EAGER = ("eager", "eager-bmm")
MUTATIONS = {
    "an op is dropped": Mutation(
        rekerneled("scores = scale raw_scores", "scores = same raw_scores", *EAGER), "timeline"
    ),
    "a local lives on": Mutation(rekerneled("    drop raw_scores\n", "", *EAGER), "timeline"),
    "a query is not rebound": Mutation(reworded("        drop q_latent\n", "", "explicit", "absorbed"), "timeline"),
    "a weight has another dim": Mutation(
        reworded("y[S b h] = linear o, W_o[h n v]", "y = linear o, W_o[d_c n v]", "explicit"), "parameters"
    ),
    "parts are split in the wrong order": Mutation(
        reworded("k_nope[k], value[v] = split kv", "value[k], k_nope[v] = split kv", "explicit"), "program"
    ),
    "exchanges change places": Mutation(
        reworded(
            "exchange key key\n    exchange value value", "exchange value value\n    exchange key key", "explicit"
        ),
        "collectives",
    ),
    "the latent travels without its rotated key": Mutation(
        reworded("exchange latent key", "exchange latent latent", "absorbed"), "collectives"
    ),
    "a tensor is never sent": Mutation(reworded("    exchange value value\n", "", "explicit"), "program"),
    "the value is gathered": Mutation(rescheduled("kv-gather", value="sequence_to_heads"), "program"),
    "the output stays head-sharded": Mutation(rescheduled("latent-gather", output=None), "program"),
    "keys are gathered in place of sequence_to_heads": Mutation(
        rescheduled("ulysses", key="gather", value="gather"), "program"
    ),
    "a scheme forgets a condition": Mutation(unrequired, "refusals"),
    "einsum forgets its copy": Mutation(uncopied, "saved storages"),
    "a norm keeps its output": Mutation(keeps_more("norm"), "saved storages"),
    "a product with a number keeps something": Mutation(keeps_more("scale"), "saved storages"),
    "softmax keeps nothing": Mutation(keeps_nothing("softmax"), "saved storages"),
    "a fused kernel keeps no statistics": Mutation(
        rekerneled('fused "keep log-sum-exp: fp32 bns"', "fused", "flash", "mem-efficient"), "saved storages"
    ),
    "statistics are narrow": Mutation(rekerneled("fp32 bns", "bf16 bns", "flash", "mem-efficient"), "saved storages"),
    "an exchange forgets its transpose": Mutation(one_way, "collectives"),
    "rope rotates nothing": Mutation(unrotated, "timeline"),
    "an expanded gradient is not summed": Mutation(unsummed, "timeline"),
    "backward computes nothing": Mutation(forward_only, "product flops"),
    "a rank sends to itself": Mutation(to_itself, "collectives"),
    "backward runs in the order of forward": Mutation(first_come, "timeline"),
}


@pytest.fixture(autouse=True)
def executor_once(monkeypatch: Patch) -> Iterator[None]:
    """The executor's recordings are kept; what the model compiled is forgotten, before and after."""
    monkeypatch.setattr(fake, "run_fake", record)
    cost.timeline.cache_clear()
    yield
    cost.timeline.cache_clear()


def disagreeing(specs: list[Spec], check: Callable[[Spec], Iterator[CheckRow]]) -> Iterator[CheckRow]:
    """The rows that disagree, cell after cell."""
    return (row for spec in specs for row in check(spec) if row.status == "disagrees")


def every_row(*, beyond: bool = True) -> Iterator[CheckRow]:
    """What disagrees in few cells, then in the refusals, then in all cells as long as somebody asks."""
    yield from disagreeing(FEW, fake.check_cell)
    yield from (row for row in fake.check_refusals() if row.status == "disagrees")
    yield from disagreeing(BLOCKS if beyond else [], fake.check_cell)


def test_nothing_broken_nothing_seen() -> None:
    assert list(every_row(beyond=False)) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_seen(name: str, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        MUTATIONS[name].apply(patch)
        seen = next((row for row in every_row() if row.check == MUTATIONS[name].seen_by), None)
    assert seen is not None
    assert seen.detail


def test_a_difference_names_the_tensors_of_both_sides(monkeypatch: Patch) -> None:
    keeps_more("scale")(monkeypatch)
    row = next(row for row in every_row() if row.check == "saved storages")
    assert row.detail.startswith("only the model keeps ")
    assert "only the executor keeps nothing" in row.detail


@pytest.mark.parametrize("kind", ["strided_gradient", "merged"])
def test_the_real_allocator_sees_what_fake_tensors_cannot(kind: str, monkeypatch: Patch) -> None:
    """Workspace that is forgotten, and gradients that are never added in place, show on real tensors alone."""
    if kind == "merged":
        engine = sys.modules["mla_cost.language.machine"]
        monkeypatch.setattr(engine, "is_dense", lambda *_: False)
    else:
        monkeypatch.setattr(allocator, "kinds_of", lambda _: frozenset())
    specs = [spec for spec in cells.allocator_cells("quick") if spec.sp == 1]
    assert next(disagreeing(specs, allocator.check_allocator), None) is not None
    assert list(disagreeing(FEW[:5], fake.check_cell)) == []
