"""What `fit` answers: one record per device and form, and how each of its numbers is found."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, get_args

from mla_cost import api
from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.command import command_of, search_command
from mla_cost.inputs.config import DeviceConfig, ModelConfig, validated
from mla_cost.inputs.keywords import PlanKeywords
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.resolve import Illegal, named
from mla_cost.results import Plan, Status, Verdict
from mla_cost.studies.longest.bounds import divisors, largest
from mla_cost.studies.longest.fastest import Fastest, fastest
from mla_cost.studies.longest.fewest import MOST_DEGREE, Layout, Watch, as_few, fewest, unwatched
from mla_cost.studies.longest.needs import FitQuestion, Needs, needs_of, room

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "mla-cost/fit/1"
MAX_SEQ_LEN = 16_777_216
LARGEST_MAX_SEQ_LEN = 2**30
MAX_BATCH = 2**20
HELD = ("tp", "etp", "virtual_stages", "micro_batch", "sharding", "remat")  # where the fewest devices are looked for
By = Literal["first", "time"]  # which of several layouts on the fewest devices is told
LimitedBy = Literal["memory", "max_seq_len", "kernel", "illegal"]


class Fit(NamedTuple):
    """One form on one device.

    max_seq_len: the longest legal sequence that fits; None where none does. seq_len_step: legal lengths are multiples
    of it. limited_by: `memory`; `max_seq_len`, the end of the search; `kernel`, where no implementation trains the form
    on the device; `illegal`, where no program exists. min_sp, min_devices: for target_seq_len tokens, None where
    nothing fits; min_layout: the degrees that take min_devices. required_bytes: at max_seq_len;
    next_required_bytes: at the next legal length, which does not fit (None: it is not asked or past exact numbers).
    min_sp_status, min_status: whether that fits or is tight; min_reason: its verdict's, as plan gives it;
    min_headroom_bytes: what min_layout leaves; min_least_headroom_bytes: where libraries take the most that they may;
    min_global_batch: sequences of an optimizer step there; min_command: what plans it; where the fastest of several is
    asked for, min_seconds of its step, min_tokens_per_second, min_layouts: on as few devices, min_too_close: of those
    how many the band of the device's ceilings could put first;
    command: what plans max_seq_len; wider_command: the search over
    what was held. notes: what it stands on.
    """

    form: str
    scheme: str
    kernel: str
    scope: str
    device: str
    max_seq_len: int | None
    seq_len_step: int
    min_sp: int | None
    min_devices: int | None
    limited_by: LimitedBy
    target_seq_len: int
    min_layout: Mapping[str, Any] | None
    required_bytes: int | None
    next_required_bytes: int | None
    usable_bytes: int | None
    reason: str
    notes: tuple[str, ...] = ()
    min_sp_status: Status | None = None
    min_status: Status | None = None
    min_headroom_bytes: int | None = None
    min_global_batch: int | None = None
    min_command: str | None = None
    min_reason: str | None = None
    min_least_headroom_bytes: int | None = None
    wider_command: str | None = None
    command: str | None = None
    min_seconds: float | None = None
    min_tokens_per_second: float | None = None
    min_layouts: int | None = None
    min_too_close: int | None = None

    def plan(self) -> Plan | None:
        """The plan of the longest sequence that fits, as `command` prices it; None where none does."""
        from mla_cost.studies.planned import plan_of

        return None if self.command is None else plan_of(self.command)

    def min_plan(self) -> Plan | None:
        """The plan of the fewest devices, as `min_command` prices it; None where none fits."""
        from mla_cost.studies.planned import plan_of

        return None if self.min_command is None else plan_of(self.min_command)


class Fits:
    """Every form on every device. Prints as a table; `to_json` gives what `mla-cost fit --format json` prints."""

    schema = SCHEMA

    def __init__(self, inputs: Mapping[str, Any], results: tuple[Fit, ...]) -> None:
        self.inputs = inputs
        self.results = results

    def __getitem__(self, form: str) -> Fit:
        """The result of a form on the first device.

        Raises:
            KeyError: no result has that form.

        """
        for result in self.results:
            if result.form == form:
                return result
        raise KeyError(form)

    @property
    def refused(self) -> str:
        """Why no row has an answer; empty where one has. A reason that several forms share is reported once."""
        reasons: dict[str, dict[str, None]] = {}
        for row in self.results:
            if row.limited_by != "illegal" or row.min_sp or row.min_devices:
                return ""
            reasons.setdefault(row.reason, {})[row.form] = None
        return "; ".join(f"{', '.join(forms)}: {reason}" for reason, forms in reasons.items())

    def to_dict(self) -> dict[str, Any]:
        """The JSON object as plain dicts and lists."""
        return {
            "schema": self.schema,
            "inputs": dict(self.inputs),
            "results": [result._asdict() for result in self.results],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def _repr_html_(self) -> str:
        """The rows as a table, for notebooks."""
        from mla_cost.results import html

        return html.table(Fit._fields, [result._asdict() for result in self.results])

    def __rich__(self) -> RenderableType:
        """The table, for rich."""
        from mla_cost.views.fit_table import fit_table

        return fit_table(self.to_dict())

    def __repr__(self) -> str:
        """The table as text."""
        from mla_cost.views.fit_table import fit_text

        return fit_text(self.to_dict())


def longest(
    model: str | os.PathLike[str] = defaults.MODEL,
    device: str | os.PathLike[str] | Sequence[str] = defaults.DEVICES,
    *,
    form: str | Sequence[str] = "all",
    max_seq_len: int = MAX_SEQ_LEN,
    zigzag: bool = False,
    global_batch: int | None = None,
    max_idle: int = defaults.MAX_IDLE,
    by: By = "first",
    dims: Mapping[str, Any] | None = None,
    **settings: Unpack[PlanKeywords],
) -> Fits:
    """The longest sequence that fits, per device and form; the least sp and the fewest devices for `seq_len` tokens.

    Legal lengths are multiples of sp tp up to max_seq_len (tokens); with zigzag, which gives each rank two pieces of a
    sequence, of 2 sp tp where sp > 1. Every further keyword is a field of `mla_cost.inputs.settings.PlanSettings`,
    as for
    `plan`; scope "attention" prices one block or `layers` of them, "model" the worst stage. At the model scope the
    fewest devices are looked for over sp, pp, ep and dp at the tp asked, with the micro-batches of global_batch
    (sequences of an optimizer step), or where nobody said, as many as leave a stage waiting at most max_idle per cent
    of its schedule, as a search has it; of several layouts on as few, by "time" asks for the one that trains most
    tokens a second as `plan` predicts them, in place of the first. Raises `mla_cost.InputError` for bad input.

    >>> import mla_cost
    >>> found = mla_cost.longest(device="910b-64gb", scope="attention", kernel="eager", sp=8, seq_len=65536)
    >>> found["laga"].max_seq_len, found["laga"].seq_len_step, found["laga"].limited_by
    (25648, 8, 'memory')
    >>> found["laga"].min_sp  # a block's eager scores of 65,536 tokens
    64
    """
    given = api._given(model, device, form, dims, settings)
    if not isinstance(zigzag, bool):
        raise InputError("must be true or false", field="zigzag", value=zigzag)
    return of(
        validated(PlanSettings, given),
        max_seq_len=max_seq_len,
        zigzag=zigzag,
        global_batch=global_batch,
        max_idle=max_idle,
        by=by,
    )


def of(
    settings: PlanSettings,
    *,
    max_seq_len: int = MAX_SEQ_LEN,
    zigzag: bool = False,
    global_batch: int | None = None,
    max_idle: int = defaults.MAX_IDLE,
    by: By = "first",
    watch: Watch = unwatched,
) -> Fits:
    """Answer for the settings of a plan; its seq_len is the target.

    global_batch: sequences of an optimizer step. Without it and without micro_batches, as many micro-batches as stages.
    watch: hears now and then what is going on, how much is done, and of how much.
    """
    if type(max_idle) is not int or not 0 <= max_idle <= 100:
        raise InputError("out of range", field="max_idle", value=max_idle, allowed="a whole number from 0 to 100")
    if by not in get_args(By):
        raise InputError("is no order of layouts", field="by", value=by, allowed=", ".join(get_args(By)))
    settings = _batched(api._for_scope(settings), global_batch)
    if by == "time" and settings.scope != "model":
        raise InputError("belongs to scope model", field="by", allowed="--scope model")
    model = api.model_with_dims(settings)
    devices = [catalog.device(name) for name in settings.device]
    _require(settings, max_seq_len, _step(settings, settings.sp, zigzag))
    _require_target(settings, zigzag)
    shared: dict[Hashable, Any] = {}
    search = _Search(model, settings, max_seq_len, zigzag, shared, global_batch, max_idle, watch, by)
    results = tuple(search.fit(device, form) for device in devices for form in settings.form)
    own = {"max_seq_len": max_seq_len, "zigzag": zigzag, "global_batch": global_batch, "max_idle": max_idle, "by": by}
    return Fits(_inputs(settings, model, devices, own), results)


def _batched(settings: PlanSettings, global_batch: int | None) -> PlanSettings:
    """The settings with the micro-batches of the global batch, else enough of them for a full pipeline.

    Raises:
        InputError: a batch that the degrees do not make, or that belongs to another scope.

    """
    if global_batch is None:
        stated = "micro_batches" in settings.model_fields_set
        return settings if stated else settings.model_copy(update={"micro_batches": settings.pp})
    if settings.scope != "model":
        raise InputError("belongs to scope model", field="global_batch", allowed="--scope model")
    if type(global_batch) is not int or not 1 <= global_batch <= MAX_BATCH:
        allowed = f"a whole number from 1 to {MAX_BATCH}"
        raise InputError("out of range", field="global_batch", value=global_batch, allowed=allowed)
    once = settings.micro_batch * settings.dp
    if global_batch % once:
        allowed = f"a multiple of micro_batch {settings.micro_batch} x dp {settings.dp}"
        raise InputError("does not split over the ranks", field="global_batch", value=global_batch, allowed=allowed)
    times = global_batch // once
    if "micro_batches" in settings.model_fields_set and settings.micro_batches != times:
        allowed = f"{times}, or to be left out: global_batch {global_batch} makes them"
        raise InputError(
            "does not make the global batch", field="micro_batches", value=settings.micro_batches, allowed=allowed
        )
    return settings.model_copy(update={"micro_batches": times})


def _require(settings: PlanSettings, max_seq_len: int, step: int) -> None:
    if not settings.device:
        raise InputError("a fit needs a device to fit on", field="device", allowed="what `mla-cost devices` lists")
    if not settings.form:
        raise InputError("name at least one form", field="form", allowed=", ".join(FORMS))
    for form in settings.form:
        named("form", form, FORMS)
    least = max(2, step)
    if type(max_seq_len) is not int or not least <= max_seq_len <= LARGEST_MAX_SEQ_LEN:
        allowed = f"a whole number from {least} (the least legal length) to {LARGEST_MAX_SEQ_LEN}"
        raise InputError("out of range", field="max_seq_len", value=max_seq_len, allowed=allowed)


def _require_target(settings: PlanSettings, zigzag: bool) -> None:
    """Refuse a target that the degrees asked for do not split, as a plan of it is refused; the default is no target.

    Raises:
        InputError: naming the nearest lengths that split.

    """
    step = _step(settings, settings.sp, zigzag)
    if "seq_len" not in settings.model_fields_set or settings.seq_len % step == 0:
        return
    below = settings.seq_len // step * step
    pieces = " in two pieces a rank (zigzag)" if zigzag and settings.sp > 1 else ""
    allowed = " or ".join(f"{length}" for length in (below + step, below) if length)
    message = f"does not split over sp {settings.sp} x tp {settings.tp}{pieces}"
    raise InputError(message, field="seq_len", value=settings.seq_len, allowed=allowed)


def _step(settings: PlanSettings, sp: int, zigzag: bool) -> int:
    """What divides a legal length: sp tp, and twice that where each of several ranks takes two pieces."""
    return sp * settings.tp * (2 if zigzag and sp > 1 else 1)


def _inputs(
    settings: PlanSettings, model: ModelConfig, devices: Sequence[DeviceConfig], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Every resolved setting, and what the devices and the model are."""
    return {
        **settings.model_dump(),
        "model": model.name,
        "dims": model.dims.model_dump(),
        "device": [device.name for device in devices],
        "form": list(settings.form),
        "other_memory": int(settings.other_memory),
        "reserve": {name: int(amount) for name, amount in settings.reserve.items()},
        **own,
        "assumed": api.assumed(settings, model),
        "model_title": model.title,
        "devices": {device.name: {"title": device.title} for device in devices},
    }


class _Longest(NamedTuple):
    """Half of a result: about the longest sequence."""

    max_seq_len: int | None
    limited_by: LimitedBy
    reason: str
    required: int | None = None
    following: int | None = None
    usable: int | None = None


class _Search(NamedTuple):
    """What all forms and devices have in common."""

    model: ModelConfig
    settings: PlanSettings
    max_seq_len: int
    zigzag: bool
    shared: dict[Hashable, Any]
    global_batch: int | None
    max_idle: int
    watch: Watch
    by: By

    def fit(self, device: DeviceConfig, form: str) -> Fit:
        """One form on one device."""
        settings, _ = with_kernel(self.model, device, form, self.settings)
        question = FitQuestion(self.model, device, form, settings, self.shared, self.global_batch, self.max_idle)
        found = self.longest(question)
        least_sp, least, layout = None, None, None
        if found.limited_by != "kernel":
            least_sp, least = self.least_sp(question)
            layout = self.fewest(question, least_sp)
        fast = self.fastest(question, layout) if layout and self.by == "time" else None
        layout = fast.layout if fast else layout
        smallest = {**_smallest(question, layout), **_timed(fast)} if layout else {}
        return Fit(
            form=form,
            scheme=settings.scheme or FORMS[form].scheme,
            kernel=settings.kernel,
            scope=settings.scope,
            device=device.name,
            max_seq_len=found.max_seq_len,
            seq_len_step=self.step(settings.sp),
            min_sp=least_sp,
            min_devices=layout.devices if layout else None,
            limited_by=found.limited_by,
            target_seq_len=settings.seq_len,
            min_layout=_degrees(settings, layout) if layout else None,
            required_bytes=found.required,
            next_required_bytes=found.following,
            usable_bytes=found.usable,
            reason=found.reason,
            notes=tuple(self._notes(settings, least_sp, least, layout)),
            min_sp_status=least.status if least else None,
            wider_command=self.wider(device, form, layout) if layout and settings.scope == "model" else None,
            command=_planned(settings, device, form, found.max_seq_len),
            **smallest,
        )

    def _notes(
        self, settings: PlanSettings, least_sp: int | None, least: Verdict | None, layout: Layout | None
    ) -> Iterator[str]:
        """What the answers stand on."""
        if least is not None and (least.status == "tight" or (least.least_headroom_bytes or 0) < 0):
            yield f"least sp {least_sp}: {least.reason}"
        if layout and settings.scope == "model":
            yield from self._batch(settings, layout)
            yield f"fewest holds {', '.join(f'{name} {getattr(settings, name)}' for name in HELD)} as asked"

    def _batch(self, settings: PlanSettings, layout: Layout) -> Iterator[str]:
        """What the fewest devices stand on: the sequences of a step, and who said so."""
        times = layout.micro_batches
        step = f"an optimizer step of {settings.micro_batch * times * layout.dp:,} sequences"
        made = f"fewest stands on {step}: micro_batch {settings.micro_batch} x {times} x dp {layout.dp}"
        if self.global_batch is not None:
            yield f"{made}, as --global-batch has it"
        elif times > settings.micro_batches or settings.micro_batches == layout.pp:
            filled = f"the least with which a stage of pp {layout.pp} waits at most {self.max_idle} % (--max-idle)"
            yield f"{made}, {filled}; state the batch of your run with --global-batch"
        else:
            yield f"{made}, micro_batches as stated; --global-batch states the whole step instead"

    def wider(self, device: DeviceConfig, form: str, layout: Layout) -> str | None:
        """The search over what fit holds, on fewer devices: these, and five, six and seven eighths and half of them."""
        counts = sorted({max(1, layout.devices * eighths // 8) for eighths in (4, 5, 6, 7, 8)})
        if len(counts) == 1:
            return None
        batch = self.global_batch or _power_of_two(self.settings.micro_batch * layout.micro_batches * layout.dp)
        own = {} if self.max_idle == defaults.MAX_IDLE else {"max_idle": self.max_idle}
        asked = self.settings.model_copy(update={"device": (device.name,), "form": (form,)})
        return search_command(asked, devices=",".join(map(str, counts)), global_batch=batch, **own)

    def step(self, sp: int) -> int:
        """What divides a legal length."""
        return _step(self.settings, sp, self.zigzag)

    def longest(self, question: FitQuestion) -> _Longest:
        """The longest legal sequence that fits at the degrees asked."""
        step, needs = self.step(question.settings.sp), needs_of(question)
        first = 2 if step == 1 else 1

        def at(times: int) -> PlanSettings:
            return question.settings.model_copy(update={"seq_len": times * step})

        try:
            verdict = needs.verdict(at(first))
            if verdict.status == "unsupported":
                return _Longest(None, "kernel", verdict.reason, usable=verdict.usable_bytes)
            free = room(verdict, needs.peak(at(first)))
        except Illegal as error:
            return _Longest(None, "illegal", str(error))
        last = self.max_seq_len // step
        times = largest(lambda count: _fits(needs, at(count), free), first, last)
        usable = verdict.usable_bytes or 0
        required, following = (
            None if peak is None else peak + usable - free
            for peak in (_peak(needs, at(times)) if times else None, _peak(needs, at(times + 1 if times else first)))
        )
        if times is None:
            reason = f"not even {first * step} tokens fit: {verdict.reason}"
            return _Longest(None, "memory", reason, None, following, usable)
        if times == last:
            return _Longest(last * step, "max_seq_len", "longer ones are not tried", required, None, usable)
        return _Longest(times * step, "memory", "", required, following, usable)

    def least_sp(self, question: FitQuestion) -> tuple[int | None, Verdict | None]:
        """The least sp that holds the target, all else as asked, with its verdict. Needs may rise with sp: a scan."""
        needs, settings = needs_of(question), question.settings
        for sp in self.degrees():
            asked = settings.model_copy(update={"sp": sp})
            try:
                found = needs.verdict(asked)
            except Illegal:
                continue
            if found.status in {"fits", "tight"}:
                return sp, found
        return None, None

    def degrees(self) -> list[int]:
        """The degrees sp that divide the target."""
        target = self.settings.seq_len
        return [sp for sp in divisors(target, MOST_DEGREE) if target % self.step(sp) == 0]

    def fastest(self, question: FitQuestion, layout: Layout) -> Fastest | None:
        """The fastest on as few devices as a layout has; None where time is not told."""
        words = f"layouts on {layout.devices:,} devices for {question.form} on {question.device.name}"
        return fastest(
            question, as_few(question, self.step, layout.devices), lambda done: self.watch(words, done, done)
        )

    def fewest(self, question: FitQuestion, least_sp: int | None) -> Layout | None:
        """The fewest devices that hold the target: the ranks that share a block, or those of a whole model."""
        if question.settings.scope == "model":
            return fewest(question, self.step, self.watch)
        return None if least_sp is None else Layout(least_sp, least_sp, 1, 1, 1)


def _planned(settings: PlanSettings, device: DeviceConfig, form: str, seq_len: int | None) -> str | None:
    """What plans a length; None where there is none."""
    named = {"device": (device.name,), "form": (form,), "seq_len": seq_len}
    return None if seq_len is None else command_of(settings.model_copy(update=named))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _degrees(settings: PlanSettings, layout: Layout) -> dict[str, Any]:
    """The settings that the layout takes; a layout string where its stages are not equal."""
    found: dict[str, Any] = {"tp": settings.tp, "sp": layout.sp, "pp": layout.pp, "ep": layout.ep, "dp": layout.dp}
    if settings.scope == "model":
        found["micro_batches"] = layout.micro_batches
    return found if layout.pipeline_layout is None else {**found, "pipeline_layout": layout.pipeline_layout}


def _timed(fast: Fastest | None) -> dict[str, Any]:
    """What is said of the fastest layout."""
    if fast is None:
        return {}
    return {
        "min_seconds": fast.time.total.seconds,
        "min_tokens_per_second": fast.time.tokens_per_second,
        "min_layouts": fast.layouts,
        "min_too_close": fast.too_close,
    }


def _smallest(question: FitQuestion, layout: Layout) -> dict[str, Any]:
    """The verdict on the fewest devices, and what plans them."""
    settings = layout.of(question.settings)
    verdict = needs_of(question).verdict(settings)
    named = settings.model_copy(update={"device": (question.device.name,), "form": (question.form,)})
    found = {
        "min_status": verdict.status,
        "min_reason": verdict.reason,
        "min_headroom_bytes": verdict.headroom_bytes,
        "min_least_headroom_bytes": verdict.least_headroom_bytes,
        "min_command": command_of(named),
    }
    if settings.scope == "model":
        found["min_global_batch"] = settings.micro_batch * settings.micro_batches * settings.dp
    return found


def _fits(needs: Needs, settings: PlanSettings, free: int) -> bool:
    peak = _peak(needs, settings)
    return peak is not None and peak <= free


def _peak(needs: Needs, settings: PlanSettings) -> int | None:
    """The allocated peak; None where it is past exact numbers, which no device holds."""
    try:
        return needs.peak(settings)
    except Illegal:
        return None
