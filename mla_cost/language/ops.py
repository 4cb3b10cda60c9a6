"""What an op is: a rule that declares itself with `@op`, and that reads how texts call it off its own signature.

    @op("linear")
    def linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor: ...

Parameters annotated `Tensor` are the op's operands, in order, and one annotated `list[Tensor]` takes all that follow.
The others are asked of the call by their names: `machine`, `label`, `dim` (the last dim of the first result), `parts`
(label and last dim of every result), `words` (those in quotes, which are data then) or the `call` itself. What a rule
returns are its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from mla_cost.language.machine import Machine, Tensor
from mla_cost.language.program import BoundName, DeclarationError
from mla_cost.language.timeline import WorkClass

Tensors = list[Tensor]
Part = tuple[str, str]
# what an op makes of an operand that is absent: nothing either, the same without it, or no sense at all
Absent = Literal["passed on", "left out", "refused"]
Function = TypeVar("Function", bound=Callable[..., Any])


class Call(NamedTuple):
    """One op as a text calls it. label: what its first result is called in tables."""

    machine: Machine
    results: tuple[BoundName, ...]
    words: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def label(self) -> str:
        """The first result's name, readable."""
        return readable(self.results[0].name)


def readable(name: str) -> str:
    """A variable's name as tables print it."""
    return name.replace("_", " ")


def needed(result: BoundName) -> str:
    """The dim that an op needs of a result.

    Raises:
        DeclarationError: the text does not give it.

    """
    if result.dim is None:
        raise DeclarationError(f"{result.name} needs its dim, as in {result.name}[d]")
    return result.dim


def _parts(call: Call) -> list[Part]:
    return [(readable(result.name), needed(result)) for result in call.results]


_ASKED: dict[str, Callable[[Call], Any]] = {
    "machine": lambda call: call.machine,
    "label": lambda call: call.label,
    "dim": lambda call: needed(call.results[0]),
    "parts": _parts,
    "words": lambda call: call.words,
    "call": lambda call: call,
}


class Rule:
    """One op: its name with the word that selects it, its operands, and the function that runs it."""

    __slots__ = ("absent", "asked", "follows", "function", "kind", "name", "operands", "worded")

    def __init__(self, name: str, function: Callable[..., Any], absent: Absent, kind: WorkClass) -> None:
        kinds = function.__annotations__
        own = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.name = name
        self.function = function
        self.absent = absent
        self.kind = kind
        self.operands = tuple(name for name in own if kinds[name] == "Tensor")
        self.follows = next((name for name in own if kinds[name] in {"list[Tensor]", "Tensors"}), "")
        self.worded = "words" in own
        self.asked = tuple((name, _ASKED.get(name)) for name in own)

    def __call__(self, call: Call, given: Tensors) -> Tensors:
        """Run on these operands; one tensor for every result.

        Raises:
            DeclarationError: operands that the op does not take.

        """
        if call.machine.predicates.zeros:
            without = [tensor for tensor in given if not tensor.is_absent(call.machine.predicates)]
            if len(without) < len(given):
                return self._without(call, given, without)
        return self._run(call, given)

    def _run(self, call: Call, given: Tensors) -> Tensors:
        self._check(given)
        call.machine.begins(self.kind)
        waiting, arguments = list(given), []
        for name, asked in self.asked:
            if asked is not None:
                arguments.append(asked(call))
            else:
                arguments.append(waiting if name == self.follows else waiting.pop(0))
        made = self.function(*arguments)
        return [made] if isinstance(made, Tensor) else list(made)

    def _check(self, given: Tensors) -> None:
        if len(given) == len(self.operands) or (self.follows and len(given) >= len(self.operands)):
            return
        wanted = ", ".join((*self.operands, *([f"{self.follows}.."] if self.follows else [])))
        raise DeclarationError(f"{self.name} takes {wanted or 'nothing'}; {len(given)} given")

    def _without(self, call: Call, given: Tensors, present: Tensors) -> Tensors:
        """What the op makes where an operand is absent: a dim of size zero is an identity of the language."""
        if self.absent == "passed on":
            absent = next(tensor for tensor in given if tensor not in present)
            return [call.machine.absent(readable(result.name), absent.dims) for result in call.results]
        if self.absent == "left out" and present:
            return present if len(present) == 1 else self._run(call, present)
        missing = " and ".join(tensor.label for tensor in given if tensor not in present)
        raise DeclarationError(f"{self.name} needs {missing}, which is absent here")


Runs = Callable[[Call, Tensors], Tensors]
OPS: dict[str, Runs] = {}  # what has declared itself so far; `rules.RULES` is all of it


def op(
    name: str, word: str = "", *, absent: Absent = "refused", kind: WorkClass = "elementwise"
) -> Callable[[Function], Function]:
    """Declare a function to be the rule of an op, or of one way to run it that a text asks for by a `word`.

    kind: the class of what it runs on the device without telling it (`Machine.runs`): a kernel that reads the operands
    and writes what is made.
    """

    def declare(function: Function) -> Function:
        full = spelled(name, word)
        OPS[full] = Rule(full, function, absent, kind)
        return function

    return declare


def spelled(name: str, word: str) -> str:
    """An op with its word as texts write it: `gather "tp"`."""
    return f'{name} "{word}"' if word else name
