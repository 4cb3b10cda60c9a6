"""What `search` answers, and how it is found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mla_cost import api
from mla_cost.declared import defaults
from mla_cost.declared.forms import ALIASES
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import by_own_names
from mla_cost.pricing.unpriced import refusal
from mla_cost.results import plain
from mla_cost.studies.search.miss import miss_of
from mla_cost.studies.search.options import (
    CHOICES,
    CHOSEN,
    DEGREES,
    Options,
    SearchQuestion,
    axes,
    options,
    require_forms,
    unsaid,
)
from mla_cost.studies.search.pool import Ranked, Watch, priced, unwatched
from mla_cost.studies.search.records import Candidate, Miss, Ruled
from mla_cost.studies.search.reported import candidate, checked
from mla_cost.studies.search.runner_up import lost
from mla_cost.studies.search.space import Space
from mla_cost.studies.search.weight import sources

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA: Final = "mla-cost/search/1"
SAMPLE: Final = 8  # of the ranked and of the Pareto set that are priced by `plan` too


class Found:
    """The answer of a search. Prints as a table; `to_json` gives what `mla-cost search --format json` prints.

    counts: candidates by status. ruled_out: what each rule forbids. results: those that fit, in order. pareto: those
    that fit and that no other equals or beats in devices, required bytes, bytes sent and flops at once; time_pareto: in
    devices, memory left and seconds of a step. runner_up: why the second lost. nearest_miss: None where something fits.
    """

    schema = SCHEMA

    def __init__(
        self,
        *,
        inputs: Mapping[str, Any],
        counts: Mapping[str, int],
        ruled_out: tuple[Ruled, ...],
        results: tuple[Candidate, ...],
        pareto: tuple[Candidate, ...],
        time_pareto: tuple[Candidate, ...],
        runner_up: str | None,
        nearest_miss: Miss | None,
    ) -> None:
        self.inputs = inputs
        self.counts = counts
        self.ruled_out = ruled_out
        self.results = results
        self.pareto = pareto
        self.time_pareto = time_pareto
        self.runner_up = runner_up
        self.nearest_miss = nearest_miss

    @property
    def candidates(self) -> int:
        """How many were priced."""
        return sum(self.counts.values())

    @property
    def best(self) -> Candidate | None:
        """The first in order; None where nothing fits."""
        return self.results[0] if self.results else None

    @property
    def refused(self) -> str:
        """Why nothing is legal, with what to change; empty where something is."""
        miss = self.nearest_miss
        return "; ".join(miss.problems) if miss is not None and miss.candidate is None else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object as plain dicts and lists."""
        return {
            "schema": self.schema,
            "inputs": plain(self.inputs),
            "candidates": self.candidates,
            "counts": dict(self.counts),
            "ruled_out": plain(self.ruled_out),
            "results": plain(self.results),
            "pareto": plain(self.pareto),
            "time_pareto": plain(self.time_pareto),
            "runner_up": self.runner_up,
            "nearest_miss": plain(self.nearest_miss),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def _repr_html_(self) -> str:
        """The rows as a table, for notebooks."""
        from mla_cost.results import html

        return html.table(Candidate._fields, plain(self.results))

    def __rich__(self) -> RenderableType:
        """The table, for rich."""
        from mla_cost.views.search_table import search_table

        return search_table(self.to_dict())

    def __repr__(self) -> str:
        """The table as text."""
        from mla_cost.views.search_table import search_text

        return search_text(self.to_dict())


def search(
    model: str | os.PathLike[str] = defaults.MODEL,
    device: str | os.PathLike[str] = defaults.DEVICES[0],
    *,
    devices: int | str | Sequence[int],
    global_batch: int,
    form: str | Sequence[str] = "all",
    dims: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Found:
    """Every legal way to train a model on so many devices, priced; the best of those that fit, by tokens a second.

    devices: a number, or several as `64..1024*2` or a list; fewer come first. global_batch: sequences in an optimizer
    step; micro-batches follow. Searched: tp, sp, pp, ep, micro_batch, scheme, sharding, remat; each may be narrowed by
    a value, a list or a text such as `1..8*2`, and etp and virtual_stages (1) widened. dp and the layers of each stage,
    as even as can be, follow. Limits: max_tp (one node of the device), max_sp, max_pp, max_ep (none), max_micro_batch
    (4), max_idle (20; per cent of a pipeline's schedule). by: `time` (seconds of a step, as `plan` predicts them; a
    global batch is the same for all, so the least time is the most tokens a second), `weight` (seconds at peak rates,
    bubbles and both kinds of links counted: an order, no prediction, and what ranks where a device's file has no
    ceilings), `sent`, `required`, `flops`, `idle` or `devices`, or several, the smallest first; top: how many layouts,
    each with the first of its variants. Every row has the command that plans it. Every further keyword is a field of
    `mla_cost.inputs.settings.PlanSettings`. Raises `mla_cost.InputError` for bad input.

    >>> import mla_cost
    >>> found = mla_cost.search("deepseek-v2-lite", "a100-80gb", devices=8, global_batch=64, seq_len=4096, remat="none")
    >>> found.best.status, found.best.devices, found.best.seconds <= found.results[1].seconds
    ('fits', 8, True)
    """
    settings = by_own_names(settings)
    asked = {name: settings.pop(name) for name in (*DEGREES, *CHOICES) if settings.get(name) is not None}
    own = {name: settings.pop(name) for name in Options.model_fields if name in settings}
    for name in CHOSEN:
        if name in settings:
            raise InputError("follows from what is searched", field=name)
    given = api._given(model, device, form, dims, settings)
    return of(validated(PlanSettings, given), asked, {**own, "devices": devices, "global_batch": global_batch})


def of(settings: PlanSettings, allowed: Mapping[str, Any], given: Mapping[str, Any], watch: Watch = unwatched) -> Found:
    """The search around a plan. allowed: values of axes, all where one is absent; given: fields of `Options`.

    watch: hears now and then what is going on, how much is done, and of how much.
    """
    space = Space(_question(settings, allowed, given))
    return _found(space, priced(space, watch), watch)


def _question(settings: PlanSettings, allowed: Mapping[str, Any], given: Mapping[str, Any]) -> SearchQuestion:
    require_forms(settings)
    if "device" not in settings.model_fields_set:
        settings = settings.model_copy(update={"device": settings.device[:1]})
    if len(settings.device) != 1:
        raise InputError("a search is for one device", field="device", value=settings.device, allowed="one name")
    settings = api._for_scope(settings.model_copy(update={"scope": "model"}))
    settings = settings.model_copy(update={"form": tuple(ALIASES.get(form, form) for form in settings.form)})
    model = api.model_with_dims(settings)
    unpriced = refusal(model, settings.profile)
    if unpriced is not None:
        raise InputError(f"{unpriced} (in a plan; a search prices whole models)", field="model")
    device = catalog.device(settings.device[0])
    own = options(settings, given)
    return SearchQuestion(model, device, settings, own, axes(settings, allowed), unsaid(given, own))


def _found(space: Space, found: Ranked, watch: Watch) -> Found:
    times = [checked(space, row).time for row in found.best[:SAMPLE]]
    for rows in (found.front, found.margin):
        for row in rows[:: max(1, len(rows) // SAMPLE)]:
            checked(space, row)
    untold = [None] * (len(found.best) - len(times))
    results = tuple(
        candidate(space, row, time, times[0]) for row, time in zip(found.best, [*times, *untold], strict=True)
    )
    return Found(
        inputs=_inputs(space.question),
        counts=found.counts,
        ruled_out=space.tally.rows(),
        results=results,
        pareto=tuple(candidate(space, row) for row in found.front),
        time_pareto=tuple(candidate(space, row) for row in found.margin),
        runner_up=lost(results, space.question.options.order),
        nearest_miss=None if results else miss_of(space, found, watch),
    )


def _inputs(question: SearchQuestion) -> dict[str, Any]:
    """What was asked, every option resolved, and what the device and the model are."""
    settings, own = question.settings, question.options
    left_out = {*DEGREES, *CHOICES, *CHOSEN, "layers"}
    return {
        **settings.model_dump(exclude=left_out),
        "model": question.model.name,
        "dims": question.model.dims.model_dump(),
        "device": question.device.name,
        "form": list(settings.form),
        "other_memory": int(settings.other_memory),
        "reserve": {name: int(amount) for name, amount in settings.reserve.items()},
        **own.model_dump(),
        "by": list(own.order),
        "limits": own.limits(question.device),
        "axes": {name: list(values) for name, values in question.axes.items()},
        "assumed": {**question.unsaid, **api.assumed(settings, question.model)},
        "weights": sources(question.device),
        "model_title": question.model.title,
        "device_title": question.device.title,
    }
