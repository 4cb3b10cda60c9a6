"""What a program text may name: tensors that are there, dims that are symbols, and the dims that its results have."""

from __future__ import annotations

from collections.abc import Mapping

from mla_cost.errors import nearest
from mla_cost.language.dims import CONSTANTS, SYMBOLS, Predicates
from mla_cost.language.machine import Tensor
from mla_cost.language.program import BoundName, DeclarationError

# a rank's part of a dim, which stands for the whole where a text shows it
_PARTS = {"S": ("s", "u", "S_in"), "s": ("u",), "n": ("l", "l_in")}


def tensor_of(name: str, names: Mapping[str, Tensor]) -> Tensor:
    """What a name holds.

    Raises:
        DeclarationError: nothing of that name, or none any more.

    """
    found = names.get(name)
    if found is None:
        raise DeclarationError(f"unknown tensor {name}", nearest=nearest(name, names))
    return found


def checked_dim(dim: str) -> None:
    """Refuse a dim that is no sum of symbols.

    Raises:
        DeclarationError: naming the part that is none.

    """
    for part in dim.split("+"):
        if part not in SYMBOLS and part not in CONSTANTS:
            raise DeclarationError(f"unknown dim {part}", nearest=nearest(part, SYMBOLS))


def check_dims(predicates: Predicates, result: BoundName, tensor: Tensor) -> None:
    """Compare the dims that a text shows of a result with those that its rule found.

    Raises:
        DeclarationError: they differ, or a dim is no symbol.

    """
    shown, found = result.dims or (str(result.dim),), tensor.dims
    if shown == found:
        return
    for dim in shown:
        checked_dim(dim)
    if result.dims:
        holds = len(shown) == len(found) and all(
            _stands_for(predicates, *pair) for pair in zip(shown, found, strict=True)
        )
    else:  # one dim alone, which its op asks for
        holds = any(_stands_for(predicates, shown[0], dim) for dim in found)
    if not holds:
        raise DeclarationError(f"{result.name} is [{' '.join(found)}], not [{' '.join(shown)}]")


def _stands_for(predicates: Predicates, shown: str, found: str) -> bool:
    """Whether a dim is the one shown, without what is absent, or a rank's part of it."""
    return found in {shown, predicates.present(shown), *_PARTS.get(shown, ())}
