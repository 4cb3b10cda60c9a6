"""What to change: every single change of a plan, what it does to memory, traffic and flops, and the least that fits.

A degree doubles at the same number of ranks and the same global batch where data parallelism has ranks to give (dp
halves, micro-batches double); where it has none, the ranks double. At the attention scope differences are those of
the blocks that are priced. At the model scope memory is the worst stage's; bytes sent and flops are, per optimizer
step, those of the stage that has most of them, since another stage may be the worst after a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES, offered
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE
from mla_cost.language.recompute import POLICIES
from mla_cost.mesh.placement import even_layout
from mla_cost.pricing import automatic, rows, stage_work
from mla_cost.results import Lever, Result, Status, Verdict

LONGEST = 4  # changes in a row that the search for a fit tries
WIDTH = 4  # plans that it follows at each length
REFUSED: Final = {"illegal", "unsupported"}
OFFLOAD: Final = "optimizer_offload"
ALL_OF_IT: Final = 100  # per cent
_NAMES: Final[Mapping[str, Mapping[str, Any]]] = {"form": FORMS, "scheme": SCHEMES, "kernel": KERNELS}


class Change(NamedTuple):
    """One step away from a plan. ranks: what it multiplies the number of ranks by."""

    lever: str
    update: Mapping[str, Any]
    ranks: int = 1


class PricedPlan:
    """A plan of one form and its row; what it sends and runs is worked out when asked for. Bytes, flops."""

    def __init__(self, model: ModelConfig, device: DeviceConfig, settings: PlanSettings, row: Result) -> None:
        self.model = model
        self.device = device
        self.settings = settings
        self.row = row

    def after(self, change: Change, *, timed: bool = False) -> PricedPlan:
        """The plan with a change; one that cannot be is an illegal row with the reason. timed: with its seconds."""
        settings = _changed(self, change)
        try:
            (row,) = rows.rows(self.model, self.device, settings, timed=timed)
        except InputError as error:
            row = rows.illegal(self.device, settings.form[0], settings, str(error))
        return PricedPlan(self.model, self.device, settings, row)

    @property
    def verdict(self) -> Verdict:
        """Every row on a device has one."""
        assert self.row.verdict is not None
        return self.row.verdict

    @property
    def status(self) -> Status:
        """That of the verdict."""
        return self.verdict.status

    @property
    def required(self) -> int:
        """Bytes that the verdict compares with what is usable."""
        return self.verdict.required_bytes or 0

    @property
    def seconds(self) -> float | None:
        """How long the blocks, or an optimizer step, take."""
        return None if self.row.time is None else self.row.time.total.seconds

    @property
    def sent(self) -> int:
        """Bytes that the rank sends, all axes and phases."""
        return self._work[0]

    @property
    def executed(self) -> int:
        """Flops that the rank runs, forward and backward."""
        return self._work[1]

    @cached_property
    def saved(self) -> Counter[tuple[str, str, int]]:
        """What one micro-batch keeps for backward: layer, name and bytes of every storage."""
        stage = self.row.settings.get("stage", 0)
        return stage_work.saved(self.model, self.device, self.row.form, self.settings, stage)

    @cached_property
    def _work(self) -> tuple[int, int]:
        most = stage_work.most_of_stages(self.model, self.device, self.row.form, self.settings)
        return most.wire_bytes, most.executed


Allowed = Callable[[PlanSettings], bool]


def anything(_: PlanSettings) -> bool:
    """That every plan may be advised."""
    return True


def with_levers(
    model: ModelConfig,
    device: DeviceConfig,
    settings: PlanSettings,
    row: Result,
    *,
    refused: bool = False,
    allowed: Allowed = anything,
) -> Result:
    """The row with its verdict's levers and remedy filled in. refused: levers that are refused are reported as well.

    allowed: which plans may be advised, and passed on the way; a search keeps to its own limits.
    """
    if row.verdict is None or row.verdict.status == "illegal":
        return row  # its reason names the way out
    asked = PricedPlan(model, device, settings.model_copy(update={"form": (row.form,)}), row)
    found = [lever(asked, change) for change in changes(asked) if allowed(_changed(asked, change))]
    reported = sorted((it for it in found if _tells(it, refused)), key=_order)
    return row._replace(verdict=row.verdict._replace(levers=tuple(reported), remedy=remedy(asked, allowed)))


def _changed(plan: PricedPlan, change: Change) -> PlanSettings:
    return plan.settings.model_copy(update=dict(change.update))


# ---- the changes


def changes(asked: PricedPlan) -> Iterator[Change]:
    """Every change that may be tried from here, legal or not."""
    settings, row = asked.settings, asked.row
    yield from (Change("form", {"form": (form,), "scheme": None}) for form in FORMS if form != row.form)
    if settings.sp > 1:
        yield from (Change("scheme", {"scheme": scheme}) for scheme in offered() if scheme != row.scheme)
    yield from _kernels(asked)
    yield from _others("v_layout", settings)
    yield from (
        Change("remat", {"remat": policy})
        for policy in _policies(settings.remat, PROFILES[settings.profile].recomputes)
    )
    if settings.micro_batch % 2 == 0:
        yield Change("micro_batch", {"micro_batch": settings.micro_batch // 2, **_more_batches(settings)})
    yield _degree("sp", settings)
    if settings.scope == "model":
        yield from (_degree(axis, settings) for axis in ("tp", "ep"))
        yield _pipeline(asked.model, settings)
        yield from (Change("sharding", {"sharding": name}) for name in SHARDINGS if name != settings.sharding)
        if SHARDINGS[settings.sharding].offload is not None and settings.optimizer_offload < ALL_OF_IT:
            yield Change(OFFLOAD, {OFFLOAD: ALL_OF_IT})


def _kernels(asked: PricedPlan) -> Iterator[Change]:
    """Each other kernel, with the value padding under which it trains."""
    options = automatic.training_kernels(asked.model, asked.device, asked.row.form, asked.settings)
    padding = {option.kernel: option.value_padding for option in options}
    for kernel in KERNELS:
        if kernel != asked.row.kernel:
            yield Change("kernel", {"kernel": kernel, "value_padding": padding.get(kernel)})


def _others(field: str, settings: PlanSettings) -> Iterator[Change]:
    """The other values of a setting that is one of a few words."""
    yield from (Change(field, {field: value}) for value in TABLE[field].values if value != getattr(settings, field))


def _policies(now: str, own: tuple[str, ...]) -> Iterator[str]:
    """Every other policy by itself, and each that the present one can be joined with. own: a profile's further ones."""
    yield from (policy for policy in (*POLICIES, *own) if policy != now)
    held = now.split("+")
    parts = [*(name for name, pieces in POLICIES.items() if pieces and not _whole(name)), *own]
    if set(held) <= set(parts):
        yield from (f"{now}+{name}" for name in parts if name not in held)


def _whole(policy: str) -> bool:
    """Whether it wraps whole layers, so that nothing is left to join it with."""
    return "layer" in POLICIES[policy]


def _more_batches(settings: PlanSettings) -> dict[str, int]:
    """Twice the micro-batches of a step, where the scope counts them."""
    return {"micro_batches": settings.micro_batches * 2} if settings.scope == "model" else {}


def _degree(axis: str, settings: PlanSettings) -> Change:
    """Twice the ranks of an axis. Experts are spread over ranks that are there already."""
    doubled = {axis: getattr(settings, axis) * 2}
    if axis == "ep":
        return Change(axis, doubled)
    if settings.dp % 2:
        return Change(axis, doubled, ranks=2)
    return Change(axis, {**doubled, "dp": settings.dp // 2, **_more_batches(settings)})


def _pipeline(model: ModelConfig, settings: PlanSettings) -> Change:
    """Twice the stages; where layers do not split over them equally, or had a layout, with an even layout."""
    change = _degree("pp", settings)
    pp, layers, chunks = settings.pp * 2, model.num_layers or 0, settings.virtual_stages
    if settings.pipeline_layout is None and layers % (pp * chunks) == 0:
        return change
    if pp * chunks > layers:
        return change._replace(update={**change.update, "pipeline_layout": None})
    ends = {name: None for name in ("first_layers", "last_layers") if getattr(settings, name) is not None}
    layout = even_layout(layers, model.num_mtp_layers or 0, pp * chunks)
    return change._replace(update={**change.update, **ends, "pipeline_layout": layout})


# ---- what a change does


def lever(asked: PricedPlan, change: Change) -> Lever:
    """A change with what it does."""
    after = asked.after(change, timed=asked.row.time is not None)
    made = after.status != "illegal"
    timed = made and change.lever != OFFLOAD  # a step on the host is not timed
    dropped, kept = _exchanged(asked, after) if made and change.lever == "remat" else (None, None)
    return Lever(
        lever=change.lever,
        change=words(asked, after),
        settings={name: list(value) if isinstance(value, tuple) else value for name, value in change.update.items()},
        required_bytes=after.required if made else None,
        required_delta_bytes=after.required - asked.required if made else None,
        sent_bytes=after.sent if made else None,
        sent_delta_bytes=after.sent - asked.sent if made else None,
        flops=after.executed if made else None,
        flops_delta=after.executed - asked.executed if made else None,
        ranks_factor=change.ranks,
        status=after.status,
        reason=after.verdict.reason if after.status in REFUSED else "",
        dropped_bytes=dropped,
        kept_bytes=kept,
        seconds=after.seconds if timed else None,
        seconds_delta=_less(after.seconds, asked.seconds) if timed else None,
    )


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _exchanged(before: PricedPlan, after: PricedPlan) -> tuple[int, int]:
    """Bytes that a micro-batch no longer keeps for backward, and those that it keeps instead."""
    gone, new = before.saved - after.saved, after.saved - before.saved
    return _bytes(gone), _bytes(new)


def _bytes(storages: Counter[tuple[str, str, int]]) -> int:
    return sum(amount * count for (_, _, amount), count in storages.items())


def _tells(lever: Lever, refused: bool) -> bool:
    """A lever that is refused is reported when asked; one that changes nothing has nothing to tell."""
    if lever.status in REFUSED:
        return refused
    return any((lever.required_delta_bytes, lever.sent_delta_bytes, lever.flops_delta))


def _order(lever: Lever) -> tuple[bool, int, int, int, str]:
    """What frees most first; what is refused last."""
    known = (lever.required_delta_bytes or 0, lever.sent_delta_bytes or 0, lever.flops_delta or 0)
    return lever.status in REFUSED, *known, lever.change


def words(before: PricedPlan, after: PricedPlan) -> str:
    """Every setting that differs, as `tp 1 -> 2, dp 8 -> 4`; names that the program chose are those of the rows."""
    named = {field: (getattr(before.row, field), getattr(after.row, field)) for field in ("form", "scheme", "kernel")}
    reported = [f"{field} {now}" for field, (was, now) in named.items() if now != was and now in _NAMES[field]]
    for field in PlanSettings.model_fields:
        was, now = getattr(before.settings, field), getattr(after.settings, field)
        if field not in {*named, "value_padding"} and was != now:
            reported.append(_step(field, was, now))
    return ", ".join(reported)


def _step(field: str, was: object, now: object) -> str:
    if isinstance(now, int) and isinstance(was, int):
        return f"{field} {was} -> {now}"
    return f"no {field}" if now is None else f"{field} {now}"


# ---- the least that fits


class _Found(NamedTuple):
    plan: PricedPlan
    ranks: int


def remedy(asked: PricedPlan, allowed: Allowed = anything) -> str | None:
    """The smallest change that makes it fit, in words; None where it fits already.

    Smallest: on as many ranks as now if that can be, then the fewest steps (a doubling, a halving or another name is
    one), then the fewest bytes sent, then the fewest flops. Up to LONGEST steps are tried, the WIDTH plans that need
    least going on at each length.
    """
    if asked.status in {"fits", "tight", "illegal"}:
        return None
    found = _search(asked, allowed)
    return f"no {LONGEST} changes of these settings make it fit" if found is None else _reported(asked, found)


def _reported(asked: PricedPlan, found: _Found) -> str:
    more = f" on {found.ranks} times the ranks" if found.ranks > 1 else ""
    verdict = found.plan.verdict
    tight = "" if verdict.status == "fits" else f"{verdict.status}, "
    price = " and ".join(_price(asked, found.plan))
    change = f"{words(asked, found.plan)}{more}: {tight}{verdict.reason}"
    return f"{change}; it {price}" if price else change


def _price(before: PricedPlan, after: PricedPlan) -> Iterator[str]:
    """What a change costs beside memory, or spares."""
    moved, run = after.sent - before.sent, before.executed
    if moved:
        yield f"sends {abs(moved) / 2**30:,.2f} GiB {'more' if moved > 0 else 'less'}"
    share = 100 * (after.executed - run) / run if run else 0
    if abs(share) >= 0.5:
        yield f"runs {abs(share):.0f} % {'more' if share > 0 else 'fewer'} flops"


def _search(asked: PricedPlan, allowed: Allowed) -> _Found | None:
    if _hopeless(asked):
        return None
    known: dict[str, PricedPlan] = {}
    same = _shortest(asked, 1, known, allowed)
    return same if same is not None else _shortest(asked, 2**LONGEST, known, allowed)


def _hopeless(asked: PricedPlan) -> bool:
    """Whether states alone rule out every plan that LONGEST changes can lead to, so that none needs to be priced.

    No change leaves less than half the weights of an average stage, and the worst stage has no less than the average.
    Where nothing is held twice, no change leaves less than half of Adam's moments either: it at most doubles the ranks.
    What is visible bounds what is usable after any change.
    """
    stages, settings = asked.row.memory.stages or (), asked.settings
    least = sum(stage.weight_bytes for stage in stages)
    if settings.tp == settings.sp == settings.dp == 1:
        least += sum(stage.moments_bytes for stage in stages)
    reach: int = 2**LONGEST * asked.device.visible_bytes.integer * len(stages)
    return least > reach


def _shortest(asked: PricedPlan, most: int, known: dict[str, PricedPlan], allowed: Allowed) -> _Found | None:
    """The best of the plans that are the fewest steps away and fit, or are tight where none fits.

    most: how many times the ranks it may take. known: plans priced already, by their settings.
    """
    front, seen, tight = [_Found(asked, 1)], {_name(asked.settings)}, None
    for _ in range(LONGEST):
        found = [step for at in front for step in _steps(at, most, seen, known, allowed)]
        fitting = [step for step in found if step.plan.status == "fits"]
        if fitting:
            return min(fitting, key=_least)
        nearly = [step for step in found if step.plan.status == "tight"]
        tight = tight or min(nearly, key=_least, default=None)
        front = sorted(found, key=lambda step: step.plan.required)[:WIDTH]
    return tight


def _steps(at: _Found, most: int, seen: set[str], known: dict[str, PricedPlan], allowed: Allowed) -> Iterator[_Found]:
    """The plans one step away that can be run and have not been seen."""
    for change in changes(at.plan):
        after = _changed(at.plan, change)
        name = _name(after)
        if at.ranks * change.ranks > most or name in seen:
            continue
        seen.add(name)
        if not allowed(after):
            continue
        plan = known[name] if name in known else known.setdefault(name, at.plan.after(change))
        if plan.status not in REFUSED:
            yield _Found(plan, at.ranks * change.ranks)


def _name(settings: PlanSettings) -> str:
    return settings.model_dump_json()


def _least(found: _Found) -> tuple[int, int, int, int]:
    return found.ranks, found.plan.sent, found.plan.executed, found.plan.required
