"""Parameter counts of the catalogue's models beside the counts that their sources and checkpoints give.

The counts are carried in `configs/models/`: `derived_main_model` and `derived_with_indexer` were worked out from the
dims elsewhere, by the rule that `mla_cost.weights.parameters` restates; `exact` is the element count of a
checkpoint's tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mla_cost.inputs import catalog
from mla_cost.inputs.config import ModelConfig
from mla_cost.weights.parameters import Parameters, parameters, refusal

NAME, TITLE = "catalogue", "parameter counts of the catalogue's models"


class Count(NamedTuple):
    """One published count and ours, in elements; None where the model cannot be counted, the reason beside it."""

    id: str
    quantity: str
    origin: str
    cite: str
    published: int
    predicted: int | None
    reason: str


def counts() -> Iterator[Count]:
    """Every count that a model of the catalogue carries, model by model."""
    for name in catalog.model_names():
        yield from _of(catalog.model(name))


def _of(model: ModelConfig) -> Iterator[Count]:
    why = refusal(model)
    counted = None if why else parameters(model)
    for fact, words in (("derived_main_model", "main model"), ("derived_with_indexer", "main model and indexers")):
        published = model.parameters.get(fact)  # type: ignore[call-overload]
        if published is not None:
            yield Count(
                f"parameters-{model.name}{'' if fact == 'derived_main_model' else '-with-indexer'}",
                f"parameters, {words}, from the dims",
                "counted",
                "; ".join(model.sources),
                published,
                counted and (counted.main_model if fact == "derived_main_model" else counted.total),
                f"not modelled: {why}" if why else "",
            )
    exact = model.parameters.get("exact")
    if exact is not None:
        yield _exact(model, exact, counted, why)


def _exact(model: ModelConfig, exact: int, counted: Parameters | None, why: str | None) -> Count:
    remainder = dict(counted.remainder) if counted else {}
    rest = remainder.pop("not explained", 0)
    items = [("main model", counted.total), *remainder.items()] if counted else []
    return Count(
        id=f"checkpoint-{model.name}",
        quantity="elements of the checkpoint",
        origin="stated",
        cite=model.parameters_exact_scope or "; ".join(model.sources),
        published=exact,
        predicted=exact - rest if counted else None,
        reason="; ".join(f"{what} {elements:,}" for what, elements in items) if counted else f"not modelled: {why}",
    )
