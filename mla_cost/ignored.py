"""What a plan states that changes no figure, or that its profile has not: told in notes, and no figure read as its."""

from __future__ import annotations

from collections.abc import Iterator

from mla_cost.config import ModelConfig
from mla_cost.layers import LAYERS
from mla_cost.parameters import layer_kinds
from mla_cost.profiles import PROFILES
from mla_cost.program import Kernel, Profile, parse
from mla_cost.remat import DISCARDING, POLICIES
from mla_cost.settings import PlanSettings

# of attention that runs op by op; a fused kernel is one call
_OP_BY_OP = ("attention_layout", "softmax_dtype", "mask")


def notes(model: ModelConfig, settings: PlanSettings, kernel: Kernel) -> Iterator[str]:
    """A note for every setting that is not the default's and has no effect, and for a way to shard of another's."""
    profile = PROFILES[settings.profile]
    for field, value in profile.fixed.items():
        if _stated(settings, field) and getattr(settings, field) != value:
            yield f"{_told(settings, field)}: no effect (profile {profile.name} has {value} only)"
    for field in _OP_BY_OP if kernel.fused else ():
        if _stated(settings, field) and field not in profile.fixed:
            yield f"{_told(settings, field)}: no effect (kernel {kernel.name} is one call, with its own)"
    if _stated(settings, "loss_chunks") and settings.cross_entropy != "chunked":
        yield f"{_told(settings, 'loss_chunks')}: no effect (only cross_entropy chunked cuts the loss into pieces)"
    if profile.texts and _stated(settings, "names"):
        yield f"{_told(settings, 'names')}: no effect (profile {profile.name} has its own code)"
    yield from _policies(model, settings, profile)
    yield from _facts(model, settings)
    if profile.sparse and model.indexer is not None:
        yield f"{profile.sparse}: here attention is priced to all tokens, in the form asked for"
    if profile.shardings and settings.sharding not in profile.shardings:
        own = " or ".join(profile.shardings)
        yield f"{_told(settings, 'sharding')} is priced as asked, but profile {profile.name} trains with {own} only"


def _policies(model: ModelConfig, settings: PlanSettings, profile: Profile) -> Iterator[str]:
    """Recomputation of a part that no layer of the model has."""
    layers = {"moe" if kind.moe else "dense" for kind in layer_kinds(model)}
    there = {"attend"}.union(*({*parse(LAYERS[name].text), *profile.pieces(name)} for name in layers))
    if not model.num_shared_experts:
        there.discard("shared_experts")
    for name in settings.remat.split("+"):
        asked = {*POLICIES.get(name, ()), *DISCARDING.get(name, ())}
        if asked and not asked & there:
            yield f"remat {name}: no effect (no layer of {model.name} has what it runs again)"


def _facts(model: ModelConfig, settings: PlanSettings) -> Iterator[str]:
    """Facts about layers that the model does not have."""
    kinds = layer_kinds(model)
    has = {
        "other_layer_bytes": ("without MLA", any(not kind.attention for kind in kinds)),
        "other_layer_parameters": ("without MLA", any(not kind.attention for kind in kinds)),
        "indexer_layer_bytes": ("with an indexer", any(kind.indexer for kind in kinds)),
    }
    for fact, (which, there) in has.items():
        if fact in settings.facts and not there:
            yield f"facts.{fact}: no effect ({model.name} has no layers {which})"


def _stated(settings: PlanSettings, field: str) -> bool:
    return getattr(settings, field) != PlanSettings.model_fields[field].default  # type: ignore[no-any-return]


def _told(settings: PlanSettings, field: str) -> str:
    return f"{field} {getattr(settings, field)}"
