"""Fields that go together: zipped lists, and numbers that follow from others. Their combinations make one axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError, nearest
from mla_cost.inputs.settings import PlanSettings
from mla_cost.studies.sweep.axes import COUNTS, SweepAxis, axes_of
from mla_cost.studies.sweep.expressions import Expression, expression

MOST: Final = 1_000_000  # combinations, each of which is held
_ONE: Final = "numbers: lengths, batches, degrees, dims.*"


class JointAxis(NamedTuple):
    """Several fields whose values belong together, one of each in every combination.

    left_out: combinations for which an expression has no whole number above zero. why: the expressions.
    """

    names: tuple[str, ...]
    values: Sequence[tuple[int, ...]]
    left_out: int = 0
    why: str = ""

    @property
    def name(self) -> str:
        """All of them."""
        return " with ".join(self.names)

    @property
    def told(self) -> str:
        """How many combinations are left out, and why."""
        every = self.left_out + len(self.values)
        return (
            f"{self.left_out:,} of {every:,} combinations are left out: {self.why} is no whole number above zero there"
        )

    @property
    def parts(self) -> tuple[SweepAxis, ...]:
        """Each field with its value in every combination."""
        return tuple(SweepAxis(name, [each[at] for each in self.values]) for at, name in enumerate(self.names))


AnyAxis = SweepAxis | JointAxis


def parts_of(axis: AnyAxis) -> tuple[SweepAxis, ...]:
    """The fields of an axis, each with as many values as the axis has."""
    return axis.parts if isinstance(axis, JointAxis) else (axis,)


def all_axes(settings: PlanSettings, over: Mapping[str, Any], zipped: Mapping[str, Any]) -> list[AnyAxis]:
    """The axes of a sweep in the order given. over: values, or expressions of other fields; zipped: go side by side.

    Raises:
        InputError: as `axes_of`; lists of several lengths, or an expression that asks for what is no number here.

    """
    twice = next((name for name in zipped if name in over), None)
    if twice is not None:
        raise InputError("is zipped and gone over as well; leave one of the two out", field=f"over {twice}")
    read = {name: expression(name, given) for name, given in over.items() if _is_number(settings, name)}
    follow = {name: each for name, each in read.items() if each is not None}
    own = axes_of(settings, {name: given for name, given in over.items() if name not in follow})
    together = _zip(settings, axes_of(settings, zipped)) if zipped else None
    if not follow:
        return [*own, *([together] if together else [])]
    asked = {name for each in follow.values() for name in each.names}
    known: list[AnyAxis] = [axis for axis in own if axis.name in asked]
    known += [together] if together and asked & set(together.names) else []
    joint = _following(settings, known, follow)
    rest = [axis for axis in own if axis.name not in asked]
    return [*rest, *([together] if together and together not in known else []), joint]


def _zip(settings: PlanSettings, axes: Sequence[SweepAxis]) -> JointAxis:
    for axis in axes:
        _require_number(settings, axis.name)
    lengths = {axis.name: len(axis.values) for axis in axes}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise InputError(f"lists of one length go side by side, not {told}", field="--zip")
    if len(axes) < 2:
        raise InputError("two fields or more go side by side", field="--zip", allowed="sp=1,2,4 dp=8,4,2")
    return JointAxis(tuple(lengths), list(zip(*(map(int, axis.values) for axis in axes), strict=True)))


def _is_number(settings: PlanSettings, name: str) -> bool:
    return name in COUNTS[settings.scope] or (settings.scope == "attention" and str(name).startswith("dims."))


def _require_number(settings: PlanSettings, name: str) -> None:
    counts = COUNTS[settings.scope]
    if not _is_number(settings, name):
        allowed = f"{', '.join(counts)}{', dims.*' if settings.scope == 'attention' else ''}"
        raise InputError("goes together with nothing: it is no number here", field=name, allowed=allowed,
                         nearest=nearest(name, counts))  # fmt: skip


def _following(settings: PlanSettings, known: Sequence[AnyAxis], follow: Mapping[str, Expression]) -> JointAxis:
    """The combinations of the axes that expressions ask for, with what follows from each."""
    order = list(_ordered(follow))
    names = [part.name for axis in known for part in parts_of(axis)]
    for name in (*names, *follow):
        _require_number(settings, name)
    asked = dict.fromkeys(name for each in follow.values() for name in each.names)
    fixed = {name: _stated(settings, name) for name in asked if name not in names and name not in follow}
    total = prod(len(axis.values) for axis in known)
    if total > MOST:
        raise InputError(f"{total:,} combinations", field="over", allowed=f"at most {MOST:,} with expressions")
    found = []
    for combination in product(*(axis.values for axis in known)):
        flat = [value for each in combination for value in (each if isinstance(each, tuple) else (each,))]
        values = {**fixed, **dict(zip(names, flat, strict=True))}
        if _fill(values, order, follow):
            found.append(tuple(int(values[name]) for name in (*names, *follow)))
    why = ", ".join(f"{name} = {each.text}" for name, each in follow.items())
    if not found:
        raise InputError(f"{why} is no whole number above zero for any combination", field="over")
    joint = JointAxis((*names, *follow), found, total - len(found), why)
    axes_of(settings, {part.name: list(dict.fromkeys(part.values)) for part in joint.parts})  # their bounds
    return joint


def _fill(values: dict[str, int], order: Sequence[str], follow: Mapping[str, Expression]) -> bool:
    """Whether every expression has a whole number above zero, which is put among the values."""
    for name in order:
        number = follow[name].at(values)
        if number is None or number < 1:
            return False
        values[name] = number
    return True


def _ordered(follow: Mapping[str, Expression]) -> Iterator[str]:
    """Expressions after those that they ask for.

    Raises:
        InputError: a circle.

    """
    left = dict(follow)
    while left:
        ready = [name for name, each in left.items() if not left.keys() & set(each.names)]
        if not ready:
            told = " and ".join(f"{name} = {each.text}" for name, each in left.items())
            raise InputError(f"{told} go in a circle", field="over")
        yield from ready
        left = {name: each for name, each in left.items() if name not in ready}


def _stated(settings: PlanSettings, name: str) -> int:
    """What a plan has of a field that is not gone over.

    Raises:
        InputError: a field that is no number here, or that nobody states.

    """
    counts = COUNTS[settings.scope]
    value = getattr(settings, name, None) if name in counts else None
    if type(value) is not int or (name == "sp" and name not in settings.model_fields_set and settings.scope != "model"):
        allowed = f"{', '.join(counts)} with a value, or a field that is gone over"
        raise InputError(
            "an expression knows no such number", field=name, allowed=allowed, nearest=nearest(name, counts)
        )
    return value
