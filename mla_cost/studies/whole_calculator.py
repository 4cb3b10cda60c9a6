"""What the page of a whole model computes: every form on every device, as JavaScript of its polynomials and rules.

Widths are those of the model. The page holds a program of each layer for each combination of the facts that structure
depends on and its boxes can reach; what a pipeline's stages add up of layers, and the weights that they hold, are rows
of numbers for each degree that divides the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from mla_cost.batch.layers import LayerAsked, compiled
from mla_cost.batch.matrices import Folded, fold
from mla_cost.batch.pipelines import FIGURES, Names, StageRows, stage_rows
from mla_cost.batch.programs import compiled_account
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import COUNTED, FLAT, NESTED, OTHERS, SYMBOLS, follow
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.numbers import where
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import ProgramError
from mla_cost.language.workspace import kinds_of
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import expert_ranks_left, positions_left, problems
from mla_cost.mesh.placement import Chunk
from mla_cost.pricing import usable as devices
from mla_cost.pricing.automatic import trained, with_kernel
from mla_cost.pricing.compile import reduced
from mla_cost.pricing.resolve import (
    Illegal,
    Point,
    layer_rows,
    layer_sizes,
    received_rows,
    received_values,
    symbol_values,
)
from mla_cost.pricing.stage import Place, place_point
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.step_traffic import PHASES, between_stages, hidden_states
from mla_cost.pricing.unpriced import refusal
from mla_cost.pricing.whole_model import BUCKET, groups_of, state_settings
from mla_cost.pricing.worst_stage import in_flight_and_working, stage_peak
from mla_cost.results import columns
from mla_cost.studies.calculator import Calculator, NumberBox, code_object, refused_by, status_code, workspace_code
from mla_cost.studies.javascript import Js, of_polynomial, printed
from mla_cost.weights.held import Flat, RankParameters
from mla_cost.weights.sent import every_collective
from mla_cost.weights.states import StateSettings, bucket_bytes, shape_of, states

AXES: Final = ("tp", "sp", "ep")  # over which layers exchange; stages and copies of weights have their own
STAGES: Final = (1, 2, 3, 4, 6, 8, 12, 16)
RANKS: Final = (1, 2, 4, 8, 16)
REMAT: Final = ("none", "full")
GRADIENTS: Final = ("fp32", "bf16")
NOT_HELD: Final = (
    "other widths than the model's", "virtual stages and layouts of one's own", "etp above 1",
    "weights gathered layer by layer (fsdp)", "schemes other than the form's own", "kernels other than auto",
    "remat of named modules", "other profiles, dtypes, optimizers, masks and layouts", "scope attention",
)  # fmt: skip
COLUMNS: Final = {
    "needs": "required_bytes", "usable": "usable_bytes", "weights": "weight_bytes", "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes", "in flight": "kept_bytes", "working": "working_bytes", "sent": "wire_bytes",
}  # fmt: skip
# a fact of structure that is a flag of the page: the symbol that is 1 where it does not hold
_FLAGS: Final = ("P", "t", "E", "b")


class AttentionRun(NamedTuple):
    """What attention runs on some devices: a kernel, its padding of V, and the workspace that counts."""

    kernel: str
    padding: str | None
    kinds: frozenset[str]


def whole_calculator(
    model: ModelConfig,
    name: str,
    forms: Sequence[str] = tuple(FORMS),
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> Calculator:
    """What the page of a whole model holds. name: what a command calls the model. choices: fewer of `Page.choices`.

    Raises:
        InputError: a model whose layers are not all priced.

    """
    why = refusal(model)
    if why is not None:
        raise InputError(why, field="MODEL")
    held = _Held(model, tuple(forms), choices or {})
    titles = {name: device.title for name, device in held.devices.items()}
    selects: dict[str, Mapping[str, str]] = {"device": {each: f"{each} ({title})" for each, title in titles.items()}}
    selects |= {field: {str(value): str(value) for value in values} for field, values in held.choices.items()}
    usual = PlanSettings()
    start: dict[str, Any] = {"device": usual.device[0], "remat": "none"}
    start |= {field: getattr(usual, field) for field in ("sharding", "gradient_dtype")}
    start |= dict.fromkeys(("tp", "pp", "ep"), 1)
    return Calculator(
        title=model.title,
        name=name,
        scope="model",
        boxes=tuple(_boxes()),
        selects=selects,
        forms=tuple(forms),
        start=start,
        columns=COLUMNS,
        not_held=NOT_HELD,
        code="\n".join(held.code()),
        axes=tuple(columns.AXES.values()),
    )


def _boxes() -> Iterator[NumberBox]:
    usual = PlanSettings(scope="model").by_scope()
    most = {"seq_len": 1 << 24, "micro_batch": 256, "micro_batches": 4096, "sp": 1024, "dp": 65536}
    for name, largest in most.items():
        yield NumberBox(name, getattr(usual, name), 1, largest, 1, doubles=True)


class _Held:
    """All that the page of a model holds, as lines of code."""

    def __init__(self, model: ModelConfig, forms: tuple[str, ...], choices: Mapping[str, Sequence[Any]]) -> None:
        self.model, self.forms = model, forms
        self.base = PlanSettings(scope="model").by_scope()
        self.names = Names(model, self.base.profile)
        self.devices = {name: catalog.device(name) for name in catalog.device_names()}
        self.choices = {**self._every_choice(), **choices}
        self.runs = {(form, name): self._run(form, device) for form in forms for name, device in self.devices.items()}

    def _every_choice(self) -> dict[str, Sequence[Any]]:
        """Degrees that divide the model, and the settings that are named."""
        experts = self.model.num_routed_experts or 0
        ranks = [1 << power for power in range(experts.bit_length())] if experts else [1]
        return {
            "tp": [tp for tp in RANKS if self._divides(tp=tp)],
            "pp": [pp for pp in STAGES if self._divides(pp=pp)],
            "ep": [ep for ep in ranks if self._divides(ep=ep) and (ep == 1 or experts // ep > 1)],
            "remat": REMAT,
            "sharding": [name for name, row in SHARDINGS.items() if row.gathers is None],
            "gradient_dtype": GRADIENTS,
        }

    def _divides(self, *, tp: int = 1, pp: int = 1, ep: int = 1) -> bool:
        return not problems(Parallel(tp=tp, pp=pp, ep=ep, dp=ep), shape_of(self.model, state_settings(self.base)))

    def _run(self, form: str, device: DeviceConfig) -> AttentionRun:
        chosen, _ = with_kernel(self.model, device, form, self.base)
        return AttentionRun(chosen.kernel, chosen.value_padding, kinds_of(device.family))

    def code(self) -> Iterator[str]:
        """Definitions of all that the page's own script asks for."""
        programs, which = self._programs()
        needs, counts, pipes = self._pipelines()
        yield "const GCD=(a,b)=>b?GCD(b,a%b):a,LCM=(a,b)=>a/GCD(a,b)*b;"
        yield f"const PROGRAMS=[{','.join(programs)}];"
        yield f"const WHICH={code_object(which)};"
        yield f"const SYMBOLS=v=>({code_object(self._symbols())});"
        yield f"const ONES={self._ones()};"
        yield f"const SINGLE={code_object({name: repr(SYMBOLS[name][0]) for name in self._ones()})};"
        runs = {f"{form}|{device}": str(self._runs.index(run)) for (form, device), run in self.runs.items()}
        peak = printed(lambda: stage_peak(Js("states"), 0, Js("active"), Js("step")))
        yield f"const EXCHANGES={list(AXES)};"
        yield f"const RUNS={code_object(runs)};"
        yield f"const TRAINED={code_object(self._trained())};"
        yield f"const REFUSED={code_object({form: self._refused(form) for form in self.forms})};"
        yield f"const SPLIT=v=>({self._split()});"
        yield f"const NEEDS=[{','.join(needs)}],COUNTS=[{','.join(counts)}],PIPES={code_object(pipes)};"
        yield f"const WEIGHTS={code_object(self._weights())};"
        yield from self._states()
        yield f"const PASSED=(v,up,down)=>{self._passed()};"
        yield f"const PEAK=(states,active,step)=>{peak};"
        yield f"const PARTS=(kept,active,step)=>{self._parts()};"
        yield f"const USABLE={code_object({name: self._usable(device) for name, device in self.devices.items()})};"
        yield f"const STATUS=(headroom,usable,trained)=>{status_code()};"

    @cached_property
    def _runs(self) -> tuple[AttentionRun, ...]:
        return tuple(dict.fromkeys(self.runs.values()))

    # ---- layers

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every place that a layer has in some pipeline of the page."""
        found = (chunk for pp in self.choices["pp"] for chunks in self._stages(pp) for chunk in chunks)
        return tuple(dict.fromkeys(place for chunk in found for place in self.names.of(chunk)))

    def _stages(self, pp: int) -> tuple[tuple[Chunk, ...], ...]:
        return self.names.stages(Parallel(pp=pp))

    def _flags(self) -> Iterator[tuple[bool, ...]]:
        tp, ep = ([each > 1 for each in self.choices[name][:2]] for name in ("tp", "ep"))
        yield from product((False, True), tp, ep, (False, True))

    def _programs(self) -> tuple[list[str], dict[str, str]]:
        """The functions of layers, and by form, run, policy and flags the place of each layer's among them."""
        programs: dict[str, int] = {}
        texts: dict[LayerAsked, str] = {}
        which: dict[str, str] = {}
        runs = dict.fromkeys((form, run) for (form, _), run in self.runs.items())
        for (form, run), remat, flags in product(runs, self.choices["remat"], self._flags()):
            asked = [self._asked(form, run, remat, flags, place) for place in self.places]
            if None in asked:
                continue
            for each, point in filter(None, asked):
                if each not in texts:
                    texts[each] = self._program(each, point)
            at = [programs.setdefault(texts[each], len(programs)) for each, _ in filter(None, asked)]
            which[f"{form}|{self._runs.index(run)}|{remat}|{''.join(str(int(each)) for each in flags)}"] = str(at)
        return list(programs), which

    def _asked(self, form: str, run: AttentionRun, remat: str, flags: tuple[bool, ...], place: Place) -> Any:
        """What a layer is compiled for, and its point at some sizes; None where no program exists."""
        many, tp, ep, several = flags
        degrees = {name: self.choices[name][on] for name, on in (("tp", tp), ("ep", ep))}
        sp = 1 + many
        asked = {"sp": sp, **degrees, "micro_batch": 1 + several, "seq_len": 8 * sp * degrees["tp"], "remat": remat}
        settings = self.base.model_copy(update={**asked, "kernel": run.kernel, "value_padding": run.padding})
        try:
            point = place_point(self.model, form, settings, place)
            asked_for = LayerAsked(reduced(point.key), run.kinds, settings.causal)
            compiled_account(asked_for.key)
        except (Illegal, ProgramError):
            return None
        return asked_for, point

    def _program(self, asked: LayerAsked, point: Point) -> str:
        """A function of the symbols' values: FIGURES, then payload and wire by axis and phase."""
        found = compiled(asked)
        assert not found.persistent  # no layer of the profile keeps a table
        rows = fold(found.program.monomials, found.program.parts, self._numbers)
        figures, _, forward, backward = ([_row(rows, at) for at in range(span.start, span.stop)] for span in rows.spans)
        kept, hidden, gradients, _, _, *sent = figures
        amounts_of = dict(zip(found.sent, zip(sent[::2], sent[1::2], strict=True), strict=True))
        none = ("0", "0")
        amounts = [amounts_of.get((axis, phase), none)[which] for which in (0, 1) for axis in AXES for phase in PHASES]
        body = ",".join([kept, _largest(forward), _largest(backward), hidden, gradients, *amounts])
        calls = compiled_account(asked.key).timeline.fused_calls
        key = point.key
        each = (workspace_code(KERNELS[key.kernel], key.predicates, call, self._numbers) for call in calls[:1])
        held = "".join(f"const fused_workspace={text};" for text in each)
        reads = ",".join(sorted({symbol for monomial in rows.monomials for symbol in monomial} - {"fused_workspace"}))
        inside = ",".join(name for name in self._symbols() if name not in reads.split(",")) if held else ""
        return f"({{{','.join(filter(None, (reads, inside)))}}})=>{{{held}return [{body}]}}"

    # ---- symbols

    @cached_property
    def _fields(self) -> Any:
        names = ("seq_len", "micro_batch", "micro_batches", "tp", "sp", "pp", "ep", "dp")
        fixed = {name: getattr(self.base, name) for name in ("etp", "vocab_multiple", "loss_chunks", "sp_inside")}
        return SimpleNamespace(**{name: Js(f"v.{name}") for name in names}, **fixed)

    @cached_property
    def _values(self) -> dict[str, Any]:
        fields: Any = self._fields
        found: dict[str, Any] = {**symbol_values(self.model, fields), **layer_sizes(self.model, fields)}
        rows = received_rows(self.model, fields.ep, self.base.imbalance_percent, layer_rows(fields))
        found |= received_values(rows, fields.ep)
        found |= follow(found, FLAT)
        return found | follow(found, OTHERS.keys() - NESTED)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The symbols that are numbers, whatever the boxes hold."""
        return {name: value for name, value in self._values.items() if not isinstance(value, Js)}

    def _symbols(self) -> dict[str, str]:
        """What every symbol is of the values of boxes."""
        return {name: value.text for name, value in self._values.items() if isinstance(value, Js)}

    def _ones(self) -> list[str]:
        """Sizes that structure asks about and that are no flag: where one of them is 1, the page has no answer."""
        return [name for name in (*COUNTED, "l") if name in self._symbols() and name not in _FLAGS]

    # ---- refusals

    def _refused(self, form: str) -> str:
        known = {name: self._values[name] for name in ("S", "P", "n", "k", "r", "v")}
        words = {"sp": "${v.sp}", "heads": f"${{Math.floor({self.model.dims.heads}/v.tp)}}", "seq_len": "${v.seq_len}"}
        return refused_by(form, known, words)

    def _split(self) -> str:
        """What degrees leave of a sequence and of ranks: why there is no program, or nothing."""
        degrees: Any = Parallel(**{name: getattr(self._fields, name) for name in ("tp", "sp", "pp", "ep", "dp")})
        sequence = printed(lambda: positions_left(self._fields.seq_len, degrees))
        experts = printed(lambda: expert_ranks_left(degrees))
        return (
            f"{sequence}?`seq_len ${{v.seq_len}} does not split over sp ${{v.sp}} x tp ${{v.tp}}`:{experts}?"
            "`tp ${v.tp} x sp ${v.sp} x dp ${v.dp} ranks do not split into groups of ep ${v.ep}`:''"
        )

    def _trained(self) -> dict[str, str]:
        """Whether a kernel trains a form on a device."""
        found = {}
        for (form, name), run in self.runs.items():
            sizes = {"kernel": run.kernel, "value_padding": run.padding, "seq_len": 8}
            point = place_point(self.model, form, self.base.model_copy(update=sizes), self.places[-1])
            found[f"{form}|{name}"] = str(bool(trained(point.kernel, self.devices[name].arch, point.key, point.values)))
        return {name: text.lower() for name, text in found.items()}

    # ---- stages

    def _pipelines(self) -> tuple[list[str], list[str], dict[str, str]]:
        """Functions from figures to what moments need and what of it is kept, counts of layers, and the stages."""
        needs: dict[str, int] = {}
        counts: dict[str, int] = {}
        pipes: dict[str, str] = {}
        for pp in self.choices["pp"]:
            laid_out = self._stages(pp)
            for flight in range(1, pp + 1):
                parallel = Parallel(pp=pp, num_micro_batches=flight)
                each = [stage_rows(self.names, self.places, parallel, at, it) for at, it in enumerate(laid_out)]
                stages = [
                    [
                        needs.setdefault(self._needs(rows), len(needs)),
                        counts.setdefault(str(list(rows.counts)), len(counts)),
                        *rows.passes,
                        sum(chunk.num_layers for chunk in chunks),
                    ]
                    for rows, chunks in zip(each, laid_out, strict=True)
                ]
                pipes[f"{pp}|{flight}"] = str(stages).replace(" ", "")
        return list(needs), list(counts), pipes

    def _needs(self, rows: StageRows) -> str:
        pairs = zip(rows.needs, rows.saved_in_flight, strict=True)
        return f"f=>[{','.join(f'[{_weighted(need)},{_weighted(kept)}]' for need, kept in pairs)}]"

    # ---- weights

    def _ranks(self) -> Iterator[tuple[str, int, int, int]]:
        """By the name that the page looks weights up under: degrees of tp, ep and pp."""
        for pp, tp in product(self.choices["pp"], self.choices["tp"]):
            yield f"dense|{tp}|{pp}", tp, 1, pp
        for pp, ep in product(self.choices["pp"], self.choices["ep"]):
            yield f"expert|{ep}|{pp}", 1, ep, pp

    @cached_property
    def _parameters(self) -> dict[str, list[RankParameters]]:
        found = {}
        for name, tp, ep, pp in self._ranks():
            settings = self.base.model_copy(update={"tp": tp, "ep": ep})
            weights = RankWeights(self.model, WeightsAsked.of(self.forms[0], settings))
            holder: Any = name.partition("|")[0]
            found[name] = [weights.parameters(chunks, pp).only(holder) for chunks in self._stages(pp)]
        return found

    @cached_property
    def _flats(self) -> dict[tuple[bool, str, str], None]:
        """Buffers by whether they are trained, holder and dtype, in one order."""
        every = (held for stages in self._parameters.values() for held in stages)
        pairs = (
            (kind, flat)
            for held in every
            for kind, flats in ((True, held.trained), (False, held.untrained))
            for flat in flats
        )
        return dict.fromkeys((kind, flat.holder, flat.dtype) for kind, flat in pairs)

    def _weights(self) -> dict[str, str]:
        """Elements of each buffer by stage; then those whole on every rank of tp, and copies of an embedding."""
        return {
            name: str([self._elements(held) for held in stages]).replace(" ", "")
            for name, stages in self._parameters.items()
        }

    def _elements(self, held: RankParameters) -> list[int]:
        kinds = ((True, held.trained), (False, held.untrained))
        known: dict[tuple[bool, str, str], int] = {
            (kind, flat.holder, flat.dtype): flat.elements for kind, flats in kinds for flat in flats
        }
        return [*(known.get(key, 0) for key in self._flats), held.tp_summed, held.shared]

    def _states(self) -> Iterator[str]:
        """How states are kept, and what keeps weights equal, for every sharding and dtype of gradients."""
        kept, sent, buckets, refused = {}, {}, {}, {}
        for sharding, dtype, piped in product(self.choices["sharding"], self.choices["gradient_dtype"], (0, 1)):
            settings = self.base.model_copy(update={"sharding": sharding, "gradient_dtype": dtype})
            name, keeping, degrees = f"{sharding}|{dtype}|{piped}", state_settings(settings), self._degrees(1 + piped)
            buckets[name] = str(bucket_bytes(keeping))
            try:
                kept[name] = f"(v,w)=>{self._bytes(degrees, keeping)}"
                sent[name] = f"(v,w)=>({code_object(self._sent(degrees, keeping))})"
            except InputError as error:
                refused[name] = repr(str(error))
        yield f"const STATES={code_object(kept)},SENT={code_object(sent)};"
        yield f"const BUCKETS={code_object(buckets)},UNPIPED={code_object(refused)};"

    def _degrees(self, pp: int) -> Parallel:
        fields: Any = self._fields
        return Parallel(fields.tp, fields.sp, pp, fields.ep, 1, fields.dp, fields.micro_batches)

    @property
    def _held_elements(self) -> RankParameters:
        own = {key: Js(f"w[{at}]") for at, key in enumerate(self._flats)}
        trained, untrained = (
            tuple(Flat(holder, dtype, size) for (kind, holder, dtype), size in own.items() if kind is which)  # type: ignore[arg-type]  # expressions in place of numbers
            for which in (True, False)
        )
        summed, shared = (Js(f"w[{len(own) + further}]") for further in (0, 1))
        return RankParameters(trained, summed, shared, untrained)  # type: ignore[arg-type]  # as above

    def _bytes(self, degrees: Parallel, keeping: StateSettings) -> str:

        def amount(name: str) -> Any:
            return getattr(states(self._held_elements, degrees, keeping), name)

        amounts = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes", "step_bytes")
        return f"[{','.join(printed(partial(amount, name)) for name in amounts)}]"

    def _sent(self, degrees: Parallel, keeping: StateSettings) -> dict[str, str]:
        """Payload and wire by axis; a group of one sends nothing."""
        every = every_collective(self._held_elements, degrees, keeping)
        return {axis: self._amounts(axis, degrees, keeping) for axis in dict.fromkeys(call.axis for call in every)}

    def _amounts(self, axis: str, degrees: Parallel, keeping: StateSettings) -> str:
        def total(amount: str) -> Any:
            every = every_collective(self._held_elements, degrees, keeping)
            own = [call for call in every if call.axis == axis]
            return sum(call.calls * where(call.group_size > 1, getattr(call, amount), 0) for call in own)

        return f"[{','.join(printed(partial(total, amount)) for amount in ('payload_bytes', 'wire_bytes'))}]"

    def _passed(self) -> str:
        once = hidden_states(self._fields, self.model.dims.hidden, DTYPE_BYTES[self.base.dtype])
        calls = between_stages((Js("up"), Js("down")), self._fields.micro_batches, once)
        return printed(lambda: sum(call.wire_bytes for call in calls))

    def _parts(self) -> str:
        def part(at: int) -> Any:
            return in_flight_and_working(Js("kept"), Js("active"), Js("step"))[at]

        return f"[{','.join(printed(partial(part, at)) for at in (0, 1))}]"

    # ---- devices

    def _usable(self, device: DeviceConfig) -> str:
        """A function of the settings and the bytes of a bucket."""
        degrees: Any = Parallel(**{name: getattr(self._fields, name) for name in ("tp", "sp", "pp", "ep", "dp")})
        groups = groups_of(degrees, experts=bool(self.model.num_routed_experts))
        beside = (devices.Reserved(BUCKET, Js("bucket")),)
        return f"(v,bucket)=>{printed(lambda: devices.usable(device, self.base, groups, beside).bytes)}"


def _row(rows: Folded, at: int) -> str:
    found = {m: int(value) for m, value in zip(rows.monomials, rows.matrix[at], strict=True) if value}
    merged: dict[Any, int] = {}
    for monomial, value in found.items():
        merged[tuple(sorted(monomial))] = merged.get(tuple(sorted(monomial)), 0) + value
    return of_polynomial(Polynomial(merged))


def _largest(rows: Iterable[str]) -> str:
    return f"Math.max({','.join(dict.fromkeys(rows))})"


def _weighted(row: Any) -> str:
    places = np.flatnonzero(row).tolist()
    return "+".join(f"{int(row[at])}*f[{at}]" for at in places) or "0"


__all__ = ["AXES", "FIGURES", "whole_calculator"]
