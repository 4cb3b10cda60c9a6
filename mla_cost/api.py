"""What-if studies in Python: `plan` answers, `formula` explains. Results carry the fields of the JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from mla_cost.declared import defaults
from mla_cost.declared.forms import ALIASES, FORMS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError
from mla_cost.inputs import catalog, given
from mla_cost.inputs.config import DeviceConfig, ModelConfig, validated
from mla_cost.inputs.keywords import PlanKeywords
from mla_cost.inputs.settings import PlanSettings, is_stated
from mla_cost.inputs.table import SUBJECTS, TABLE
from mla_cost.pricing import automatic, rows, verdicts
from mla_cost.pricing.compile import EXPERTS
from mla_cost.pricing.key import Key
from mla_cost.pricing.resolve import Illegal, named, policy, usual_sp
from mla_cost.pricing.scopes import require_scope
from mla_cost.results import Plan, Result, Term, TraceSlice

if TYPE_CHECKING:
    import sympy
    from rich.console import RenderableType

    from mla_cost.explaining.explain import Explanation
    from mla_cost.explaining.pictures import Picture
    from mla_cost.explaining.times import TimeFormula
    from mla_cost.results import ProgramListing


class Answer(Plan):
    """A plan's results that print well: as the table in a terminal, as HTML in a notebook."""

    def __rich__(self) -> RenderableType:
        """The table, for rich."""
        from mla_cost.views.table import plan_table

        return plan_table(self)

    def __repr__(self) -> str:
        """The table as text."""
        from mla_cost.views.table import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        """The table as HTML."""
        from mla_cost.views.table import plan_html

        return plan_html(self)


NameOrNames = str | os.PathLike[str] | Sequence[str] | None


def plan(
    model: str | os.PathLike[str] = defaults.MODEL,
    device: NameOrNames = defaults.DEVICES,
    *,
    form: NameOrNames = "all",
    dims: Mapping[str, Any] | None = None,
    **settings: Unpack[PlanKeywords],
) -> Answer:
    """Price a rank of a whole model, or one MLA block, in every form on each device and say whether it fits.

    scope "model", the default, prices the worst pipeline stage of a training rank; "attention" one block or `layers`
    of them.

    model, device: names of the catalogue, or paths of files; device None leaves the verdicts out. form: a name, names
    or "all". dims: overrides such as {"heads": 64}. Every further keyword is a field of
    `mla_cost.inputs.settings.PlanSettings`: seq_len, sp, micro_batch, kernel, scheme, dtype, layers, v_layout, ...

    All bytes are exact ints for one rank. Raises `mla_cost.InputError` for bad input.

    >>> import mla_cost
    >>> block = {"scope": "attention", "kernel": "eager", "seq_len": 16384, "sp": 8}
    >>> study = mla_cost.plan(model="deepseek-v3", device="910b-64gb", **block)
    >>> study["laga"].verdict.status
    'fits'
    >>> copied = study["absorbed"].memory.saved_bytes - study["explicit"].memory.saved_bytes
    >>> copied > 2 * 16384**2 * 16  # the copy of the probabilities alone: 16 heads per rank, bf16
    True
    >>> whole = mla_cost.plan("moonlight-16b-a3b", "h100-80gb", seq_len=8192, sp=2, ep=8, dp=4, micro_batches=8)
    >>> whole["laga"].verdict.status, whole["laga"].settings["stage"]
    ('fits', 0)
    """
    return answer(validated(PlanSettings, _given(model, device, form, dims, settings)))


def levers(
    model: str | os.PathLike[str] = defaults.MODEL,
    device: NameOrNames = defaults.DEVICES,
    *,
    form: NameOrNames = "all",
    dims: Mapping[str, Any] | None = None,
    refused: bool = False,
    **settings: Unpack[PlanKeywords],
) -> Answer:
    """The answer of `plan` with every verdict's `levers` and `remedy`: what one change does, and the least that fits.

    refused: changes that make no program or that no kernel trains are reported too, with the reason. Raises
    `mla_cost.InputError` for bad input, and without a device.

    >>> import mla_cost
    >>> block = {"scope": "attention", "kernel": "eager", "layers": 8, "sp": 8}
    >>> study = mla_cost.levers(device="910b-64gb", form="explicit", **block)
    >>> study["explicit"].verdict.status
    'oom'
    >>> best = study["explicit"].verdict.levers[0]
    >>> best.lever, best.status
    ('kernel', 'fits')
    """
    if not isinstance(refused, bool):
        raise InputError("must be true or false", field="refused", value=refused)
    return with_levers(validated(PlanSettings, _given(model, device, form, dims, settings)), refused=refused)


_WHICH = "a name of the catalogue, the path of a file, or a list of them"
_FORMS = f"{', '.join(FORMS)}, a list of them, or all"


def _given(
    model: Any, device: NameOrNames, form: NameOrNames, dims: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "model": given.name("model", model, "a name of the catalogue, or the path of a file"),
        "device": given.names("device", device, _WHICH),
        "form": forms_of(form),
        "dims": {} if dims is None else dims,
        **settings,
    }


def forms_of(form: Any) -> tuple[str, ...]:
    """The forms asked for.

    Raises:
        InputError: what is no name and no list of names.

    """
    return tuple(FORMS) if isinstance(form, str) and form == "all" else given.names("form", form, _FORMS)


def answer(settings: PlanSettings, *, timed: bool = True) -> Answer:
    """Answer a plan: one result per device and form, in the order asked. timed: with how long each takes."""
    asked, settings = settings, _for_scope(settings)
    model = model_with_dims(settings)
    devices = [catalog.device(name) for name in settings.device]
    if not settings.form:
        raise InputError("name at least one form", field="form", allowed=", ".join(FORMS))
    settings = settings.model_copy(update={"form": tuple(ALIASES.get(form, form) for form in settings.form)})
    for form in settings.form:
        named("form", form, FORMS)
    each: Sequence[DeviceConfig | None] = devices or [None]
    results = [row for device in each for row in rows.rows(model, device, settings, timed=timed)]
    reported = {"sp_default": _sp_default(asked, model, settings.sp)}
    return Answer(_inputs(settings, model, devices) | reported, tuple(results))


def with_levers(settings: PlanSettings, *, refused: bool = False) -> Answer:
    """As `answer`, with levers and remedies.

    Raises:
        InputError: bad input, or no device: levers are about its verdict.

    """
    from mla_cost.pricing import what_ifs

    if not settings.device:
        raise InputError("levers are about a verdict, and a verdict needs a device", field="device")
    found, settings = answer(settings), _for_scope(settings)
    model = model_with_dims(settings)
    devices = {device.name: device for device in (catalog.device(name) for name in settings.device)}
    filled = (
        what_ifs.with_levers(model, devices[row.device or ""], settings, row, refused=refused) for row in found.results
    )
    return Answer(found.inputs, tuple(filled))


def terms(settings: PlanSettings, term: str) -> tuple[Term, ...]:
    """Where a number comes from, for every row of a plan that has numbers.

    Raises:
        InputError: bad input, no such term, or no row with numbers.

    """
    from mla_cost.explaining.terms import explain

    found, settings = answer(settings, timed=False), _for_scope(settings)
    model = model_with_dims(settings)
    priced = [row for row in found.results if row.memory.allocated_peak_bytes is not None]
    if not priced:
        verdict = found.results[0].verdict
        raise InputError(verdict.reason if verdict else "no form has numbers")
    device = {name: catalog.device(name) for name in found.inputs["devices"]}
    return tuple(explain(model, device.get(row.device or ""), settings, row, term) for row in priced)


def trace(settings: PlanSettings) -> list[TraceSlice]:
    """The block, or the optimizer step, of the first form on the first device, on a time line.

    Raises:
        InputError: bad input, no device whose time is known, no program, or more passes than a viewer takes.

    """
    from mla_cost.pricing import trace as lines
    from mla_cost.pricing.automatic import with_kernel
    from mla_cost.pricing.block import figures
    from mla_cost.pricing.resolve import Illegal, resolve

    settings = _for_scope(settings)
    model, form = model_with_dims(settings), ALIASES.get(settings.form[0], settings.form[0])
    device = catalog.device(settings.device[0]) if settings.device else None
    try:
        if settings.scope == "model":
            return lines.step_trace(model, device, form, settings)
        family = lines.require_ceilings(device).family
        chosen, _ = with_kernel(model, device, form, settings)
        return lines.block_trace(figures(resolve(model, form, chosen), family), device, settings)
    except Illegal as error:
        raise InputError(str(error)) from None


def pictures(settings: PlanSettings) -> tuple[Picture, ...]:
    """The live bytes of every row that has numbers, as `mla_cost.explaining.pictures` has them.

    Raises:
        InputError: bad input.

    """
    from mla_cost.explaining.pictures import picture

    found, settings = answer(settings, timed=False), _for_scope(settings)
    model = model_with_dims(settings)
    device = {name: catalog.device(name) for name in found.inputs["devices"]}
    priced = [row for row in found.results if row.memory.allocated_peak_bytes is not None]
    drawn = (picture(model, device.get(row.device or ""), settings, row) for row in priced)
    return tuple(each for each in drawn if each is not None)


REPORTED: Final = ("saved", "peak", "wire")


def formulas_of(settings: PlanSettings, found: Plan) -> Iterator[tuple[Result, Explanation]]:
    """The formulas of the attention block of every row that has numbers, with their values; each form once.

    A peak is the moment that wins at these numbers.
    """
    from mla_cost.explaining.explain import explain_point
    from mla_cost.pricing.evaluation import evaluation
    from mla_cost.pricing.resolve import resolve

    settings, seen = _for_scope(settings), set()
    model = model_with_dims(settings)
    for row in found.results:
        if row.memory.allocated_peak_bytes is None or (row.form, row.kernel) in seen:
            continue
        seen.add((row.form, row.kernel))
        device = catalog.device(row.device) if row.device else None
        chosen, _ = automatic.with_kernel(model, device, row.form, settings)
        try:
            point = resolve(model, row.form, chosen)
            values = evaluation(point).values
        except Illegal:
            continue
        for quantity in REPORTED:
            yield row, explain_point(point, values, quantity)


def _for_scope(settings: PlanSettings) -> PlanSettings:
    """What the scope allows and leaves to choose: each has defaults of its own."""
    require_scope(settings)
    settings = settings.by_scope()
    return settings if settings.scope == "model" else with_usual_sp(settings)


def with_usual_sp(settings: PlanSettings) -> PlanSettings:
    """The settings of a block with the ranks that share it, where nobody said how many."""
    if "sp" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"sp": usual_sp(model_with_dims(settings).dims.heads, settings.seq_len)})


def _sp_default(asked: PlanSettings, model: ModelConfig, sp: int) -> str:
    """What the ranks of a block follow from, where nobody said how many and they are fewer than usual; else empty."""
    if asked.scope == "model" or "sp" in asked.model_fields_set or sp == defaults.SP:
        return ""
    return f"the largest up to {defaults.SP} that divides {model.dims.heads} heads and {asked.seq_len:,} tokens"


def model_with_dims(settings: PlanSettings) -> ModelConfig:
    """The model with the dims and facts of the settings in place of its own."""
    return catalog.changed(catalog.model(settings.model), settings.dims, settings.facts, settings.mtp)


def _inputs(settings: PlanSettings, model: ModelConfig, devices: Sequence[DeviceConfig]) -> dict[str, Any]:
    """Every resolved setting, and what the devices and the model are."""
    inputs = settings.model_dump()
    inputs["model"] = model.name
    inputs["dims"] = model.dims.model_dump()
    inputs["device"] = [device.name for device in devices]
    inputs["form"] = list(settings.form)
    inputs["other_memory"] = int(settings.other_memory)
    inputs["reserve"] = {name: int(amount) for name, amount in settings.reserve.items()}
    inputs["model_title"] = model.title
    inputs["num_layers"] = model.num_layers
    inputs["num_mla_layers"] = model.num_mla_layers
    inputs["changed"] = _changed(settings)
    inputs["assumed"] = assumed(settings, model)
    inputs["devices"] = {
        device.name: {"title": device.title, "softmax_workspace": verdicts.softmax_workspace_words(device)}
        for device in devices
    }
    return inputs


# what one block is priced by
_OF_BLOCKS = ("q_lora_rank", "v_head_dim", "indexer")


def assumed(settings: PlanSettings, model: ModelConfig) -> dict[str, str]:
    """What the model's file does not state and the settings do not either, by the fact: what is taken instead."""
    stated = {*settings.dims, *settings.facts, *(() if settings.mtp is None else ("num_mtp_layers",))}
    found = {fact: words for fact, words in model.assumed.items() if fact not in stated}
    if settings.scope == "model":
        return found
    return {fact: words for fact, words in found.items() if fact in _OF_BLOCKS}


def _changed(settings: PlanSettings) -> dict[str, Any]:
    """Every setting that is not the default's, by the name that --set gives it; a mapping key by key.

    Model, devices and forms are what is asked about, and have keys of their own.
    """
    names = [name for name in PlanSettings.model_fields if name not in SUBJECTS]
    found: dict[str, Any] = {name: getattr(settings, name) for name in names if is_stated(settings, name)}
    if found.get("kernel") == automatic.AUTO:  # the model scope's own default
        del found["kernel"]
    plain = {name: value for name, value in found.items() if not isinstance(value, dict)}
    mappings = [(name, each) for name, each in found.items() if isinstance(each, dict)]
    return plain | {f"{name}.{key}": value for name, each in mappings for key, value in each.items()}


def formula(
    form: str, quantity: str = "saved", *, one: Sequence[str] = (), without: Sequence[str] = (), **settings: Any
) -> sympy.Expr:
    """The symbolic formula of a quantity, as a sympy expression over the symbols of `mla_cost.language.dims.SYMBOLS`.

    quantity: saved, peak, payload, wire, flops or time. The variant is sp > 1 with more than one head per rank and
    kernel eager by default; one: dims of size one, of `sp`, `heads`, `batch`, `positions`; without: absent parts, of
    `query-latent` and `rope`; settings: kernel, scheme, dtype, v_layout, value_padding, ... as `plan` takes them.
    Raises `mla_cost.InputError` for an unknown name, and for a setting that only numbers have. A peak is the maximum
    over the moments that can win; put numbers in with `xreplace`, since `subs` compares them after every symbol. Time
    is seconds over the fields of `mla_cost.timing.ceilings.Ceilings` too; how a product fills a device is the function
    `use` of its batch and output, and a collective one of its wire bytes.

    >>> import mla_cost
    >>> formula = mla_cost.formula("laga", "payload")
    >>> sorted(str(symbol) for symbol in formula.free_symbols)
    ['S', 'b', 'd_c', 'k', 'l', 'r', 's', 'v']
    """
    return explain_variant(form, quantity, settings, one, without).expression()


def explain_variant(
    form: str, quantity: Any, settings: Mapping[str, Any], one: Sequence[str], without: Sequence[str]
) -> Explanation | TimeFormula:
    """The formula of a structural variant, without numbers."""
    from mla_cost.explaining.explain import TIME, explain, variant_key

    asked = _variant(form, settings, one, without)
    if isinstance(quantity, str) and quantity == TIME:
        from mla_cost.explaining.times import TimeFormula

        return TimeFormula(form, variant_key(form, **asked), causal=True)
    return explain(form, quantity, **asked)


def _variant(form: str, settings: Mapping[str, Any], one: Sequence[str], without: Sequence[str]) -> dict[str, Any]:
    """What a structural variant is made of, checked."""
    checked = validated(PlanSettings, {**settings, "form": (named("form", form, FORMS) and form,)})
    for name in settings:
        if name not in {*Key._fields, "scheme", "kernel"}:
            raise InputError("no formula depends on this; it has one for all values", field=name)
    of_key = {name: getattr(checked, name) for name in settings if name not in {"scheme", "kernel"}}
    try:
        policy(checked.remat, PROFILES[defaults.PROFILE])
    except Illegal as error:
        raise InputError(str(error), field="remat") from None
    ones, absent = (
        given.names(field, value, "a list of names") for field, value in (("one", one), ("without", without))
    )
    kernel = automatic.EAGER if checked.kernel == automatic.AUTO else checked.kernel
    return {"kernel": kernel, "scheme": checked.scheme, "one": ones, "without": absent, **of_key}


def program_of_variant(
    form: str, settings: Mapping[str, Any], one: Sequence[str] = (), without: Sequence[str] = ()
) -> ProgramListing:
    """The program of a form as it runs, at a structural variant without numbers."""
    from mla_cost.explaining.explain import variant_key
    from mla_cost.explaining.programs import program

    return program(form, variant_key(form, **_variant(form, settings, one, without)))


def program_of_plan(form: str, layer: str, flags: Mapping[str, Any], assigned: Mapping[str, Any]) -> ProgramListing:
    """The program of a layer as it runs in a plan; layer `attention` is the block alone."""
    from mla_cost.explaining.programs import program
    from mla_cost.inputs.plan_files import settings as read_settings
    from mla_cost.pricing.resolve import resolve

    settings = read_settings(None, {**flags, "form": [form]}, assigned, {})
    named("form", form, FORMS)
    texts = named("profile", settings.profile, PROFILES).texts
    if texts and layer not in texts:
        raise InputError(
            f"profile {settings.profile} has no program of its own for this",
            field="--layer",
            value=layer,
            allowed=", ".join(texts),
        )
    named("layer", layer, LAYERS)
    chosen = _formula_kernel(with_usual_sp(settings) if layer == "attention" else settings)
    try:
        point = resolve(model_with_dims(chosen), form, chosen, layer)
    except Illegal as error:
        raise InputError(str(error)) from None
    if EXPERTS in LAYERS[layer].pieces and not point.values.get("e"):
        raise InputError(f"{chosen.model} has no experts", field="--layer", value=layer)
    return program(form, point.key)


_OF_FORMULAS: Final = frozenset(row.name for row in TABLE.values() if row.formula != "none")


def _require_formula(settings: PlanSettings) -> None:
    """Refuse what no formula of a block depends on.

    Raises:
        InputError: naming it.

    """
    for name in sorted(settings.model_fields_set - _OF_FORMULAS):
        raise InputError("no formula depends on this; it has one for all values", field=name)


def _formula_kernel(settings: PlanSettings) -> PlanSettings:
    """The kernel of a formula where it is left to choose: that of the one device that was named, else eager.

    Raises:
        InputError: devices that could have different ones.

    """
    named_devices = settings.device if "device" in settings.model_fields_set else ()
    if "kernel" not in settings.model_fields_set:
        return settings.model_copy(update={"kernel": automatic.EAGER})
    if settings.kernel == automatic.AUTO and len(named_devices) > 1:
        raise InputError("a formula has one kernel; name one device, or the kernel", field="device")
    device = catalog.device(named_devices[0]) if named_devices else None
    return automatic.with_kernel(model_with_dims(settings), device, settings.form[0], settings)[0]


def explain_plan(
    form: str, quantity: str, flags: Mapping[str, Any], assigned: Mapping[str, Any]
) -> Explanation | TimeFormula:
    """The formula that holds for a plan, with the value of every term; of time on the first of its devices."""
    from mla_cost.explaining.explain import TIME, explain_point
    from mla_cost.inputs.plan_files import settings as read_settings
    from mla_cost.pricing.evaluation import evaluation
    from mla_cost.pricing.resolve import resolve

    settings = read_settings(None, {**flags, "form": [form]}, assigned, {})
    named("form", form, FORMS)
    _require_formula(settings)
    settings = _formula_kernel(with_usual_sp(settings))
    try:
        point = resolve(model_with_dims(settings), form, settings)
        if quantity == TIME:
            from mla_cost.explaining.times import of_plan

            device = catalog.device(settings.device[0] if settings.device else defaults.DEVICES[0])
            return of_plan(point.form, point.key, evaluation(point), device, settings)
        return explain_point(point, evaluation(point).values, quantity)
    except Illegal as error:
        raise InputError(str(error)) from None
