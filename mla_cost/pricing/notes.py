"""What a plan states that changes no figure, or that its profile has not: notes say so, no figure is read as its."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mla_cost.declared.forms import FORMS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.layers import named as declared_as
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs import catalog, table
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.settings import is_stated as _stated
from mla_cost.language.program import Profile, parse
from mla_cost.language.recompute import DISCARDING, POLICIES
from mla_cost.pricing.key import form_of
from mla_cost.pricing.resolve import Point
from mla_cost.results import Time
from mla_cost.weights.parameters import LayerKind, layer_kinds

# of attention that runs op by op; a fused kernel is one call
_OP_BY_OP = table.names(op_by_op=True)
# what only a verdict compares
_OF_VERDICTS = table.names(reads=table.VERDICTS)
_OF_TIMES = table.names(group=table.TIME)


def notes(model: ModelConfig, settings: PlanSettings, point: Point, *, device: bool = True) -> Iterator[str]:
    """A note for every setting of a whole model that is not the default's and has no effect.

    And for a way to shard of another profile's. settings: as they were asked for, before a kernel took the place of
    `auto`. point: what became of them. device: whether there is a verdict.
    """
    profile = PROFILES[settings.profile]
    yield from block_notes(settings, point, device=device)
    if not point.v_layout_matters and _stated(settings, "v_layout") and "v_layout" not in profile.fixed:
        yield f"{_said(settings, 'v_layout')}: no effect ({why_no_layout(point)})"
    yield from _beside_others(settings)
    if profile.texts and _stated(settings, "names"):
        yield f"{_said(settings, 'names')}: no effect (profile {profile.name} has its own code)"
    yield from _layers(model, settings)
    yield from _policies(model, settings, profile)
    yield from _modules(model, settings)
    yield from _facts(model, settings)
    if profile.sparse and model.indexer is not None:
        yield f"{profile.sparse}: here attention is priced to all tokens, in the form asked for"
    if profile.shardings and settings.sharding not in profile.shardings:
        own = " or ".join(profile.shardings)
        yield f"{_said(settings, 'sharding')} is priced as asked, but profile {profile.name} trains with {own} only"


def of_times(settings: PlanSettings, time: Time | None, timed: Callable[[PlanSettings], Time | None]) -> Iterator[str]:
    """What of times is stated and leaves them as they are. timed: the time with other settings."""
    for name in _OF_TIMES:
        if not _stated(settings, name):
            continue
        if time is None:
            yield f"{_said(settings, name)}: no effect (no time is told: no device, or one without ceilings)"
        elif timed(settings.model_copy(update={name: table.TABLE[name].default})) == time:
            yield f"{_said(settings, name)}: no effect (times are the same without it)"


def _beside_others(settings: PlanSettings) -> Iterator[str]:
    """What has no effect beside the other settings, by the rows of the table."""
    for name in table.TABLE:
        why = table.idle(name, settings) if _stated(settings, name) else ""
        if why:
            yield f"{_said(settings, name)}: no effect ({why})"


def _policies(model: ModelConfig, settings: PlanSettings, profile: Profile) -> Iterator[str]:
    """Recomputation of a piece that no layer of the model has, but for the parts that `_layers` names."""
    kinds = layer_kinds(model)
    layers = {declared_as("layer", experts=kind.moe) for kind in kinds}
    there = {"attend"}.union(*({*parse(LAYERS[name].text), *profile.pieces(name)} for name in layers))
    names = settings.remat.split("+")
    for name in names:
        whole = _within(name, names)
        if whole and (name not in _HOLDS or _HOLDS[name][0](model, kinds)):
            yield f"remat {name}: no effect (remat {whole} runs it again already)"
        asked = frozenset() if name in _HOLDS else {*POLICIES.get(name, ()), *DISCARDING.get(name, ())}
        if asked and not asked & there:
            yield f"remat {name}: no effect (no layer of {model.name} has what it runs again)"


def _within(name: str, names: list[str]) -> str:
    """The policy beside `name` that runs again all that it does; empty where none."""
    if "full" in names and name != "full":
        return "full"
    own = {*POLICIES.get(name, ())}
    return next((other for other in names if own and own < {*POLICIES.get(other, ())}), "")


def _modules(model: ModelConfig, settings: PlanSettings) -> Iterator[str]:
    """More multi-token-prediction modules than the model is published with."""
    own = catalog.model(settings.model).num_mtp_layers or 0 if settings.mtp else 0
    if settings.mtp and settings.mtp > own:
        yield f"{_said(settings, 'mtp')}: priced as asked; {model.name} is published with {own}"


def block_notes(settings: PlanSettings, point: Point, *, device: bool = True) -> Iterator[str]:
    """What of these notes one block has."""
    profile = PROFILES[settings.profile]
    for field, value in profile.fixed.items():
        if _stated(settings, field) and getattr(settings, field) != value:
            yield f"{_said(settings, field)}: no effect (profile {profile.name} has {value} only)"
    yield from _attention(settings, point)
    for field in _OF_VERDICTS if not device else ():
        if _stated(settings, field):
            yield f"{field}: no effect (without a device there is no verdict)"
    if settings.scope != "model":
        yield from _beyond_block(settings)


def _attention(settings: PlanSettings, point: Point) -> Iterator[str]:
    """What the kernel and the scheme leave without effect."""
    profile, kernel, key = PROFILES[settings.profile], point.kernel, point.key
    for field in _OP_BY_OP if kernel.fused else ():
        if _stated(settings, field) and field not in profile.fixed:
            yield f"{_said(settings, field)}: no effect (kernel {kernel.name} is one call, with its own)"
    if settings.softmax_dtype == settings.dtype and not kernel.fused and "softmax_dtype" not in profile.fixed:
        yield f"{_said(settings, 'softmax_dtype')}: no effect (activations are {settings.dtype} already)"
    if settings.value_padding not in {None, key.value_padding}:
        wide = kernel.pads(form_of(key.form).shared_key)
        why = "V is as wide as Q and K already" if wide else f"kernel {kernel.name} takes V as wide as it is"
        yield f"{_said(settings, 'value_padding')}: no effect ({why})"
    if _stated(settings, "sp_inside") and (settings.sp == 1 or not point.scheme.inside):
        why = "sp 1: one rank has the whole sequence" if settings.sp == 1 else f"scheme {point.scheme.name} has none"
        yield f"{_said(settings, 'sp_inside')}: no effect (groups inside groups: {why})"
    if settings.sp == 1 and settings.scheme not in {None, FORMS[point.form].scheme}:
        yield f"{_said(settings, 'scheme')}: no effect (sp 1: one rank has the whole sequence, and nothing moves)"


def why_no_layout(point: Point) -> str:
    """Why V as a view costs what V as a copy does."""
    return "an exchange copies V" if "value" in point.scheme.moves else "V is a part of the shared key"


def _beyond_block(settings: PlanSettings) -> Iterator[str]:
    for part in settings.remat.split("+"):
        if part in _HOLDS:
            yield f"remat {part}: no effect (one block of attention has no such part)"
    for fact in settings.facts:
        yield f"facts.{fact}: no effect (one block of attention asks for dims only)"


def _has_shared(model: ModelConfig, kinds: tuple[LayerKind, ...]) -> bool:
    return bool(model.num_shared_experts) and _has_experts(model, kinds)


def _has_experts(model: ModelConfig, kinds: tuple[LayerKind, ...]) -> bool:
    del model
    return any(kind.moe for kind in kinds)


def _has_mlp(model: ModelConfig, kinds: tuple[LayerKind, ...]) -> bool:
    del model
    return any(not kind.moe for kind in kinds)


# recomputation of a part: whether a model has it, and what it is called
_HOLDS = {
    "mlp": (_has_mlp, "dense MLPs"),
    "moe": (_has_experts, "experts"),
    "shared_experts": (_has_shared, "shared experts"),
}


def _layers(model: ModelConfig, settings: PlanSettings) -> Iterator[str]:
    """What is asked of layers that the model does not have."""
    kinds = layer_kinds(model)
    for part in settings.remat.split("+"):
        if part in _HOLDS and not _HOLDS[part][0](model, kinds):
            yield f"remat {part}: no effect ({model.name} has no {_HOLDS[part][1]})"
    if _stated(settings, "imbalance_percent") and not _has_experts(model, kinds):
        yield f"{_said(settings, 'imbalance_percent')}: no effect ({model.name} has no experts)"
    elif _stated(settings, "imbalance_percent") and settings.ep == 1:
        yield f"{_said(settings, 'imbalance_percent')}: no effect (ep 1: every rank has all experts and its own rows)"
    if _stated(settings, "moe_style") and not _has_experts(model, kinds):
        yield f"{_said(settings, 'moe_style')}: no effect ({model.name} has no experts)"
    if _stated(settings, "shared_overlap") and not _has_shared(model, kinds):
        yield f"{_said(settings, 'shared_overlap')}: no effect ({model.name} has no shared experts)"


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


def _said(settings: PlanSettings, field: str) -> str:
    return f"{field} {getattr(settings, field)}"
