"""Which fused kernels train a form's heads on a device, and which of them stands in place of kernel `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.program import Kernel, Limit, ProgramError
from mla_cost.pricing.key import Key, form_of
from mla_cost.pricing.resolve import Illegal, Point, resolve

AUTO: Final = "auto"
EAGER: Final = defaults.ATTENTION_KERNEL
# what decides which kernel `auto` is, beside form and device: symbols of a head's widths, and settings
DECIDING_WIDTHS: Final = ("d_c", "k", "r", "v")
DECIDING_SETTINGS: Final = ("profile", "dtype", "value_padding")
# all else is put aside: a scheme may divide a sequence further than heads, and tp leaves a head's widths alone
_BARE: Final[Mapping[str, Any]] = {
    "profile": defaults.PROFILE,
    "remat": "none",
    "scheme": None,
    "sp": 1,
    "tp": 1,
}


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
    With it, why that one: empty where a kernel was named. Lengths and degrees decide nothing here.
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

    A kernel is tried with its own value padding first; the first that trains is the one that is selected. padding: try
    this one only.
    """
    shared = form_of(form).shared_key if form in FORMS else False  # an unknown name is refused by name later
    fused = (kernel for kernel in KERNELS.values() if kernel.fused and not (shared and kernel.shared_text is None))
    found = (_training(model, device, form, settings, kernel, padding) for kernel in fused)
    return tuple(option for option in found if option is not None)


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
        limit = trainer(point, device)
        if limit is not None:
            return Training(kernel.name, point.key.value_padding, limit)
    return None


# ---- widths of heads


FUSED: Final = "fused"  # of the setting `attention_backend`: the kernel's own attention runs


def head_widths(key: Key, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """The widths of one head that the kernel sees, padding included: of Q and K, and of V. Numbers or arrays."""
    form, size = form_of(key.form), key.predicates.size
    qk = size(key.predicates.present(form.qk)).at(values)
    return qk, qk if key.value_padding != "none" else size(form.value).at(values)


def trainer(point: Point, device: DeviceConfig) -> Limit | None:
    """The first implementation of a point's kernel that trains its heads on a device."""
    widths = head_widths(point.key, point.values)
    return next((limit for limit in point.kernel.limits if limit.trains(device.arch, *widths, point.key.dtype)), None)


def trained(kernel: Kernel, arch: str, key: Key, values: Mapping[str, Any]) -> Any:
    """Whether some implementation trains a kernel's heads on an architecture: a truth value, or an array of them.

    What is not fused needs nobody's kernel.
    """
    if not kernel.fused or key.attention_backend != FUSED:
        return True
    found: Any = False
    for limit in kernel.limits:
        found = found | limit.trains(arch, *head_widths(key, values), key.dtype)
    return found
