"""The two ends of a model: rows of the embedding, and the loss over the vocabulary."""

from __future__ import annotations

from mla_cost.language.dims import rank_share
from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import cast
from mla_cost.language.rules.exchange import TENSOR, all_reduce, recorded

REDUCED = ("maximum", "target logit", "sum")


@op("embedding")
def embedding(machine: Machine, label: str, weight: Tensor) -> Tensor:
    """One row of the weight [V h] for every position of a table of ids: [s b h]. Backward is a dense gradient.

    Where the vocabulary is divided, rows of other ranks are zeroed in place, whose backward masks the gradient into a
    copy before the dense one is made.
    """
    result = _looked_up(machine, label, weight)
    if not machine.predicates.rows_divided:
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
    machine.runs("copy", [result], [result])  # the rows that are looked up
    name, dims, dtype = weight.label, weight.dims, weight.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [weight], backward)
    return result


@op("cross_entropy", "log-softmax", kind="loss")
def log_softmax_loss(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """`F.cross_entropy` of logits [s b V]: the mean loss, a scalar that is not counted. Keeps the log-probabilities.

    Backward makes the gradient of the log-probabilities, then that of the logits; all are in the logits' dtype. Where
    the vocabulary is divided, what runs is torch's own `loss_parallel`, op by op: torch/distributed/tensor/parallel/
    loss.py, `_log_softmax`, `_nll_loss_forward` and `_nll_loss_and_log_softmax_backward`, pytorch/pytorch v2.13.0.
    """
    divided = machine.predicates.rows_divided
    kept = _log_softmax_divided(machine, label, logits) if divided else _log_probabilities(machine, label, logits)
    result = machine.uncounted(label)
    name, dims, dtype = logits.label, logits.dims, logits.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        made = _divided_gradient if divided else _gradient
        return [made(machine, label, name, dims, dtype)]

    machine.attach([result], [logits], backward, saved=[kept])
    return result


def _log_probabilities(machine: Machine, label: str, logits: Tensor) -> Tensor:
    return machine.new(f"{label} log-probabilities", logits.dims, logits.dtype)


def _gradient(machine: Machine, label: str, name: str, dims: tuple[str, ...], dtype: str) -> Tensor:
    of_log = machine.new(f"gradient of {label} log-probabilities", dims, dtype)
    made = machine.new(f"gradient of {name}", dims, dtype)
    del of_log
    return made


def _log_softmax_divided(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Log-softmax in fp32 over the ranks, whose reductions are out of place, and the target's part of it."""
    wide = cast(machine, f"{logits.label} in fp32", logits, "fp32")
    largest = _reduced_copy(machine, f"maximum of {logits.label}", wide)
    shifted = machine.new(f"{label} shifted logits", wide.dims, "fp32")
    exponentials = machine.new(f"{label} exponentials", wide.dims, "fp32")
    part = machine.new(f"sum of {logits.label} on one rank", wide.dims[:-1], "fp32")
    del exponentials
    sums = _reduced_copy(machine, f"sum of {logits.label}", wide, part)
    del part
    logarithms = machine.new(f"{label} logarithms", wide.dims[:-1], "fp32")
    found = _log_probabilities(machine, label, wide)
    kept = machine.elementwise(found.label, found, logits.dtype) if logits.dtype != "fp32" else found
    # largest, shifted, exponentials, their sum and logarithm, difference; a cast
    machine.runs("loss", [wide, wide, shifted, shifted, shifted, found], [shifted, shifted, found, kept], launches=7)
    del found, shifted, largest, sums, logarithms, wide
    _reduced_copy(machine, f"target logit of {logits.label}", kept)
    return kept


def _reduced_copy(machine: Machine, label: str, of: Tensor, part: Tensor | None = None) -> Tensor:
    """One number per position and rank, and the reduction of it over the ranks: a tensor of its own."""
    part = machine.new(f"{label} on one rank", of.dims[:-1], of.dtype) if part is None else part
    result = machine.copy(part, label)
    _reduced(machine, label, result)
    return result


def _divided_gradient(machine: Machine, label: str, name: str, dims: tuple[str, ...], dtype: str) -> Tensor:
    """(one at each target, negated, + exp of the log-probabilities) times the gradient of the loss."""
    at_targets = machine.new(f"{label} targets", dims, dtype)
    beside = [machine.new(f"{label} values at targets", dims[:-1], dtype)] if dtype != "fp32" else []
    beside.append(machine.new(f"{label} positions", dims[:-1], "int64"))
    exponentials = machine.new(f"{label} probabilities", dims, dtype)
    total = machine.new(f"{label} probabilities less targets", dims, dtype)
    del exponentials
    made = machine.new(f"gradient of {name}", dims, dtype)
    del at_targets, total, beside
    return made


@op("cross_entropy", kind="loss")
def cross_entropy(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """The same loss in place, as Megatron writes it: one fp32 copy of the logits becomes the probabilities it keeps.

    Where the vocabulary is divided, three fp32 numbers per position are reduced over the ranks in forward: the
    maximum, the target's logit and the sum. Backward makes the gradient of the logits in their own dtype.
    """
    probabilities = machine.new(f"{label} probabilities", logits.dims, "fp32")
    losses = machine.new(f"{label} per position", logits.dims[:-1], "fp32")
    for what in REDUCED:
        _reduced(machine, f"{what} of {logits.label}", losses)
    machine.runs("loss", [logits], [probabilities, losses], launches=len(REDUCED) + 1)
    result = machine.uncounted(label)
    name, dims, dtype = logits.label, logits.dims, logits.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(f"gradient of {name}", dims, dtype)]

    machine.attach([result], [logits], backward, saved=[probabilities])
    return result


def _reduced(machine: Machine, label: str, positions: Tensor) -> None:
    """One number per position [s b], reduced over the ranks that divide the vocabulary."""
    if machine.predicates.rows_divided:
        all_reduce(machine, TENSOR, label, positions, ("u", *positions.dims[1:]))


@op("cross_entropy", "overwriting", kind="loss")
def cross_entropy_overwriting(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """The same loss in one kernel that writes the gradient over the logits, whose storage alone it keeps.

    Beside them forward has three fp32 numbers per position; backward scales in place.
    """
    held = []
    for what in REDUCED:
        held.append(machine.new(f"{what} of {logits.label}", logits.dims[:-1], "fp32"))
        _reduced(machine, f"{what} of {logits.label}", held[-1])
    machine.runs("loss", [logits], [logits, *held])
    result = machine.uncounted(label)
    gradient = machine.view(logits, logits.axes)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.runs("loss", [gradient], [gradient])
        return [machine.view(gradient, gradient.axes)]

    machine.attach([result], [logits], backward, saved=[logits])
    return result


@op("chunked_loss", kind="loss")
def chunked_loss(machine: Machine, label: str, hidden: Tensor, weight: Tensor) -> Tensor:
    """Head and loss together, q of the s b positions at a time: hidden [s b h], weight [V h].

    Both gradients are made in forward and kept; backward scales them in place. Beside them forward has the logits of
    one chunk in their own dtype, then fp32 probabilities, one number per position, and the logits' gradient. Chunks
    come one after the other and need the same, so one stands for all; flops and what is reduced are those of all.
    """
    of_hidden = machine.new(f"gradient of {hidden.label}", hidden.dims, hidden.dtype)
    of_weight = machine.new(f"gradient of {weight.label}", weight.dims, weight.dtype)
    needed = rank_share(machine.predicates, hidden.dims, weight.dims[:1])
    every = machine.predicates.multiple((*hidden.dims, weight.dims[0]), 2)
    machine.flops(needed * 3, (every - needed) * 3)
    rows, inner, columns = hidden.dims[:-1], hidden.dims[-1:], weight.dims[:1]
    machine.multiplies(rows, columns, inner, dtype=hidden.dtype)
    logits = machine.bytes_of((*rows, *columns), hidden.dtype)
    wide = machine.bytes_of((*rows, *columns), "fp32")
    machine.runs("loss", [logits, wide], [wide, logits], launches=4)
    machine.multiplies_back(rows, columns, inner, dtype=hidden.dtype)
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
    if machine.predicates.rows_divided:
        rest = hidden.dims[1:-1]
        for what in REDUCED:
            recorded(machine, "all_reduce", TENSOR, f"{what} of logits", ("s", *rest), "fp32", ("u", *rest), times=2)
    gradient = machine.new("gradient of logits of a chunk", dims, hidden.dtype)
    del probabilities, position, gradient


@op("total_loss")
def total_loss(machine: Machine, label: str, losses: list[Tensor]) -> Tensor:
    """The sum of losses, a scalar that is not counted; each is handed a scalar gradient."""
    result = machine.uncounted(label)
    count = len(losses)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        return [gradients[0]] * count

    machine.attach([result], losses, backward)
    return result
