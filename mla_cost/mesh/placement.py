"""Which layers each chunk of each stage holds, and layouts as even as can be."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import NamedTuple

from mla_cost.errors import InputError
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.layout_string import parse_layout
from mla_cost.mesh.legality import Shape, pipeline_problems


class Chunk(NamedTuple):
    """One virtual stage: layers [first, first + num_layers) from 0, MTP modules, whether it embeds and has the loss."""

    embedding: bool
    first: int
    num_layers: int
    num_mtp: int
    loss: bool

    @property
    def layers(self) -> range:
        """Indices of its transformer layers."""
        return range(self.first, self.first + self.num_layers)


def stages(parallel: Parallel, num_layers: int, num_mtp: int = 0) -> tuple[tuple[Chunk, ...], ...]:
    """What each stage holds, chunk by chunk: `stages(...)[stage][chunk]`.

    Chunk j of stage i is the (j pp + i)-th part of the model. Without a layout string the embedding is in the first
    part, MTP modules and the loss in the last.

    Raises:
        InputError: the layout string is not one, or the layers cannot be split so; with what to change.

    """
    found = next(pipeline_problems(parallel, Shape(heads=1, num_layers=num_layers, num_mtp=num_mtp)), None)
    if found is not None:
        raise InputError(found.text, field=found.field)
    parts = _parts(parallel, num_layers, num_mtp)
    firsts = [0, *accumulate(part.count("t") for part in parts)]
    chunks = [_chunk(part, first) for part, first in zip(parts, firsts, strict=False)]
    return tuple(tuple(chunks[stage :: parallel.pp]) for stage in range(parallel.pp))


def implied_layout(parallel: Parallel, num_layers: int, num_mtp: int) -> str | None:
    """The layout taken where layers do not divide over the parts and none is stated; None where nothing is implied."""
    parts = parallel.pp * parallel.virtual_stages
    stated = (parallel.layout, parallel.first_layers, parallel.last_layers)
    if any(each is not None for each in stated) or parts > num_layers or num_layers % parts == 0:
        return None
    return even_layout(num_layers, num_mtp, parts)


def even_layout(num_layers: int, num_mtp: int, parts: int) -> str:
    """A layout of `parts` parts as equal as can be; the ends, which hold embedding and loss, have the fewer layers."""
    each, more = divmod(num_layers, parts)
    fewer = [parts - 1, 0, *range(parts - 2, 0, -1)][: parts - more]
    sizes = [each if part in fewer else each + 1 for part in range(parts)]
    middle = "".join(_repeated("t" * size, len(list(equal))) for size, equal in groupby(sizes[1:-1]))
    return f"E{'t' * sizes[0]}|{middle}{'t' * sizes[-1]}{'m' * num_mtp}L"


def _repeated(part: str, times: int) -> str:
    return f"{part}|" if times == 1 else f"({part}|)*{times}"


def _parts(parallel: Parallel, num_layers: int, num_mtp: int) -> tuple[str, ...]:
    """The letters of each part of a legal split, in the order of the model."""
    layout = parallel.layout or implied_layout(parallel, num_layers, num_mtp)
    if layout is not None:
        return parse_layout(layout)
    per_stage = _layers_per_stage(parallel, num_layers)
    each = ["t" * (layers // parallel.virtual_stages) for layers in per_stage]
    middle = "|".join(each * parallel.virtual_stages)
    return tuple(f"E{middle}{'m' * num_mtp}L".split("|"))


def _layers_per_stage(parallel: Parallel, num_layers: int) -> list[int]:
    first, last, p = parallel.first_layers, parallel.last_layers, parallel.pp
    stated = [layers for layers in (first, last) if layers is not None]
    middle = p - len(stated)
    each = (num_layers - sum(stated)) // middle if middle else 0
    starts = [] if first is None else [first]
    return [*starts, *[each] * middle, *([] if last is None else [last])]


def _chunk(part: str, first: int) -> Chunk:
    return Chunk("E" in part, first, part.count("t"), part.count("m"), "L" in part)
