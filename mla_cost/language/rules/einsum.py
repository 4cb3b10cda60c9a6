"""einsum as torch runs it: permute to (shared, one side only), reshape to three dims, one bmm, view back.

The reshape copies where the permuted dims do not merge, and autograd keeps the copy. Whether that happens is read
off the operands' strides; nothing here knows which form it serves. Where no dim longer than one is summed, torch
multiplies element by element instead.
Source: aten/src/ATen/native/Linear.cpp, `einsum` and `sumproduct_pair`, pytorch/pytorch@006b3e67c188.
"""

from __future__ import annotations

from typing import NamedTuple

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import Tensors, op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import DeclarationError
from mla_cost.language.strides import Axes, Axis, can_view, like


class _Plan(NamedTuple):
    """Letters of one product. Letters whose dim has size one count as right-only, as in torch."""

    left: str
    right: str
    output: str
    shared: str
    left_only: str
    right_only: str
    summed: str
    dims: dict[str, str]

    def sizes(self, letters: str) -> tuple[str, ...]:
        return tuple(self.dims[letter] for letter in letters)


@op("einsum", kind="copy")
def einsum_of(machine: Machine, label: str, words: tuple[str, ...], left: Tensor, right: Tensor) -> Tensor:
    """The first word is the equation; `attention` after it marks a product that a causal mask halves."""
    if not words:
        raise DeclarationError('einsum needs its equation, as in einsum "sbnd,tbnd->bnst" q, key')
    equation, *rest = words
    return einsum(machine, label, equation, left, right, attention="attention" in rest)


@op("permute")
def permute(machine: Machine, words: tuple[str, ...], tensor: Tensor) -> Tensor:
    """The view that brings the axes named by the word into the order s b n d."""
    if len(words) != 1 or sorted(words[0]) != sorted("sbnd") or len(tensor.axes) != len(words[0]):
        raise DeclarationError('permute needs the present order of four axes, as in permute "bnsd" o')
    letters = words[0]
    view = machine.view(tensor, _pick(letters, tensor.axes, "sbnd"))

    def backward(gradients: Gradients) -> Tensors:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.view(gradient, _pick("sbnd", gradient.axes, letters))]

    machine.attach([view], [tensor], backward)
    return view


def einsum(machine: Machine, label: str, equation: str, left: Tensor, right: Tensor, attention: bool = False) -> Tensor:
    """The product that `equation` names, e.g. `sbnd,tbnd->bnst`; letters stand for axes by position."""
    plan = _plan(machine, equation, left, right)
    if not plan.summed:
        return _multiplied(machine, label, plan, left, right, attention)
    left = _folded(machine, left, plan.left, (plan.shared, plan.left_only, plan.summed))
    right = _folded(machine, right, plan.right, (plan.shared, plan.summed, plan.right_only))
    product = _bmm(machine, label, plan, left, right, attention)
    return _unfolded(machine, label, plan, product)


def _plan(machine: Machine, equation: str, left: Tensor, right: Tensor) -> _Plan:
    operands, _, output = equation.partition("->")
    first, _, second = operands.partition(",")
    dims = _bind(equation, first, left) | _bind(equation, second, right)
    _check(equation, first, left, second, right, output)
    big = {letter for letter, dim in dims.items() if not machine.predicates.is_one(dim)}
    shared = "".join(x for x in output if x in first and x in second and x in big)
    left_only = "".join(x for x in output if x in first and x in big and x not in shared)
    summed = "".join(sorted(x for x in dims if x not in output and x in big))
    right_only = "".join(x for x in output if x not in shared and x not in left_only)
    return _Plan(first, second, output, shared, left_only, right_only, summed, dims)


def _bind(equation: str, letters: str, tensor: Tensor) -> dict[str, str]:
    if len(letters) != len(tensor.axes):
        raise DeclarationError(
            f"einsum {equation!r}: {letters!r} names {len(letters)} axes, {tensor.label} has [{' '.join(tensor.dims)}]"
        )
    return dict(zip(letters, tensor.dims, strict=True))


def _check(equation: str, first: str, left: Tensor, second: str, right: Tensor, output: str) -> None:
    ours, theirs = dict(zip(first, left.dims, strict=True)), dict(zip(second, right.dims, strict=True))
    for letter in ours.keys() & theirs.keys():
        if ours[letter] != theirs[letter]:
            raise DeclarationError(
                f"einsum {equation!r}: {letter!r} is {ours[letter]} in {left.label} "
                f"and {theirs[letter]} in {right.label}"
            )
    unknown = set(output) - ours.keys() - theirs.keys()
    if unknown:
        raise DeclarationError(f"einsum {equation!r}: {''.join(sorted(unknown))!r} is in the result but in no operand")


def _pick(letters: str, axes: Axes, wanted: str) -> Axes:
    return tuple(axes[letters.index(letter)] for letter in wanted if letter in letters)


def _folded(machine: Machine, tensor: Tensor, letters: str, groups: tuple[str, str, str]) -> Tensor:
    """The operand permuted for bmm: a view where each group merges, else a copy. Backward permutes back: a view."""
    ones = "".join(letter for letter in letters if not any(letter in group for group in groups))
    order = "".join(groups) + ones
    axes = _pick(letters, tensor.axes, order)
    present = [_pick(letters, tensor.axes, group) for group in groups]
    view = machine.view(tensor, axes)
    if not can_view(machine.predicates, present):
        view = machine.copy(view, f"{tensor.label} copy")
    kept = "".join(letter for letter in order if letter in letters)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.view(gradient, _pick(kept, gradient.axes, letters))]

    machine.attach([view], [tensor], backward)
    return view


def _bmm(machine: Machine, label: str, plan: _Plan, left: Tensor, right: Tensor, attention: bool) -> Tensor:
    """The batched product. Backward makes the right operand's gradient first, then the left's."""
    kept = machine.inputs_kept(left, right)
    result = machine.new(label, plan.sizes(plan.shared + plan.left_only + plan.right_only), left.dtype)
    count = _count(machine, plan)
    machine.flops(count, attention=attention)
    batch, rows, columns, inner = map(plan.sizes, (plan.shared, plan.left_only, plan.right_only, plan.summed))
    machine.multiplies(rows, columns, inner, batch=batch, dtype=left.dtype)
    of_left, of_right = ((f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (left, right))

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops(count * 2, attention=attention)
        machine.multiplies(inner, columns, rows, batch=batch, dtype=of_right[2])
        machine.multiplies(rows, inner, columns, batch=batch, dtype=of_left[2])
        made = machine.new(*of_right)
        return [machine.new(*of_left), made]

    machine.attach([result], [left, right], backward, saved=kept)
    return result


def _count(machine: Machine, plan: _Plan) -> Polynomial:
    everything = dict.fromkeys(plan.left + plan.right)
    return machine.predicates.multiple(plan.sizes("".join(everything)), 2)


def _multiplied(machine: Machine, label: str, plan: _Plan, left: Tensor, right: Tensor, attention: bool) -> Tensor:
    """Nothing is summed but dims of size one, so torch multiplies element by element, broadcasting.

    Backward makes both products at full size, the right operand's first, then sums the left's and the right's.
    """
    predicates, dtype = machine.predicates, left.dtype
    letters = (plan.left, plan.right)
    spread = [_spread(plan, x, tensor.axes) for x, tensor in zip(letters, (left, right), strict=True)]
    kept = machine.inputs_kept(left, right)
    result = machine.new_as(label, like(predicates, *spread), dtype)
    count = _count(machine, plan)
    machine.flops(count, attention=attention)
    names = [f"gradient of {tensor.label}" for tensor in (left, right)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        machine.flops(count * 2, attention=attention)
        full = [machine.new_as(names[at], like(predicates, gradient.axes, spread[1 - at]), dtype) for at in (1, 0)]
        machine.runs("elementwise", [gradient, *full], full, launches=2, flops=count * 2)
        return [_summed(machine, plan, x, full.pop()) for x in letters]

    machine.runs("elementwise", [left, right], [result], flops=count)
    machine.attach([result], [left, right], backward, saved=kept)
    return result


def _spread(plan: _Plan, letters: str, axes: Axes) -> Axes:
    """An operand's axes in the order of the result, broadcast where it lacks a letter."""
    return tuple(axes[letters.index(x)] if x in letters else Axis(plan.dims[x], None) for x in plan.output)


def _summed(machine: Machine, plan: _Plan, letters: str, full: Tensor) -> Tensor:
    """A gradient of the result's dims as the operand's: summed, row-major, over dims that the operand lacks."""
    kept = "".join(x for x in plan.output if x in letters)
    axes = _pick(plan.output, full.axes, kept)
    if not all(machine.predicates.is_one(plan.dims[x]) for x in plan.output if x not in letters):
        summed = machine.new(full.label, plan.sizes(kept), full.dtype)
        machine.runs("elementwise", [full], [summed])
        full = summed
        axes = full.axes
    return machine.view(full, tuple(axes[kept.index(x)] if x in kept else Axis(plan.dims[x], ()) for x in letters))


def _unfolded(machine: Machine, label: str, plan: _Plan, product: Tensor) -> Tensor:
    """The result in the order asked for: a view. Backward folds the gradient, copying where it cannot be viewed."""
    order = plan.shared + plan.left_only + plan.right_only
    view = machine.view(product, _pick(order, product.axes, plan.output))

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        folded = machine.view(gradient, _pick(plan.output, gradient.axes, order))
        groups = [_pick(order, folded.axes, group) for group in (plan.shared, plan.left_only, plan.right_only)]
        if not can_view(machine.predicates, groups):
            folded = machine.copy(folded, f"gradient of {label} copy")
        return [folded]

    machine.attach([view], [product], backward)
    return view
