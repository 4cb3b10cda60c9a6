"""The verdict: what a point needs against what a device can give, and which fused kernels would train it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs.config import DeviceConfig, ModelConfig, ReserveItem
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.program import Kernel, Limit, ProgramError, StagingShape
from mla_cost.language.workspace import SOFTMAX
from mla_cost.mesh.degrees import sends_to
from mla_cost.pricing.block import Figures, figures
from mla_cost.pricing.compile import form_of, saved
from mla_cost.pricing.resolve import Illegal, Point, resolve
from mla_cost.results import Basis, FusedOption, Status, Verdict

AUTO = "auto"
EAGER = defaults.ATTENTION_KERNEL
STAGING = "dispatcher buffers"
TIGHT = 20  # less headroom than one part in 20 of usable memory is tight
FRAGMENTATION = "allocator fragmentation"
_FRAGMENTATION_SOURCE = (
    "estimated: {percent} % of visible memory; an out-of-memory log of a training run on an 80 GB device shows 3.48 of "
    "51.64 GiB reserved by torch and unallocated, 6.7 % (modelscope/ms-swift issue 5943); fragmentation_percent sets it"
)


class Groups(NamedTuple):
    """Ranks of each communicator by its name: those that a step's exchanges need, and those made beside them."""

    needed: Mapping[str, int]
    further: Mapping[str, int] = {}


def verdict(model: ModelConfig, device: DeviceConfig, settings: PlanSettings, it: Figures) -> Verdict:
    """Compare the allocated peak of a stack of blocks and other memory with visible memory less the reserve."""
    options = fused_options(model, device, it.point.form, settings)
    what = ("one block", "fits") if it.layers == 1 else (f"{it.layers} blocks", "fit")
    groups = Groups({"sp": settings.sp})
    found = _verdict(device, settings, it.point, it.allocated_peak_bytes, what=what, groups=groups)
    if found.status == "unsupported":
        found = found._replace(reason=f"{found.reason}; {_what_trains(device, settings, options)}")
    return found._replace(fused_kernels=options)


def model_verdict(
    model: ModelConfig,
    device: DeviceConfig,
    settings: PlanSettings,
    point: Point,
    peak: int,
    *,
    groups: Groups,
    allowed: int = 0,
    reserved: Sequence[Basis] = (),
) -> Verdict:
    """The same for a stage of a whole model. groups: ranks of each communicator that it makes.

    allowed: what of the peak is an allowance and not counted. reserved: what states reserve beside it. Bytes.
    """
    what = ("the worst stage" if settings.stage is None else f"stage {settings.stage}", "fits")
    beside = (*staging(device, settings, point.values), *reserved)
    found = _verdict(device, settings, point, peak, what=what, groups=groups, beside=beside, allowed=allowed)
    if found.status != "unsupported":
        return found
    options = training_kernels(model, device, point.form, settings)
    return found._replace(reason=f"{found.reason}; {_what_trains(device, settings, options)}")


def with_first_line(
    model: ModelConfig, device: DeviceConfig, settings: PlanSettings, form: str, it: Verdict
) -> Verdict:
    """A verdict that says first of all where a form has no fused kernel on a device: its numbers are an eager one's."""
    if it.status == "unsupported" or training_kernels(model, device, form, settings):
        return it  # what is unsupported says so itself
    return it._replace(reason=f"no fused kernel that we know of trains {form} on {device.name}; {it.reason}")


def staging(device: DeviceConfig, settings: PlanSettings, at: Mapping[str, int]) -> tuple[Basis, ...]:
    """What the dispatcher takes outside torch, where the model has experts. at: values of the symbols u b h E c e."""
    found = PROFILES[settings.profile].staging.get(settings.dispatcher)
    if found is None or not at.get("e"):
        return ()
    linked = device.further.get("devices_per_nvlink_domain", device.devices_per_node)
    domain = min(at["E"], linked.integer)
    shape = StagingShape(tokens=at["u"] * at["b"], hidden=at["h"], ranks=at["E"], domain=domain, experts=at["c"])
    return (Basis(STAGING, found.bytes(shape), f"budgeted, outside torch: {found.source}"),)


def _verdict(
    device: DeviceConfig,
    settings: PlanSettings,
    point: Point,
    peak: int,
    *,
    what: tuple[str, str],
    groups: Groups,
    beside: Sequence[Basis] = (),
    allowed: int = 0,
) -> Verdict:
    reserve = reserve_items(device, settings, groups.needed, beside, groups.further)
    visible = device.visible_bytes
    required = peak + settings.other_memory
    usable = visible.integer - sum(item.bytes for item in reserve)
    status, reason = _status(point, device, what, required, usable)
    if status in ("fits", "tight"):
        reason += _at_the_high_end(reserve, usable - required)
    basis = (
        Basis("allocated peak", peak, "counted"),
        Basis("other memory", int(settings.other_memory), "set with --other-memory"),
        Basis("visible memory", visible.integer, _cited(device, visible.source, visible.note)),
        *(_kept_back(item) for item in reserve),
    )
    return Verdict(
        status=status,
        required_bytes=required,
        usable_bytes=usable,
        headroom_bytes=usable - required,
        reason=reason,
        basis=basis,
        counted_bytes=peak - allowed,
        budgeted_bytes=allowed + settings.other_memory,
    )


def _kept_back(item: Basis) -> Basis:
    """A reserve item as a row of a verdict: less, at both its ends."""
    low, high = (None if end is None else -end for end in (item.low_bytes, item.high_bytes))
    return Basis(f"reserve: {item.name}", -item.bytes, item.source, low, high)


def _at_the_high_end(reserve: Sequence[Basis], headroom: int) -> str:
    """What becomes of a headroom where libraries take what they may: said where that decides."""
    ranges = [item for item in reserve if item.high_bytes is not None]
    short = sum((item.high_bytes or 0) - item.bytes for item in ranges) - headroom
    if short <= 0:
        return ""
    names = " and ".join(f"{item.name} take {_size(item.high_bytes or 0)}" for item in ranges)
    return f"; {_size(short)} short if {names}"


def _cited(device: DeviceConfig, source: str, note: str | None) -> str:
    return "; ".join(part for part in (device.sources.get(source, source), note) if part)


def reserve_items(
    device: DeviceConfig,
    settings: PlanSettings,
    groups: Mapping[str, int],
    beside: Sequence[Basis] = (),
    further: Mapping[str, int] | None = None,
) -> list[Basis]:
    """What no tensor can have: itemised, each item overridable by its name.

    groups: ranks of each communicator. beside: items that come with the plan and not with the device. further: ranks
    of communicators that only the high end of an item counts.

    Raises:
        InputError: an override of an item that this device does not have.

    """
    known = [*(item.name for item in device.reserve), *(item.name for item in beside), FRAGMENTATION]
    for name in settings.reserve:
        if name not in known:
            raise InputError(
                f"{device.name} has no reserve item {shown(name)}",
                field="reserve",
                allowed=", ".join(known),
                nearest=nearest(name, known),
            )
    every = Groups(groups, further or {})
    own = [_reserve_item(device, item, settings, every) for item in device.reserve]
    own += [_overridden(item.name, settings) or item for item in beside]
    lost = _fragmentation(device, settings)
    return [*own, lost] if lost.bytes else own


def _fragmentation(device: DeviceConfig, settings: PlanSettings) -> Basis:
    """What the allocator holds and cannot hand out: a margin, since it depends on the order of allocations."""
    percent = settings.fragmentation_percent
    if percent is None:
        percent = defaults.FRAGMENTATION_PERCENT[settings.scope]
    lost = device.visible_bytes.integer * percent // 100
    estimated = Basis(FRAGMENTATION, lost, _FRAGMENTATION_SOURCE.format(percent=percent))
    return _overridden(FRAGMENTATION, settings) or estimated


def _reserve_item(device: DeviceConfig, item: ReserveItem, settings: PlanSettings, groups: Groups) -> Basis:
    found = _overridden(item.name, settings)
    if found is not None:
        return found
    note = item.note if item.verified else f"not verified; {item.note or ''}"
    source = _cited(device, item.source, note)
    if item.per == "process":
        return Basis(item.name, item.bytes, source)
    amount = sum(item.bytes_for(size) for size in groups.needed.values())
    if item.high is None:
        return Basis(item.name, amount, source)
    node, named = device.devices_per_node.integer, (*groups.needed.items(), *groups.further.items())
    high = sum(item.high_bytes_for(size, node, sends_to(axis, size)) for axis, size in named)
    return Basis(item.name, amount, source, amount, high)


def _overridden(name: str, settings: PlanSettings) -> Basis | None:
    if name not in settings.reserve:
        return None
    return Basis(name, int(settings.reserve[name]), "set with --reserve")


def _status(
    point: Point,
    device: DeviceConfig,
    what: tuple[str, str],
    required: int,
    usable: int,
) -> tuple[Status, str]:
    missing = _untrainable(point, device)
    if missing:
        return "unsupported", missing
    subject, fits = what
    headroom = usable - required
    if headroom < 0:
        return "oom", f"{subject} {_size(-headroom)} short"
    if headroom * TIGHT < usable:
        return "tight", f"{subject} {fits}, only {_size(headroom)} left"
    return "fits", f"{subject} {fits}, {_size(headroom)} left"


def _size(amount: int) -> str:
    return f"{amount / 2**30:,.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"


# ---- fused kernels


def _widths(point: Point) -> tuple[int, int]:
    """The widths of one head that the kernel sees, padding included."""
    form, size = form_of(point.key.form), point.key.facts.size
    qk = size(point.key.facts.present(form.qk)).at(point.values)
    return qk, qk if point.key.value_padding != "none" else size(form.value).at(point.values)


def _untrainable(point: Point, device: DeviceConfig) -> str:
    """Why no implementation of the kernel trains these widths here; empty where one does."""
    kernel = point.kernel
    if not kernel.fused or _trainer(point, device):
        return ""
    looked = [limit for limit in kernel.limits if device.arch in limit.archs]
    if not looked:
        return f"{kernel.name} does not exist on {device.name} ({device.arch})"
    names = "; ".join(f"{limit.implementation} ({limit.source})" for limit in looked)
    dtypes = list(dict.fromkeys(dtype for limit in looked for dtype in limit.dtypes))
    if point.key.dtype not in dtypes:
        taken = f"{point.key.dtype} on {device.arch}, only {' and '.join(dtypes)}"
        return f"no {kernel.name} kernel takes {taken}; use dtype {dtypes[0]}; looked at {names}"
    qk, v = _widths(point)
    return f"no {kernel.name} kernel trains {qk}/{v}-wide heads on {device.arch}; looked at {names}"


def _what_trains(device: DeviceConfig, settings: PlanSettings, options: Sequence[FusedOption | Training]) -> str:
    """The way out: the fused kernels that train this form on this device, under the profile that runs them."""
    names = ", ".join(f"{o.kernel} with value_padding {o.value_padding} ({o.implementation})" for o in options)
    runs = PROFILES[settings.profile].kernels
    if not runs:
        return f"what trains it here: {names}" if names else "no fused kernel trains it here; eager kernels do"
    return (
        f"profile {settings.profile} runs {' and '.join(runs)} only; on {device.name} use profile {defaults.PROFILE}, "
        f"where {f'this trains it: {names}' if names else 'eager kernels train it'}"
    )


def _trainer(point: Point, device: DeviceConfig) -> Limit | None:
    qk, v = _widths(point)
    return next((limit for limit in point.kernel.limits if limit.trains(device.arch, qk, v, point.key.dtype)), None)


class Training(NamedTuple):
    """A fused kernel, the value padding with which it trains a form's heads on a device, and the limit that says so."""

    kernel: str
    value_padding: str
    limit: Limit

    @property
    def implementation(self) -> str:
        """Whose code it is."""
        return self.limit.implementation


def with_kernel(
    model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings
) -> tuple[PlanSettings, tuple[str, ...]]:
    """The settings with a kernel in place of `auto`: the first that trains this form on this device, else eager.

    A profile that runs some kernels only has one of these instead, of which a verdict then says that none trains it.
    With it, why that one: empty where a kernel was named.
    """
    if settings.kernel != AUTO:
        return settings, ()
    where = f"on {device.name}" if device else "without a device"
    runs = PROFILES[settings.profile].kernels if settings.profile in PROFILES else ()
    options = training_kernels(model, device, form, settings, settings.value_padding) if device else ()
    first = next((option for option in options if not runs or option.kernel in runs), None)
    if first is None and runs:
        why = f"{where} kernel auto is {runs[0]}, which profile {settings.profile} runs"
        return settings.model_copy(update={"kernel": runs[0]}), (why,)
    if first is None:
        known = (
            f"since no fused kernel that we know of trains it there{_with_padding(settings)}"
            if device
            else "name a device to have a fused one"
        )
        why = f"{where} kernel auto is {EAGER}{', ' if device else '; '}{known}"
        return settings.model_copy(update={"kernel": EAGER}), (why,)
    padded = f", value_padding {first.value_padding}" if first.value_padding != "none" else ""
    why = f"{where} kernel auto is {first.kernel}{padded} ({first.implementation})"
    padding = settings.value_padding or first.value_padding
    return settings.model_copy(update={"kernel": first.kernel, "value_padding": padding}), (why,)


def _with_padding(settings: PlanSettings) -> str:
    return f" with value_padding {settings.value_padding}" if settings.value_padding is not None else ""


def training_kernels(
    model: ModelConfig, device: DeviceConfig, form: str, settings: PlanSettings, padding: str | None = None
) -> tuple[Training, ...]:
    """The fused kernels that train this form's heads on this device, whatever profile runs them.

    Widths alone decide, so they are asked on one rank of sp: a scheme may divide a sequence further than heads.
    A kernel is tried with its own value padding first; the first that trains is the one that is told. padding: try
    this one only.
    """
    fused = (kernel for kernel in KERNELS.values() if kernel.fused)
    found = (_training(model, device, form, settings, kernel, padding) for kernel in fused)
    return tuple(option for option in found if option is not None)


_BARE: Final[Mapping[str, Any]] = {"profile": defaults.PROFILE, "remat": "none", "scheme": None, "sp": 1}


def _training(
    model: ModelConfig,
    device: DeviceConfig,
    form: str,
    settings: PlanSettings,
    kernel: Kernel,
    wanted: str | None,
) -> Training | None:
    for padding in (wanted,) if wanted else dict.fromkeys((kernel.value_padding, "none", "qk")):
        asked = settings.model_copy(update={**_BARE, "kernel": kernel.name, "value_padding": padding})
        try:
            point = resolve(model, form, asked)
        except (Illegal, ProgramError):
            continue
        limit = _trainer(point, device)
        if limit is not None:
            return Training(kernel.name, point.key.value_padding, limit)
    return None


def fused_options(
    model: ModelConfig, device: DeviceConfig, form: str, settings: PlanSettings
) -> tuple[FusedOption, ...]:
    """The fused kernels that can train this form on this device, each with what one block saves under it."""
    found = (_saving(model, form, settings, each) for each in training_kernels(model, device, form, settings))
    return tuple(option for option in found if option is not None)


def _saving(model: ModelConfig, form: str, settings: PlanSettings, found: Training) -> FusedOption | None:
    """None where the kernel trains these heads, but makes no program with the other settings."""
    asked = settings.model_copy(update={"kernel": found.kernel, "value_padding": found.value_padding})
    try:
        point = resolve(model, form, asked)
        amount = saved(point.key).at(point.values)
    except (Illegal, ProgramError):
        return None
    return FusedOption(found.kernel, found.value_padding, found.implementation, amount, found.limit.source)


def fused_way_out(model: ModelConfig, device: DeviceConfig, form: str, settings: PlanSettings) -> str:
    """For a plan that does not fit: the first fused kernel under which it does, in words; empty where none is."""
    for option in fused_options(model, device, form, settings):
        asked = settings.model_copy(update={"kernel": option.kernel, "value_padding": option.value_padding})
        try:
            it = figures(resolve(model, form, asked), device.family, settings.layers)
        except Illegal:
            continue
        told = verdict(model, device, asked, it)
        if told.status in {"fits", "tight"}:
            return f"on {device.name} with --kernel {option.kernel}: {told.reason}"
    return ""


def softmax_workspace_words(device: DeviceConfig) -> str:
    """The eager softmax workspace of a device's family, with what it rests on."""
    found = SOFTMAX[device.family]
    return f"{found.words} ({found.basis})"
