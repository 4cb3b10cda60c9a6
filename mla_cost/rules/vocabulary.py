"""The two ends of a model: rows of the embedding, and the loss over the vocabulary."""

from __future__ import annotations

from mla_cost.engine import Gradients, Machine, Tensor
from mla_cost.rules.exchange import TENSOR, all_reduce, recorded

REDUCED = ("maximum", "target logit", "sum")


def embedding(machine: Machine, label: str, weight: Tensor) -> Tensor:
    """One row of the weight [V h] for every position of a table of ids: [s b h]. Backward is a dense gradient.

    Where the vocabulary is divided, rows of other ranks are zeroed in place, whose backward masks the gradient into a
    copy before the dense one is made.
    """
    result = _looked_up(machine, label, weight)
    if not machine.facts.rows_divided:
        return result
    masked = machine.view(result, result.axes)
    name = result.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.copy(gradient, f"gradient of {name}, masked")]

    machine.attach([masked], [result], backward)
    return masked


def _looked_up(machine: Machine, label: str, weight: Tensor) -> Tensor:
    result = machine.new(label, ("s", "b", weight.dims[-1]), weight.dtype)
    name, dims, dtype = weight.label, weight.dims, weight.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [weight], backward)
    return result


def cross_entropy(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """The mean loss of logits [s b V], a scalar that is not counted. Keeps fp32 probabilities.

    Where the vocabulary is divided, three fp32 numbers per position are reduced over the ranks in forward: the
    maximum, the target's logit and the sum. Backward makes the gradient of the logits in their own dtype.
    """
    probabilities = machine.new(f"{label} probabilities", logits.dims, "fp32")
    losses = machine.new(f"{label} per position", logits.dims[:-1], "fp32")
    for what in REDUCED:
        _reduced(machine, f"{what} of {logits.label}", losses)
    result = machine.uncounted(label)
    name, dims, dtype = logits.label, logits.dims, logits.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [logits], backward, saved=[probabilities])
    return result


def _reduced(machine: Machine, label: str, positions: Tensor) -> None:
    """One number per position [s b], reduced over the ranks that divide the vocabulary."""
    if machine.facts.rows_divided:
        all_reduce(machine, TENSOR, label, positions, ("u", *positions.dims[1:]))


def cross_entropy_overwriting(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """The same loss in one kernel that writes the gradient over the logits, whose storage alone it keeps.

    Beside them forward has three fp32 numbers per position; backward scales in place.
    """
    held = []
    for what in REDUCED:
        held.append(machine.new(f"{what} of {logits.label}", logits.dims[:-1], "fp32"))
        _reduced(machine, f"{what} of {logits.label}", held[-1])
    result = machine.uncounted(label)
    gradient = machine.view(logits, logits.axes)
    machine.attach([result], [logits], lambda _: [machine.view(gradient, gradient.axes)], saved=[logits])
    return result


def chunked_loss(machine: Machine, label: str, hidden: Tensor, weight: Tensor) -> Tensor:
    """Head and loss together, q of the s b positions at a time: hidden [s b h], weight [V h].

    Both gradients are made in forward and kept; backward scales them in place. Beside them forward has the logits of
    one chunk in their own dtype, then fp32 probabilities, one number per position, and the logits' gradient. Chunks
    come one after the other and need the same, so one stands for all; flops and what is reduced are those of all.
    """
    of_hidden = machine.new(f"gradient of {hidden.label}", hidden.dims, hidden.dtype)
    of_weight = machine.new(f"gradient of {weight.label}", weight.dims, weight.dtype)
    machine.flops(machine.facts.elements((*hidden.dims, weight.dims[0])) * 6)
    _chunk(machine, label, hidden, weight)
    result = machine.uncounted(label)
    made = [machine.view(tensor, tensor.axes) for tensor in (of_hidden, of_weight)]
    saved = [of_hidden, of_weight]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.view(tensor, tensor.axes) for tensor in made]

    machine.attach([result], [hidden, weight], backward, saved=saved)
    return result


def _chunk(machine: Machine, label: str, hidden: Tensor, weight: Tensor) -> None:
    """What one chunk has alive at a time; what it reduces is that of all positions."""
    dims = ("q", weight.dims[0])
    logits = machine.new("logits of a chunk", dims, hidden.dtype)
    probabilities = machine.new(f"{label} probabilities of a chunk", dims, "fp32")
    del logits
    position = machine.new(f"{label} per position of a chunk", dims[:1], "fp32")
    if machine.facts.rows_divided:
        rest = hidden.dims[1:-1]
        for what in REDUCED:
            recorded(machine, "all_reduce", TENSOR, f"{what} of logits", ("s", *rest), "fp32", ("u", *rest), times=2)
    gradient = machine.new("gradient of logits of a chunk", dims, hidden.dtype)
    del probabilities, position, gradient


def total_loss(machine: Machine, label: str, losses: list[Tensor]) -> Tensor:
    """The sum of losses, a scalar that is not counted; each is handed a scalar gradient."""
    result = machine.uncounted(label)
    count = len(losses)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        return [gradients[0]] * count

    machine.attach([result], losses, backward)
    return result
