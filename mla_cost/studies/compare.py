"""Every form under every scheme at one setting: what is kept, the peak, what is sent and where, and who beats whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings, is_stated
from mla_cost.language.program import Pair, Scheme
from mla_cost.pricing import automatic, times
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.resolve import Illegal, named, resolve
from mla_cost.pricing.step_traffic import PHASES
from mla_cost.results import Seconds
from mla_cost.timing.placement import placement
from mla_cost.timing.rules import SentByLink
from mla_cost.timing.work import busiest_link, sent_by_link

_NODE: Final = 8  # devices of a node where no device is named


class Row(NamedTuple):
    """One form under one scheme. Bytes of one block on one rank; balance: attention of the busiest rank over the mean.

    busiest_link_bytes: most that goes to one other rank, forward and backward: where every rank has a link to every
    other, what the fullest of them carries. time: forward and backward, None without a device whose ceilings are known.
    best: no other row keeps less, peaks lower and sends less at once. why: of a combination without a program.
    """

    form: str
    scheme: str
    kernel: str
    saved_bytes: int | None = None
    peak_bytes: int | None = None
    forward: SentByLink | None = None
    backward: SentByLink | None = None
    busiest_link_bytes: int | None = None
    balance: Fraction | None = None
    time: Seconds | None = None
    basis: str = ""
    best: bool = False
    why: str = ""

    @property
    def merits(self) -> tuple[int, ...]:
        """What less of is better."""
        if self.saved_bytes is None or self.peak_bytes is None or self.forward is None or self.backward is None:
            raise ValueError("a row without a program has no merits")
        sent = self.forward.both + self.backward.both, self.forward.between + self.backward.between
        return self.saved_bytes, self.peak_bytes, *sent

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        balance = None if self.balance is None else float(self.balance)
        near = {name: each._asdict() if each else None for name, each in self._sent()}
        time = None if self.time is None else self.time._asdict()
        return {**self._asdict(), **near, "balance": balance, "time": time}

    def _sent(self) -> tuple[tuple[str, SentByLink | None], ...]:
        return ("forward", self.forward), ("backward", self.backward)


class Comparison(NamedTuple):
    """Rows with a program, those that send least first, and rows without. node: devices of a node."""

    model: str
    device: str
    settings: PlanSettings
    node: int
    rows: tuple[Row, ...]
    refused: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        asked = {name: getattr(self.settings, name) for name in ("seq_len", "sp", "sp_inside", "tp", "micro_batch")}
        return {
            "schema": "mla-cost/compare/1",
            "inputs": {"model": self.model, "device": self.device, **asked, "devices_per_node": self.node},
            "results": [row.to_dict() for row in self.rows],
            "refused": [{"form": row.form, "scheme": row.scheme, "reason": row.why} for row in self.refused],
        }


def compare(settings: PlanSettings, schemes: Sequence[str] = ()) -> Comparison:
    """Compare forms and schemes at one setting: one block, whose surroundings are plain torch whoever runs the scheme.

    schemes: these only; else all that are declared, but for those whose moves are inferred.

    Raises:
        InputError: an unknown name.

    """
    settings = settings.model_copy(update={"scope": "attention", "profile": "reference"})
    wanted = [named("scheme", name, SCHEMES) for name in schemes]
    chosen = wanted or [scheme for scheme in SCHEMES.values() if scheme.basis != "inferred"]
    model = catalog.changed(catalog.model(settings.model), settings.dims, settings.facts)
    device = catalog.device(settings.device[0]) if settings.device else None
    node = settings.devices_per_node or (device.linked_devices if device else _NODE)
    found = [_row(model, device, settings, name, scheme, node) for name, scheme in _pairs(settings.form, chosen)]
    rows = sorted((row for row in found if not row.why), key=lambda row: (row.merits[2], row.merits))
    marked = tuple(row._replace(best=_unbeaten(row, rows)) for row in rows)
    refused = tuple(row for row in found if row.why)
    return Comparison(model.name, device.name if device else "none", settings, node, marked, refused)


def _pairs(forms: Sequence[str], schemes: Sequence[Scheme]) -> Iterator[tuple[str, Scheme]]:
    """Each form with each scheme; a pair that bears a name of its own stands under that name."""
    named_pairs = {(each.form, each.scheme): name for name, each in FORMS.items() if isinstance(each, Pair)}
    asked = [named("form", name, FORMS).name for name in forms]
    for form in asked:
        declared = FORMS[form]
        for scheme in schemes:
            if isinstance(declared, Pair):
                if scheme.name == declared.scheme:
                    yield form, scheme
            elif named_pairs.get((form, scheme.name)) not in asked:
                yield form, scheme


def priced(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, form: str, scheme: Scheme
) -> BlockFigures | str:
    """The figures of one form under one scheme, or why it has no program.

    With the kernel that was named, else the first that trains it on the device, or any fused one.
    """
    asked = settings.model_copy(update={"scheme": scheme.name})
    kernels = [settings.kernel] if is_stated(settings, "kernel") else _kernels(model, device, form, asked)
    why = ""
    for kernel in kernels:
        try:
            point = resolve(model, form, asked.model_copy(update={"kernel": kernel}), whoever=True)
            return figures(point, device.family if device else "none", settings.layers)
        except Illegal as error:
            why = why or str(error)
    return why


def _row(
    model: ModelConfig, device: DeviceConfig | None, settings: PlanSettings, form: str, scheme: Scheme, node: int
) -> Row:
    it = priced(model, device, settings, form, scheme)
    if isinstance(it, str):
        return Row(form, scheme.name, "", why=it)
    taken = times.block_time(it, device, settings)
    return _priced(it, form, scheme, settings, node)._replace(time=taken.total if taken else None)


def _kernels(model: ModelConfig, device: DeviceConfig | None, form: str, settings: PlanSettings) -> list[str]:
    """The kernels to try: those that train the form on the device, then every fused one."""
    trains = automatic.training_kernels(model, device, form, settings) if device else ()
    fused = (kernel.name for kernel in KERNELS.values() if kernel.fused)
    return list(dict.fromkeys((*(each.kernel for each in trains), *fused)))


def _priced(it: BlockFigures, form: str, scheme: Scheme, settings: PlanSettings, node: int) -> Row:
    lie = placement(settings, settings.axis_order, node)
    found = (sent_by_link(it.at, lie, PHASES[way], "sp") for way in ("forward", "backward"))
    forward, backward = (SentByLink(round(sent.inside), round(sent.between)) for sent in found)
    return Row(
        form=form,
        scheme=scheme.name,
        kernel=it.point.kernel.name,
        saved_bytes=it.saved_bytes,
        peak_bytes=it.peak_bytes,
        forward=forward,
        backward=backward,
        busiest_link_bytes=busiest_link(it.at),
        balance=balance(scheme, it, settings),
        basis=scheme.basis,
    )


def balance(scheme: Scheme, it: BlockFigures, settings: PlanSettings) -> Fraction:
    """Attention of the busiest rank over the mean: of neighbouring positions under a causal mask the last has most."""
    ranks = settings.sp
    even = not settings.causal or scheme.deal == "zig-zag" or it.point.key.predicates.heads_divided
    return Fraction(1) if even or ranks == 1 else Fraction(2 * ranks - 1, ranks)


def _unbeaten(row: Row, rows: Sequence[Row]) -> bool:
    return not any(other.merits != row.merits and all(map(int.__le__, other.merits, row.merits)) for other in rows)
