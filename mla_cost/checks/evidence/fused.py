"""What "under a fused kernel" could have meant: every reading priced, and which come near the published difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

from mla_cost import api
from mla_cost.checks.evidence.source import Choices, directory
from mla_cost.inputs import catalog
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.yaml_files import load_mapping
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.resolve import Illegal, resolve

NEAR = 0.05
TARGETS = range(10, 31)  # GB: what else the same candidates would come near
READS = {"allocated_peak_bytes": "allocated peak", "peak_bytes": "peak", "saved_bytes": "saved"}


_FOUND: dict[str, Search] = {}  # by what is asked


class Reading(NamedTuple):
    """One reading and its figure: what `of` needs more than `against`."""

    of: str
    against: str
    device: str
    read: str
    at: Mapping[str, Any]
    gb: float

    def words(self) -> str:
        """The reading in words."""
        cell = ", ".join(f"{name.removeprefix('dims.')} {value}" for name, value in self.at.items())
        return f"{self.of} less {self.against} on {self.device}, {self.read}, {cell}"


class Tier(NamedTuple):
    """Candidates of one kind. near: within 5 %. nearest: the closest first. hits: TARGETS that some come near."""

    candidates: tuple[Reading, ...]
    near: tuple[Reading, ...]
    nearest: tuple[Reading, ...]
    hits: int


class Search:
    """Every reading of the published difference, priced when it is asked for."""

    def __init__(self, plan: Mapping[str, Any], cells: Choices, published: float) -> None:
        self.published = published
        self._plan = {name: value for name, value in plan.items() if name not in {"device", "kernel", "layers"}}
        self._cells = cells

    @cached_property
    def as_measured(self) -> Tier:
        """On the paper's metric and grid."""
        return self._tier({"layers": (1,)}, ("allocated_peak_bytes",))

    @cached_property
    def beyond(self) -> Tier:
        """With other metrics, stacks and degrees as well."""
        wide = questions()["fused"]["beyond"]
        return self._tier({name: tuple(values) for name, values in wide.items()}, tuple(READS))

    @cached_property
    def in_score_matrices(self) -> tuple[tuple[str, float], ...]:
        """The published difference in units of one S x S tensor."""
        return tuple(_score_matrices(self._plan, self._cells, self.published))

    def _tier(self, further: Choices, reads: tuple[str, ...]) -> Tier:
        return _tier(questions()["fused"], self._plan, {**self._cells, **further}, reads, self.published)

    def words(self) -> str:
        """The outcome in one sentence; the page tells what wider readings come to."""
        tier = self.as_measured
        near = tier.nearest[0]
        found = (
            f"{len(tier.near)} of {len(tier.candidates)} readings"
            if tier.near
            else f"none of {len(tier.candidates)} readings"
        )
        return (
            f"{found} on the paper's metric and grid comes within 5 %; the nearest is {near.words()}: {near.gb:.2f} GB"
        )


@cache
def questions() -> dict[str, Any]:
    """What the page asks beyond the rows: `configs/evidence/questions.yaml`."""
    return load_mapping(directory() / "questions.yaml")


def search(plan: Mapping[str, Any], cells: Choices, published: float) -> Search:
    """The readings of the published difference, each priced once a process."""
    key = repr((sorted(plan.items()), sorted(cells.items()), published))
    return _FOUND.setdefault(key, Search(plan, cells, published))


def _tier(
    asked: Mapping[str, Any], plan: Mapping[str, Any], cells: Choices, reads: tuple[str, ...], published: float
) -> Tier:
    found = tuple(_candidates(asked, plan, cells, reads))
    ordered = sorted(found, key=lambda candidate: abs(candidate.gb / published - 1))
    near = tuple(candidate for candidate in ordered if abs(candidate.gb / published - 1) <= NEAR)
    hits = sum(any(abs(candidate.gb / target - 1) <= NEAR for candidate in found) for target in TARGETS)
    return Tier(found, near, tuple(ordered[:5]), hits)


def _candidates(
    asked: Mapping[str, Any], plan: Mapping[str, Any], cells: Choices, reads: tuple[str, ...]
) -> Iterator[Reading]:
    for device, sides in asked["devices"].items():
        family = catalog.device(device).family
        for values in product(*cells.values()):
            at = dict(zip(cells, values, strict=True))
            left = [(side["name"], _priced({**plan, **at, **side["plan"]}, family)) for side in sides["of"]]
            right = [(side["name"], _priced({**plan, **at, **side["plan"]}, family)) for side in sides["against"]]
            for (of, ours), (against, theirs), read in product(left, right, reads):
                if ours is not None and theirs is not None:
                    gb = (getattr(ours, read) - getattr(theirs, read)) / 1e9
                    yield Reading(of, against, device, READS[read], at, gb)


def _priced(fields: Mapping[str, Any], family: str) -> BlockFigures | None:
    dims = {name.removeprefix("dims."): value for name, value in fields.items() if name.startswith("dims.")}
    rest = {name: value for name, value in fields.items() if not name.startswith("dims.")}
    form = rest.pop("form")
    settings = validated(PlanSettings, {"scope": "attention", **rest, "form": (form,), "dims": dims})
    try:
        return figures(resolve(api.model_with_dims(settings), form, settings), family, settings.layers)
    except Illegal:
        return None


def _score_matrices(plan: Mapping[str, Any], cells: Choices, published: float) -> Iterator[tuple[str, float]]:
    """The published difference in units of one S x S tensor of the rank's heads, in bf16."""
    heads = plan["dims.heads"]
    for values in product(*cells.values()):
        at: dict[str, Any] = dict(zip(cells, values, strict=True))
        matrix = 2 * int(at["seq_len"]) ** 2 * heads // int(at["sp"])
        yield f"seq_len {at['seq_len']}, sp {at['sp']}", published * 1e9 / matrix
