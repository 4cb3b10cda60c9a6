"""The two ends of a model: rows of the embedding, and the loss over the vocabulary."""

from __future__ import annotations

from mla_cost.engine import Gradients, Machine, Tensor
from mla_cost.rules.exchange import TENSOR, all_reduce


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
    if machine.facts.rows_divided:
        for what in ("maximum", "target logit", "sum"):
            all_reduce(machine, TENSOR, f"{what} of {logits.label}", losses, ("u", *losses.dims[1:]))
    result = machine.uncounted(label)
    name, dims, dtype = logits.label, logits.dims, logits.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [logits], backward, saved=[probabilities])
    return result


def total_loss(machine: Machine, label: str, losses: list[Tensor]) -> Tensor:
    """The sum of losses, a scalar that is not counted; each is handed a scalar gradient."""
    result = machine.uncounted(label)
    count = len(losses)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        return [gradients[0]] * count

    machine.attach([result], losses, backward)
    return result
