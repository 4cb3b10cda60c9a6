"""The layers of a model at every distinct point that decides them: structural keys one by one, points all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_cost.batch.codes import NO_PROGRAM, REQUIREMENT
from mla_cost.batch.layers import LayerArrays, LayerAsked, Sent, compiled, layer
from mla_cost.batch.matrices import Floats, Ints
from mla_cost.batch.pipelines import FIGURES
from mla_cost.batch.points import Choices, Points, distinct, groups
from mla_cost.batch.programs import Programs
from mla_cost.batch.symbols import TOKENS, Imbalance, Symbols, structure, symbols, tokens
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.program import ProgramError, sizes_asked
from mla_cost.language.workspace import kinds_of
from mla_cost.pricing.automatic import trained
from mla_cost.pricing.compile import reduced
from mla_cost.pricing.key import Key
from mla_cost.pricing.persistent import Buffer, allowances, by_name
from mla_cost.pricing.resolve import Illegal, scheme_of
from mla_cost.pricing.stage import Place, place_point
from mla_cost.pricing.times import choice_of
from mla_cost.pricing.whole_model import state_settings
from mla_cost.timing.work import ExpertChoice

_DECIDE = ("seq_len", "micro_batch", "sp", "sp_inside", "tp", "ep", "etp", "vocab_multiple", "loss_chunks")


class TableQuestion(NamedTuple):
    """What all points have in common. places: under each profile, the layers that some point has, at their places."""

    model: ModelConfig
    device: DeviceConfig | None
    form: str
    places: Mapping[str, tuple[Place, ...]]

    @property
    def kinds(self) -> frozenset[str]:
        """The kernel workspace that counts."""
        return kinds_of(self.device.family if self.device else "none")


class PricedGroup(NamedTuple):
    """The columns of one structural key: where they are, the key of each place, and the values of symbols."""

    where: Ints
    settings: PlanSettings
    keys: tuple[tuple[int, Key], ...]
    always: dict[str, float]
    values: dict[str, Any]


class Table:
    """Figures of layers at their places, a column for each distinct point. Bytes and flops of one micro-batch.

    figures: those of `pipelines.FIGURES`, then places. flops: model, executed. sent: by kind. refused: `batch.codes`.
    exact: of each place, whether its sizes are below the exact-integer limit. which: the column of each of the points.
    """

    def __init__(self, question: TableQuestion, programs: Programs, points: Points, choices: Choices) -> None:
        self.question = question
        self._programs = programs
        found = distinct(choices.codes, *(points[name] for name in _DECIDE))
        self.which: Ints = found.codes
        self._first = found.first
        self._choices = Choices(choices.settings, choices.codes[found.first])
        self.places = tuple(dict.fromkeys(place for each in question.places.values() for place in each))
        count, size = len(self.places), len(found.first)
        self.figures: Floats = np.zeros((len(FIGURES), count, size))
        self.flops: Floats = np.zeros((2, count, size))
        self.exact: NDArray[np.bool_] = np.ones((count, size), bool)
        self.sent: dict[Sent, Floats] = {}  # of each a row for payload and one for wire
        self.refused: NDArray[np.int8] = np.zeros(size, np.int8)
        self.trained: NDArray[np.bool_] = np.ones(size, bool)
        self._buffers: dict[int, dict[tuple[int, str], Buffer]] = {}  # by place, then by number and name
        self._persistent: dict[frozenset[int], Floats] = {}
        self.groups: list[PricedGroup] = []  # for whoever asks more of them
        self._fill(points)

    @property
    def chosen(self) -> ExpertChoice:
        """How a token chooses its experts."""
        return choice_of(self.question.model)

    # ---- structural groups

    def _fill(self, points: Points) -> None:
        fields = points.fields(self._first)
        imbalance = tuple(settings.imbalance_percent for settings in self._choices.settings)
        self._imbalance = Imbalance(imbalance, self._choices.codes)
        schemes = (SCHEMES.get(settings.scheme or "") for settings in self._choices.settings)
        nested = [scheme for scheme in schemes if scheme is not None and scheme.inside]
        known = symbols(self.question.model, fields, self._imbalance, nested)
        self._require(known)
        code = structure(known.own, fields)
        alive = np.flatnonzero(self.refused == 0)
        if not len(alive):
            return
        for mine in groups(distinct(self._choices.codes[alive], code[alive]).codes):
            where: Ints = alive if mine is None else alive[mine]
            settings = points.with_numbers(self._settings(where), int(self._first[where[0]]))
            try:
                self._group(settings, known, fields, where)
            except (Illegal, InputError, ProgramError):
                self.refused[where] = NO_PROGRAM

    def _settings(self, where: Ints) -> PlanSettings:
        code: int = self._choices.codes[where[0]]
        return self._choices.settings[code]

    def _require(self, known: Symbols) -> None:
        """Refuse what schemes do not divide, or do not move."""
        sizes = sizes_asked({**known.shared, **known.own})
        for at, settings in enumerate(self._choices.settings):
            mine = self._choices.codes == at
            try:
                scheme = scheme_of(self.question.form, settings.scheme)
            except Illegal:
                self.refused[mine] = NO_PROGRAM
                continue
            for need in scheme.requires:
                self.refused[mine & need.broken(sizes)] = REQUIREMENT

    def _group(self, settings: PlanSettings, known: Symbols, fields: Any, where: Ints) -> None:
        """The points of one structural key."""
        model, device, form, wanted = self.question
        places = wanted[settings.profile]
        points = [place_point(model, form, settings, place) for place in places]
        gathered = state_settings(settings).gathering is not None
        layers = [
            compiled(LayerAsked(reduced(point.key), self.question.kinds, settings.causal, gathered)) for point in points
        ]
        values = known.floats(where)
        if any(TOKENS.intersection(monomial) for each in layers for monomial in each.program.monomials):
            routed = tokens(model, fields, self._imbalance)
            values |= {name: column[where] for name, column in routed.items()}
        always = {name: float(value) for name, value in known.shared.items()}
        numbers = tuple(map(self.places.index, places))
        keys = tuple(zip(numbers, (each.program.key for each in layers), strict=True))
        self.groups.append(PricedGroup(where, settings, keys, always, values))
        for at, each in zip(numbers, layers, strict=True):
            self._put(at, where, layer(each, self._programs, always, values, len(where)))
        if device is not None:
            last = points[-1]
            self.trained[where] = trained(last.kernel, device.arch, last.key, last.values)

    def _put(self, at: int, where: Ints, found: LayerArrays) -> None:
        count, size = self.flops.shape[1:]
        self.figures[:, at, where] = found.figures
        self.flops[:, at, where] = found.flops
        for row, amount in found.sent.items():
            self.sent.setdefault(row, np.zeros((2, count, size)))[:, at, where] = amount
        self.exact[at, where] = found.exact
        for number, found_buffer in enumerate(found.persistent):
            nowhere = found_buffer._replace(outer=np.zeros(size), inner=np.zeros(size))
            buffer = self._buffers.setdefault(at, {}).setdefault((number, found_buffer.name), nowhere)
            buffer.outer[where], buffer.inner[where] = found_buffer.outer, found_buffer.inner

    # ---- persistent buffers

    def persistent(self, counts: Sequence[int]) -> Floats:
        """Persistent buffers of a stage with so many layers of every place. Bytes, a column for each distinct point."""
        places = frozenset(at for at, count in enumerate(counts) if count)
        if places not in self._persistent:
            buffers = (buffer for buffer in self._standing(places) if not buffer.each)
            self._persistent[places] = sum(by_name(buffers).values(), self._allowed(places))
        own = (counts[at] * buffer.bytes for at in places for buffer in self._standing((at,)) if buffer.each)
        return sum(own, self._persistent[places])

    def _standing(self, places: Iterable[int]) -> Iterator[Buffer]:
        for at in places:
            yield from self._buffers.get(at, {}).values()

    def _allowed(self, places: frozenset[int]) -> Floats:
        """What the profile is budgeted."""
        layers = [self.places[at].layer.partition(" ")[0] for at in places]
        arch = self.question.device.arch if self.question.device else ""
        each = [sum(allowances(PROFILES[one.profile], layers, arch).values()) for one in self._choices.settings]
        found: Floats = np.array(each, np.float64)[self._choices.codes]
        return found

    @property
    def element_bytes(self) -> Floats:
        """Bytes of an element of activations at each distinct point."""
        each = [DTYPE_BYTES[settings.dtype] for settings in self._choices.settings]
        return np.array(each, np.float64)[self._choices.codes]
