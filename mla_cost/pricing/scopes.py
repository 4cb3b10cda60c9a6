"""Which settings belong to which scope: asked alike by plans, sweeps, fits and formulas."""

from __future__ import annotations

from typing import Final

from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings, is_stated
from mla_cost.inputs.table import MODEL_ONLY
from mla_cost.pricing.resolve import refuse_tensor_parallel

_ONE_BLOCK: Final = "0, or scope attention, where a block may lie beside an MLP that does not"


def require_scope(settings: PlanSettings) -> None:
    """Refuse what the scope of these settings does not have.

    Raises:
        InputError: naming the setting and the scope that has it.

    """
    if settings.scope == "model":
        if settings.layers > 1:
            allowed = "1, or scope attention for equal blocks in a row"
            raise InputError("the model scope has all layers", field="layers", value=settings.layers, allowed=allowed)
        if settings.idle_mlp:
            raise InputError("a model's own MLPs run", field="idle_mlp", value=settings.idle_mlp, allowed=_ONE_BLOCK)
        return
    refuse_tensor_parallel(settings)
    for field in MODEL_ONLY:
        if is_stated(settings, field):
            raise InputError(f"{getattr(settings, field)} belongs to scope model", field=field, allowed="--scope model")
