"""What the page of a model computes: every form and kernel of one attention block, as JavaScript of its polynomials.

The structure of a program depends on few facts, and the page holds a program for each combination of those that its
boxes can reach: one rank or more, one head of a rank or more, one sequence or more, V padded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from mla_cost.batch.blocks import FIGURES, BlockAsked, compiled
from mla_cost.batch.programs import ProgramRows, compiled_account
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import Predicates
from mla_cost.language.fused_workspace import CALL
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import Kernel, ProgramError, sizes_asked
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing import usable as devices
from mla_cost.pricing.automatic import trained
from mla_cost.pricing.resolve import Illegal, Point, resolve, scheme_of
from mla_cost.studies.javascript import Js, of_polynomial, printed, with_values

SYMBOLS: Final = ("S", "P", "P_others", "b", "n", "l", "s", "h", "d_q", "d_c", "k", "r", "v", "r_half", "s_half")
WIDTHS: Final = ("hidden", "heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
NOT_HELD: Final = (
    "one position per rank", "a stack of blocks", "scope model", "a scheme other than the form's own", "recomputation",
    "dtypes beside bf16", "other layouts, masks and profiles",
)  # fmt: skip

COLUMNS: Final = {
    "needs": "required_bytes", "usable": "usable_bytes", "peak": "peak_bytes", "saved": "saved_bytes",
    "weights": "parameter_bytes", "payload": "payload_bytes", "sent": "wire_bytes",
}  # fmt: skip


class NumberBox(NamedTuple):
    """A number that the page asks for. name: of the setting, or of the dim."""

    name: str
    value: int
    least: int
    most: int
    step: int
    doubles: bool


class Calculator(NamedTuple):
    """All that the page holds.

    boxes, selects: what it asks for, of the latter the words of every option. start: what selects begin with. columns:
    figures of an answer by their heads. axes: over which anything is sent. code: JavaScript
    that defines what the script of its scope asks for: PROGRAMS, WHICH, REFUSED, TRAINED, USABLE, STATUS.
    """

    title: str
    name: str
    scope: str
    boxes: tuple[NumberBox, ...]
    selects: Mapping[str, Mapping[str, str]]
    forms: tuple[str, ...]
    start: Mapping[str, Any]
    columns: Mapping[str, str]
    not_held: tuple[str, ...]
    code: str
    axes: tuple[str, ...] = ()


def calculator(model: ModelConfig, name: str) -> Calculator:
    """What the page of a model holds. name: what a command calls the model.

    Raises:
        InputError: no form and kernel has a program for it.

    """
    known = {name: catalog.device(name) for name in catalog.device_names()}
    kinds = {kinds_of(device.family): None for device in known.values()}
    programs: dict[str, int] = {}
    which: dict[str, int] = {}
    held: dict[tuple[str, str, bool], Point] = {}
    for place, point in _points(model):
        text = _program(compiled(BlockAsked(point.key, tuple(kinds), stacked=False)), point)
        which[place] = programs.setdefault(text, len(programs))
        held.setdefault((point.form, point.kernel.name, point.key.value_padding != "none"), point)
    if not which:
        raise InputError("no form has a program for this model", field="MODEL", value=model.name)
    code = [
        f"const PROGRAMS=[{','.join(programs)}];",
        f"const WHICH={code_object({name: str(at) for name, at in which.items()})};",
        f"const REFUSED={code_object({form: _refused(form) for form in FORMS})};",
        f"const TRAINED={code_object(_trained(held, known))};",
        f"const KINDS={code_object({n: str(list(kinds).index(kinds_of(d.family))) for n, d in known.items()})};",
        f"const ARCH={code_object({name: repr(device.arch) for name, device in known.items()})};",
        f"const USABLE={code_object({name: f'P=>{_usable(device)}' for name, device in known.items()})};",
        f"const STATUS=(headroom,usable,trained)=>{status_code()};",
        f"const PADS={code_object({name: str(KERNELS[name].value_padding == 'qk').lower() for name in KERNELS})};",
        f"const SHARED={code_object({form: _shared(form) for form in FORMS})};",
    ]
    kernels = tuple(dict.fromkeys(point.kernel.name for point in held.values()))
    titles = {name: f"{name} ({device.title})" for name, device in known.items()}
    start = {"kernel": kernels[0], "device": next(iter(PlanSettings().device), next(iter(known)))}
    selects = {"device": titles, "kernel": {kernel: kernel for kernel in kernels}}
    text, boxes = "\n".join(code), tuple(_boxes(model))
    return Calculator(model.title, name, "attention", boxes, selects, tuple(FORMS), start, COLUMNS, NOT_HELD, text)


def code_object(entries: Mapping[str, str]) -> str:
    """An object of expressions by name."""
    return "{" + ",".join(f"{name!r}:{text}" for name, text in entries.items()) + "}"


def _shared(form: str) -> str:
    from mla_cost.pricing.key import form_of

    return str(form_of(form).shared_key).lower()


def _boxes(model: ModelConfig) -> Iterator[NumberBox]:
    usual = PlanSettings(scope="attention")
    yield NumberBox("seq_len", usual.seq_len, 2, 1 << 24, 1, doubles=True)
    yield NumberBox("sp", usual.sp, 1, 1024, 1, doubles=True)
    yield NumberBox("micro_batch", usual.micro_batch, 1, 256, 1, doubles=True)
    for name in WIDTHS:
        value = getattr(model.dims, name)
        if value:
            yield NumberBox(
                name, value, 2 if name == "qk_rope_head_dim" else 1, 65536, 2 if "rope" in name else 1, False
            )


# ---- programs


def _points(model: ModelConfig) -> Iterator[tuple[str, Point]]:
    """A point for each structure that the page can reach, by the name that the page finds it under."""
    either, dims = (False, True), model.dims
    for (form, kernel), many, heads, batch, wide in product(product(FORMS, KERNELS), either, either, either, either):
        sp = 1 + many
        width = dims.qk_head_dim
        changed = {"heads": sp * (1 + heads), "v_head_dim": width if wide else max(1, width // 2)}
        settings = PlanSettings(
            scope="attention", form=(form,), kernel=kernel, seq_len=4 * sp, sp=sp, micro_batch=1 + batch
        )
        try:
            point = resolve(catalog.changed(model, changed, {}, None), form, settings)
            compiled_account(point.key)
        except (Illegal, ProgramError):
            continue
        yield f"{form}|{kernel}|{many:d}{heads:d}{batch:d}{point.key.value_padding != 'none':d}", point


def _program(rows: ProgramRows, point: Point) -> str:
    """A function of the symbols' values: the figures, the peak, and the allocated peak of each family."""
    calls = compiled_account(rows.key).timeline.fused_calls
    first, *peaks = rows.parts
    texts = [_row(rows, row) for row in first.matrix]
    largest = [f"Math.max({','.join(_row(rows, row) for row in part.matrix)})" for part in peaks]
    used = sorted({symbol for monomial in rows.monomials for symbol in monomial} - {"fused_workspace"})
    held = "".join(
        f"const fused_workspace={workspace_code(point.kernel, point.key.predicates, call)};" for call in calls[:1]
    )
    reads = ",".join(SYMBOLS)
    assert set(used) <= set(SYMBOLS), used
    return f"({{{reads}}})=>{{{held}return [[{','.join(texts)}],{','.join(largest)}]}}"


def _row(rows: ProgramRows, row: Any) -> str:
    return of_polynomial(Polynomial({m: int(value) for m, value in zip(rows.monomials, row, strict=True) if value}))


def workspace_code(kernel: Kernel, sizes: Predicates, call: Any, always: Mapping[str, int] | None = None) -> str:
    """What a fused kernel holds inside its backward, from the sizes of its call. always: symbols that are numbers."""

    def of(dim: str) -> Js:
        return Js(f"({of_polynomial(with_values(sizes.size(dim), always or {}))})")

    queries, batch, heads, qk = map(of, call.query)
    key_heads = of(call.key[2]) if len(call.key) == 4 else 1
    given = dict(zip(CALL, (batch, heads, key_heads, queries, of(call.key[0]), qk, of(call.value[-1])), strict=True))
    return printed(lambda: kernel.workspace.over(given, lambda function, *numbers: function(*numbers)))


# ---- rules


def _refused(form: str) -> str:
    """The first requirement of the form's scheme that does not hold, as a function of the values: its message or ''."""
    names = {
        "S": "seq_len",
        "P": "sp",
        "n": "heads",
        "k": "qk_nope_head_dim",
        "r": "qk_rope_head_dim",
        "v": "v_head_dim",
    }
    words = {"sp": "${v.sp}", "heads": "${v.heads}", "seq_len": "${v.seq_len}"}
    return refused_by(form, {symbol: Js(f"v.{name}") for symbol, name in names.items()}, words)


def refused_by(form: str, values: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """As above. values: of symbols. words: what a message has of settings and dims."""
    sizes = sizes_asked(values)
    text = "''"
    for need in reversed(scheme_of(form, None).requires):
        message = need.message.format(**{**dict.fromkeys(sizes, ""), "sp_inside": "1", **words})
        text = f"({printed(partial(need.broken, sizes))}?`{message}`:{text})"
    return f"v=>{text}"


def _trained(held: Mapping[tuple[str, str, bool], Point], known: Mapping[str, DeviceConfig]) -> dict[str, str]:
    """Whether a kernel trains a form's heads on an architecture, padded or not."""
    found = {}
    values = {name: Js(name) for name in SYMBOLS}
    for (form, kernel, padded), point in held.items():
        for arch in dict.fromkeys(device.arch for device in known.values()):
            text = printed(partial(trained, point.kernel, arch, point.key, values))
            found[f"{form}|{kernel}|{padded:d}|{arch}"] = f"({{d_c,k,r,v}})=>{text}"
    return found


def _usable(device: DeviceConfig) -> str:
    settings = PlanSettings(scope="attention")
    return printed(lambda: devices.usable(device, settings, devices.Groups({"sp": Js("P")})).bytes)


def status_code() -> str:
    """The verdict, an expression of `headroom`, `usable` and `trained`."""
    names = list(devices.STATUSES)
    return f"{names!r}[{printed(lambda: devices.status(Js('headroom'), Js('usable'), Js('trained', truth=True)))}]"


__all__ = ["FIGURES", "Calculator", "calculator"]
