"""Every op of the program language and the rule that runs it. One file per op family holds all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.program import Result
from mla_cost.language.rules import elementwise, exchange, split
from mla_cost.language.rules.attention import Kept, fused_attention
from mla_cost.language.rules.einsum import einsum
from mla_cost.language.rules.matmul import linear
from mla_cost.language.rules.norm import composite_norm, norm
from mla_cost.language.rules.rope import rope
from mla_cost.language.rules.softmax import softmax


class Call(NamedTuple):
    """One op with its operands. label: what its first result is called in tables."""

    machine: Machine
    results: tuple[Result, ...]
    words: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def label(self) -> str:
        """The first result's name, readable."""
        return readable(self.results[0].name)


def readable(name: str) -> str:
    """A variable's name as tables print it."""
    return name.replace("_", " ")


Tensors = list[Tensor]
Rule = Callable[[Call, Tensors], Tensors]


def _linear(call: Call, given: Tensors) -> Tensors:
    return [linear(call.machine, call.label, given[0], given[1])]


def _norm(call: Call, given: Tensors) -> Tensors:
    rule = composite_norm if call.settings["norm"] == "composite" else norm
    return [rule(call.machine, call.label, given[0], given[1])]


def _rope(call: Call, given: Tensors) -> Tensors:
    return [rope(call.machine, call.label, given[0])]


def _split(call: Call, given: Tensors) -> Tensors:
    parts = [(readable(result.name), needed(result)) for result in call.results]
    return split.split(call.machine, given[0], parts)


def _concat(call: Call, given: Tensors) -> Tensors:
    dim = "+".join(tensor.dims[-1] for tensor in given)
    return [split.concat(call.machine, call.label, given, dim)]


def _expand(call: Call, given: Tensors) -> Tensors:
    """One row for every head that the second operand has."""
    return [split.expand(call.machine, call.label, given[0], 2, given[1].dims[2])]


def _copied(call: Call, given: Tensors) -> Tensors:
    return [split.contiguous(call.machine, call.label, given[0])]


def _slice(call: Call, given: Tensors) -> Tensors:
    tensor = given[0]
    return [split.narrow(call.machine, call.label, tensor, len(tensor.axes) - 1, needed(call.results[0]))]


def _pad(call: Call, given: Tensors) -> Tensors:
    """Filled up to the width of the second operand."""
    return [split.pad(call.machine, call.label, given[0], given[1].dims[-1])]


def _like_value(call: Call, given: Tensors) -> Tensors:
    """Cut back to the width of the second operand."""
    tensor = given[0]
    return [split.narrow(call.machine, call.label, tensor, len(tensor.axes) - 1, given[1].dims[-1])]


def _scale(call: Call, given: Tensors) -> Tensors:
    return [elementwise.multiply(call.machine, call.label, given[0])]


def _mask(call: Call, given: Tensors) -> Tensors:
    return [elementwise.mask(call.machine, call.label, given[0])]


def _softmax(call: Call, given: Tensors) -> Tensors:
    wanted = call.settings["softmax_dtype"]
    return [softmax(call.machine, call.label, given[0], given[0].dtype if wanted == "activation" else wanted)]


def _einsum(call: Call, given: Tensors) -> Tensors:
    equation, *rest = call.words
    return [einsum(call.machine, call.label, equation, given[0], given[1], attention="attention" in rest)]


def _permute(call: Call, given: Tensors) -> Tensors:
    """The view that brings the axes named by the word into the order s b n d."""
    letters = call.words[0]
    tensor = given[0]
    axes = tuple(tensor.axes[letters.index(letter)] for letter in "sbnd")
    view = call.machine.view(tensor, axes)
    back = tuple("sbnd".index(letter) for letter in letters)
    call.machine.attach([view], [tensor], lambda grads: [_reordered(call.machine, grads[0], back)])
    return [view]


def _reordered(machine: Machine, gradient: Tensor | None, order: tuple[int, ...]) -> Tensor:
    assert gradient is not None
    return machine.view(gradient, tuple(gradient.axes[at] for at in order))


def _fused(call: Call, given: Tensors) -> Tensors:
    query, key, value = given
    letters = dict(zip("sbnd", query.dims, strict=True)) | {"8": "8"}
    kept = [_kept(word[5:], letters) for word in call.words if word.startswith("keep ")]
    return [fused_attention(call.machine, call.label, query, key, value, kept)]


def _kept(text: str, letters: Mapping[str, str]) -> Kept:
    label, _, layout = text.partition(": ")
    dtype, _, dims = layout.partition(" ")
    return Kept(label, dtype, tuple(letters[letter] for letter in dims))


def _sequence_to_heads(call: Call, given: Tensors) -> Tensors:
    return [exchange.sequence_to_heads(call.machine, call.label, given[0])]


def _heads_to_sequence(call: Call, given: Tensors) -> Tensors:
    return [exchange.heads_to_sequence(call.machine, call.label, given[0])]


def _gather(call: Call, given: Tensors) -> Tensors:
    return [exchange.gather(call.machine, call.label, given[0])]


def _own_heads(call: Call, given: Tensors) -> Tensors:
    """This rank's rows of a weight."""
    return [split.narrow(call.machine, given[0].label, given[0], given[0].position("n"), "l")]


def needed(result: Result) -> str:
    """The dim that an op needs of a result."""
    if result.dim is None:
        raise ValueError(f"{result.name} needs its dim, as in {result.name}[d]")
    return result.dim


_RULES: dict[str, Rule] = {
    "linear": _linear,
    "norm": _norm,
    "rope": _rope,
    "split": _split,
    "concat": _concat,
    "expand": _expand,
    "contiguous": _copied,
    "slice": _slice,
    "pad": _pad,
    "cut": _like_value,
    "scale": _scale,
    "mask": _mask,
    "softmax": _softmax,
    "einsum": _einsum,
    "permute": _permute,
    "fused": _fused,
    "sequence_to_heads": _sequence_to_heads,
    "heads_to_sequence": _heads_to_sequence,
    "gather": _gather,
    "own_heads": _own_heads,
}


def rule(name: str) -> Rule:
    """The rule of an op. What only layers use is imported when the first of it is asked for."""
    return _RULES[name] if name in _RULES else _complete()[name]


def _complete() -> dict[str, Rule]:
    """The table with the rules of layers: the same table for all, so that a patch of it is a patch of what runs."""
    from mla_cost.language.rules.layer_ops import LAYER_RULES

    for name, found in LAYER_RULES.items():
        _RULES.setdefault(name, found)
    return _RULES


def __getattr__(name: str) -> dict[str, Rule]:
    """RULES is every op whoever asks first, and a block of attention, which reads no table, still imports its own."""
    if name == "RULES":
        return _complete()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    RULES: dict[str, Rule]

__all__ = ["RULES", "Call", "Rule", "Tensors", "needed", "readable", "rule"]
