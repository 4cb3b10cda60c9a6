"""The verdict: what a point needs against what a device can give, and which fused kernels would train it there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mla_cost.declared import defaults
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.program import ProgramError
from mla_cost.language.workspace import SOFTMAX
from mla_cost.pricing.automatic import Training, head_widths, trained, training_kernels
from mla_cost.pricing.compile import saved
from mla_cost.pricing.resolve import Illegal, Point, resolve
from mla_cost.pricing.usable import STATUSES, Groups, Reserved, beyond, reserve, status
from mla_cost.results import Basis, FusedOption, Status, Verdict


def verdict(
    model: ModelConfig,
    device: DeviceConfig,
    settings: PlanSettings,
    point: Point,
    peak: int,
    *,
    groups: Groups,
    allowed: int = 0,
    reserved: Sequence[Reserved] = (),
) -> Verdict:
    """Compare an allocated peak and other memory with visible memory less the reserve.

    groups: ranks of each communicator that the plan makes. allowed: what of the peak is an allowance and not counted.
    reserved: what the plan reserves beside it. Bytes.
    """
    items = reserve(device, settings, groups, reserved)
    required = peak + settings.other_memory
    usable = device.visible_bytes.integer - sum(item.bytes for item in items)
    trains = trained(point.kernel, device.arch, point.key, point.values)
    found: Status = STATUSES[status(usable - required, usable, trains)]
    reason = _reason(point, device, _subject(settings), found, usable - required)
    if found == "unsupported":
        known = fused_options if settings.scope == "attention" else training_kernels
        reason += f"; {_what_trains(device, settings, known(model, device, point.form, settings))}"
    if found in ("fits", "tight"):
        reason += at_the_high_end(items, usable - required)
    return Verdict(
        status=found,
        required_bytes=required,
        usable_bytes=usable,
        headroom_bytes=usable - required,
        least_headroom_bytes=usable - beyond(items) - required,
        reason=reason,
        basis=tuple(_arithmetic(device, settings, peak, items)),
        counted_bytes=peak - allowed,
        budgeted_bytes=allowed + settings.other_memory,
    )


def _arithmetic(device: DeviceConfig, settings: PlanSettings, peak: int, items: Sequence[Reserved]) -> Iterator[Basis]:
    """What is compared with what."""
    visible = device.visible_bytes
    yield Basis("allocated peak", peak, "counted")
    yield Basis("other memory", int(settings.other_memory), "set with --other-memory")
    yield Basis("visible memory", visible.integer, _cited(device, visible.source, visible.note))
    yield from (_taken_off(_basis(device, item)) for item in items)


def _subject(settings: PlanSettings) -> tuple[str, str]:
    """What is compared with a device, and its verb."""
    if settings.scope == "attention":
        return ("one block", "fits") if settings.layers == 1 else (f"{settings.layers} blocks", "fit")
    return ("the worst stage" if settings.stage is None else f"stage {settings.stage}", "fits")


def with_first_line(
    model: ModelConfig, device: DeviceConfig, settings: PlanSettings, form: str, it: Verdict
) -> Verdict:
    """A verdict that says first of all where a form has no fused kernel on a device: its numbers are an eager one's."""
    if it.status == "unsupported" or training_kernels(model, device, form, settings):
        return it  # what is unsupported says so itself
    return it._replace(reason=f"no fused kernel that we know of trains {form} on {device.name}; {it.reason}")


def _taken_off(item: Basis) -> Basis:
    """A reserve item as a row of a verdict: less, at both its ends."""
    low, high = (None if end is None else -end for end in (item.low_bytes, item.high_bytes))
    return Basis(f"reserve: {item.name}", -item.bytes, item.source, low, high)


def at_the_high_end(items: Sequence[Reserved], headroom: int) -> str:
    """What becomes of a headroom where libraries take what they may: said where that decides."""
    short = beyond(items) - headroom
    if short <= 0:
        return ""
    names = " and ".join(f"{item.name} take {_size(item.high)}" for item in items if item.high is not None)
    return f"; {_size(short)} short if {names}"


def _cited(device: DeviceConfig, source: str, note: str | None) -> str:
    return "; ".join(part for part in (device.sources.get(source, source), note) if part)


def _basis(device: DeviceConfig, found: Reserved) -> Basis:
    """An item of the reserve with its source and, where it is known as a range, both its ends."""
    name, amount, source, item, high = found
    if item is None:
        return Basis(name, amount, source)
    source = _cited(device, item.source, item.note if item.verified else f"not verified; {item.note or ''}")
    return Basis(name, amount, source, None if high is None else amount, high)


def _reason(point: Point, device: DeviceConfig, what: tuple[str, str], found: Status, headroom: int) -> str:
    subject, fits = what
    reasons: dict[Status, str] = {
        "fits": f"{subject} {fits}, {_size(headroom)} left",
        "tight": f"{subject} {fits}, only {_size(headroom)} left",
        "oom": f"{subject} {_size(-headroom)} short",
    }
    return reasons.get(found) or _untrainable(point, device)


def _size(amount: int) -> str:
    return f"{amount / 2**30:,.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"


# ---- fused kernels


def _untrainable(point: Point, device: DeviceConfig) -> str:
    """Why no implementation of the kernel trains these widths here."""
    kernel = point.kernel
    looked = [limit for limit in kernel.limits if device.arch in limit.archs]
    if not looked:
        return f"{kernel.name} does not exist on {device.name} ({device.arch})"
    names = "; ".join(f"{limit.implementation} ({limit.source})" for limit in looked)
    dtypes = list(dict.fromkeys(dtype for limit in looked for dtype in limit.dtypes))
    if point.key.dtype not in dtypes:
        taken = f"{point.key.dtype} on {device.arch}, only {' and '.join(dtypes)}"
        return f"no {kernel.name} kernel takes {taken}; use dtype {dtypes[0]}; looked at {names}"
    qk, v = head_widths(point.key, point.values)
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


def softmax_workspace_words(device: DeviceConfig) -> str:
    """The eager softmax workspace of a device's family, with what it rests on."""
    found = SOFTMAX[device.family]
    return f"{found.words} ({found.basis})"
