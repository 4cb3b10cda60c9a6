"""Attention piece by piece: keys and values of other ranks come in hops or all at once, within one call.

One rule, `around`, reported in words how they move, what is kept of them and how their gradients come home. Read in
source: zhuzilin/ring-flash-attention, feifeibear/long-context-attention@56118e0d, PyTorch's
torch/distributed/tensor/experimental/_context_parallel/_attention.py, Ascend/MindSpeed@028de58c
mindspeed/core/context_parallel/ring_context_parallel, mlc-ai/pith-train@889a4088. What the flash kernel of each hop
makes is merged into an fp32 output, as all of them do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import DeclarationError
from mla_cost.language.rules.exchange import INSIDE, OUTSIDE, SEQUENCE, Mesh, recorded
from mla_cost.language.timeline import Product

Dims = tuple[str, ...]
# word: what it may say
WORDS: dict[str, tuple[str, ...]] = {
    "move": ("hops", "windows", "cycles", "gather", "heads"),
    "saved": ("own", "last", "every", "every-key"),
    "back": ("along", "home", "scatter"),
    "gradients": ("fp32", "as-keys"),
    "alive": ("two", "three", "all", "one-head"),
}


class Words(NamedTuple):
    """How keys and values come round.

    move: from rank to rank (`hops`), by windows that turn inside while their chunks go on to the next (`windows`), in
    pieces each on a way of its own through all ranks (`cycles`), all at once (`gather`), or a head at a time (`heads`).
    saved: the rank's `own`, those that came `last`, those of `every` other rank, or of every other rank the keys
    (`every-key`). back: gradients go along with the keys (`along`), one hop further until they are `home`, or by
    reduce-scatter (`scatter`), in dtype `gradients`. alive: what forward holds of other ranks at once.
    """

    move: str
    saved: str
    back: str
    gradients: str
    alive: str


def read(words: Sequence[str]) -> Words:
    """The words of a scheme, each `what value`.

    Raises:
        DeclarationError: a word that is none, or one that is missing.

    """
    found = dict(word.split(" ", 1) for word in words if " " in word)
    for name, values in WORDS.items():
        if found.get(name) not in values:
            raise DeclarationError(f'around needs "{name} {"|".join(values)}", read {" ".join(words)!r}')
    return Words(**{name: found[name] for name in WORDS})


def outer(machine: Machine, words: Words) -> Mesh:
    """The ranks that keys and values come from: those of the other groups where heads are exchanged inside."""
    return OUTSIDE if machine.predicates.nested and words.move != "windows" else SEQUENCE


@op("around")
def around(machine: Machine, label: str, words: tuple[str, ...], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query [s b n k+r], key alike and value [s b n v] to [s b n v].

    Kept: the query, what `saved` says of keys and values, the output and fp32 statistics. Two chunks are in hand at
    once, the one at work and the one on its way, where a sequence has three ranks or more.
    """
    how = read(words)
    width = f"{key.dims[-1]}+{value.dims[-1]}"
    carried = _Carried(machine, outer(machine, how), how, (*key.dims[:-1], width), key, value)
    coming = carried.arrive("forward")
    machine.timeline.fused_calls.append(FusedCall(query.dims, key.dims, value.dims))
    result, statistics = merged(machine, label, (*query.dims[:-1], value.dims[-1]), query)
    work = Steps(machine, query, (key.dims, value.dims), "C" if carried.mesh is OUTSIDE else "P")
    work.forward()
    kept = carried.keep()
    del coming
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, key, value)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        sums = [machine.new(f"{name}, summed", dims, "fp32") for name, dims, _ in made[:1]]
        coming = carried.arrive("backward")
        step = [machine.new(f"{name} of a step", dims, dtype) for name, dims, dtype in made]
        work.backward()
        going = carried.bring_back()
        del step, coming
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        del sums, going
        return results

    machine.attach([result], [query, key, value], backward, saved=[query, *kept, result, statistics])
    return result


class Steps:
    """What the kernels of all steps compute, read and write: each step all that one attends to."""

    def __init__(self, machine: Machine, query: Tensor, pair: tuple[Dims, Dims], ranks: str) -> None:
        key, value = pair
        size = machine.predicates.elements
        self.machine, self.launches = machine, machine.predicates.size(ranks)
        self.through = [machine.bytes_of(dims, query.dtype) for dims in (query.dims, key, value)]
        s, b, n, d = query.dims
        self.made = machine.bytes_of((s, b, n, value[-1]), query.dtype)
        self.rows = machine.bytes_of((b, n, s), "fp32")
        self.scores = size((*query.dims, "S")) * 2
        self.both = self.scores + size((s, b, n, value[-1], "S")) * 2
        self.shape = Product(size((b, n)), size((s,)), size(("S",)), size((d,)) + size(value[-1:]))

    def forward(self) -> None:
        """Attention of every step, and its merging into an fp32 sum."""
        self.machine.flops(self.both, attention=True, skips_masked=True)
        self._attends(self.through, [self.made, self.rows], self.both)
        read, sums = self.made * self.launches, self.made * self.launches * 2
        self.machine.runs("elementwise", [read, sums], [sums], launches=self.launches)

    def backward(self) -> None:
        """Attention of every step again, with gradients."""
        self.machine.flops(self.both * 2, recomputed=self.scores, attention=True, skips_masked=True)
        reads = [*self.through, self.made, self.made, self.rows]
        self._attends(reads, self.through, self.both * 2 + self.scores)
        self.machine.work(fused_backward=Polynomial.symbol("fused_workspace"))

    def _attends(self, reads: Sequence[Polynomial], writes: Sequence[Polynomial], flops: Polynomial) -> None:
        each = self.launches
        self.machine.runs(
            "attention",
            [amount * each for amount in reads],
            [amount * each for amount in writes],
            launches=each,
            product=self.shape,
            flops=flops,
            skips_masked=True,
        )


def merged(machine: Machine, label: str, dims: Dims, query: Tensor) -> tuple[Tensor, Tensor]:
    """The output and its log-sum-exp, made of steps that are merged in fp32."""
    rows = (*query.dims[1:3], query.dims[0])
    step = machine.new(f"{label} of a step", dims, query.dtype)
    own = machine.new("log-sum-exp of a step", rows, "fp32")
    merging = machine.new(f"{label}, merged", dims, "fp32")
    statistics = machine.new("log-sum-exp", rows, "fp32")
    del step, own
    result = machine.new(label, dims, query.dtype)
    del merging
    return result, statistics


class _Carried:
    """Keys and values on their way: what is sent, what lies there meanwhile and what is kept."""

    def __init__(self, machine: Machine, mesh: Mesh, words: Words, sent: Dims, key: Tensor, value: Tensor) -> None:
        self.machine, self.mesh, self.words, self.sent = machine, mesh, words, sent
        self.key, self.value, self.dtype = key, value, key.dtype
        self.name = f"{key.label} and {value.label}"
        self.others = "C_others" if mesh is OUTSIDE else "P_others"
        self.parts = (key.dims, value.dims)
        if words.saved != "own":
            del self.key, self.value

    def arrive(self, phase: str) -> list[Tensor]:
        """What comes from other ranks in a phase, and where it lies until the caller lets it go."""
        if self.words.move in {"gather", "heads"}:
            return self._gathered()
        if phase == "forward":
            self._pass_on(self.sent)
        elif self.words.saved == "every":
            self._sent_once(self.sent)
        elif self.words.saved == "every-key":
            self._sent_once(self.parts[0])
            self._pass_on(self.parts[1])
        else:
            self._pass_on(self.sent)
        count = {"two": "2", "three": "3"}.get(self.words.alive, self.others)
        return [self.machine.new(f"{self.name} of other ranks", (count, *self.sent), self.dtype)]

    def _gathered(self) -> list[Tensor]:
        whole = (self.mesh.whole, *self.sent[1:])
        recorded(self.machine, "all_gather", self.mesh, self.name, self.sent, self.dtype, self.sent)
        if self.words.alive == "one-head":  # two buffers, one head of keys and values each
            batch, width = self.sent[1], self.sent[3]
            return [self.machine.new(f"{self.name} of two heads", ("2", whole[0], batch, width), self.dtype)]
        joined = self.machine.new(f"{self.name}, joined", self.sent, self.dtype)
        found = self.machine.new(f"{self.name} of all ranks", whole, self.dtype)
        del joined
        return [found]

    def bring_back(self) -> list[Tensor]:
        """Gradients of keys and values go home, and where they lie on the way."""
        label, dtype = f"gradient of {self.name}", "fp32" if self.words.gradients == "fp32" else self.dtype
        whole = (self.mesh.whole, *self.sent[1:])
        if self.words.back == "scatter":
            recorded(self.machine, "reduce_scatter", self.mesh, label, whole, dtype, self.sent)
            dims = ("2", whole[0], whole[1], whole[3]) if self.words.alive == "one-head" else whole
            return [self.machine.new(f"{label} of all ranks", dims, dtype)]
        if self.words.back == "home":
            hops(self.machine, self.mesh, label, self.sent, dtype, self.mesh.ranks)
        else:
            self._pass_on(self.sent, label, dtype)
        return [self.machine.new(f"{label}, here and on its way", ("2", *self.sent), dtype)]

    def keep(self) -> list[Tensor]:
        """What is kept of them for backward."""
        if self.words.saved == "own":
            own = [self.key, self.value]
            del self.key, self.value  # where a checkpoint keeps nothing, nobody else holds them
            return own
        new = self.machine.new
        if self.words.saved == "last":
            return [new(f"{self.name} of the last step", self.sent, self.dtype)]
        if self.words.saved == "every":
            return [new(f"{self.name} of all steps but one", (self.others, *self.sent), self.dtype)]
        key, value = self.parts
        return [
            new("keys of all steps but one", (self.others, *key), self.dtype),
            new("values of the last step", value, self.dtype),
        ]

    def _pass_on(self, sent: Dims, label: str = "", dtype: str = "") -> None:
        label, dtype = label or self.name, dtype or self.dtype
        if self.words.move == "windows" and self.machine.predicates.nested:
            hops(self.machine, INSIDE, f"{label} inside windows", sent, dtype, "C", "A_others")
            hops(self.machine, OUTSIDE, f"{label} between windows", sent, dtype, "C_others")
        else:
            kind = "cycles" if self.words.move == "cycles" else "point_to_point"
            hops(self.machine, self.mesh, label, sent, dtype, self.others, kind=kind)

    def _sent_once(self, sent: Dims) -> None:
        hops(self.machine, self.mesh, self.name, sent, self.dtype, "1")


def hops(
    machine: Machine, mesh: Mesh, label: str, sent: Dims, dtype: str, *counts: str, kind: str = "point_to_point"
) -> None:
    """What a rank hands to the next one, so many times: `counts` are dims."""
    dims = (*counts, *sent)
    recorded(machine, kind, mesh, label, dims, dtype, dims, wire=machine.bytes_of(dims, dtype))
