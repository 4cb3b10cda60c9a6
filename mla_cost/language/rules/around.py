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
Made = tuple[str, Dims, str]  # a label, dims and a dtype
# word: what it may say
WORDS: dict[str, tuple[str, ...]] = {
    "move": ("hops", "windows", "cycles", "gather", "heads"),
    "saved": ("own", "last", "every", "every-key"),
    "back": ("along", "home", "scatter"),
    "gradients": ("fp32", "as-keys"),
    "alive": ("two", "sliced", "three", "all", "one-head"),
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

    Kept: the query, what `saved` says of keys and values, the output and fp32 statistics. The rank that is counted is
    the last one, which merges whole outputs in every hop.
    """
    how = read(words)
    width = f"{key.dims[-1]}+{value.dims[-1]}"
    carried = _Carried(machine, outer(machine, how), how, (*key.dims[:-1], width), key, value)
    machine.timeline.fused_calls.append(FusedCall(query.dims, key.dims, value.dims))
    dims = (*query.dims[:-1], value.dims[-1])
    result, statistics = (by_heads if how.move == "heads" else merged)(machine, label, dims, query, carried)
    work = Steps(machine, query, (key.dims, value.dims), "C" if carried.mesh is OUTSIDE else "P")
    work.forward()
    kept = carried.keep()
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, key, value)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        work.backward()
        return (_back_by_heads if how.move == "heads" else _back)(machine, made, carried)

    machine.attach([result], [query, key, value], backward, saved=[query, *kept, result, statistics])
    return result


def _back(machine: Machine, made: Sequence[Made], carried: _Carried) -> list[Tensor | None]:
    """Gradients, those of the query summed in fp32; all of it is there until they are handed back."""
    half = (*made[0][1][1:3], *_halved(made[0][1][0]))
    rest = machine.new("log-sum-exp of the second half", half, "fp32")
    step = [machine.new(f"{name} of a step", dims, dtype) for name, dims, dtype in made]
    sums = [machine.new(f"{name}, summed", dims, "fp32") for name, dims, _ in made[:1]]
    coming = carried.arrive("backward")
    going = carried.bring_back()
    if carried.words.move != "gather":
        del coming
        coming = carried.last()
    results: list[Tensor | None] = [machine.new(*item) for item in made]
    del rest, step, sums, going, coming
    return results


def _back_by_heads(machine: Machine, made: Sequence[Made], carried: _Carried) -> list[Tensor | None]:
    """Gradients that the kernel writes where they are handed back, of keys and values once they are scattered."""
    results: list[Tensor | None] = [machine.new(*item) for item in made]
    coming = carried.arrive("backward")
    going = carried.bring_back()
    sequences, positions = made[0][1][1], made[0][1][0]
    if not machine.predicates.is_one(sequences):  # of one they lie in a row
        going.append(machine.new("log-sum-exp of a head", (sequences, positions), "fp32"))
    row = carried.row_of_a_key()
    del coming, going, row
    return results


def _halved(positions: str) -> Dims:
    """Half of the positions of a rank, or of an inner group."""
    return ("s_half",) if positions == "s" else ("A", "s_half")


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


def merged(machine: Machine, label: str, dims: Dims, query: Tensor, chunks: _Carried) -> tuple[Tensor, Tensor]:
    """The output and its log-sum-exp, made of steps that are merged in fp32 by one kernel into new tensors.

    What a step made is held until the next one has made its own.
    """
    rows = (*query.dims[1:3], query.dims[0])
    before = machine.new(f"{label} of the steps so far", dims, "fp32")
    old = machine.new(f"{label} of the step before", dims, query.dtype)
    chunks.waits(rows).clear()
    coming = chunks.arrive("forward")
    earlier = machine.new("log-sum-exp of the steps so far", rows, "fp32")
    step = machine.new(f"{label} of a step", dims, query.dtype)
    of_step = machine.new("log-sum-exp of a step", rows, "fp32")
    del old
    merging = machine.new(f"{label}, merged", dims, "fp32")
    statistics = machine.new("log-sum-exp", rows, "fp32")
    del before, earlier
    result = machine.new(label, dims, query.dtype)
    del coming, step, of_step, merging
    return result, statistics


def by_heads(machine: Machine, label: str, dims: Dims, query: Tensor, chunks: _Carried) -> tuple[Tensor, Tensor]:
    """The output and its log-sum-exp, joined of those of all heads, each of which attends to all positions at once."""
    rows = (*query.dims[1:3], query.dims[0])
    coming = chunks.arrive("forward")
    parts = machine.new(f"{label} of heads", dims, query.dtype), machine.new("log-sum-exp of heads", rows, "fp32")
    result, statistics = machine.new(label, dims, query.dtype), machine.new("log-sum-exp", rows, "fp32")
    del coming, parts
    return result, statistics


class _Carried:
    """Keys and values on their way: what is sent, what lies there meanwhile and what is kept."""

    def __init__(self, machine: Machine, mesh: Mesh, words: Words, sent: Dims, key: Tensor, value: Tensor) -> None:
        self.machine, self.mesh, self.words, self.sent = machine, mesh, words, sent
        self.name = f"{key.label} and {value.label}"
        if words.saved == "own" and not machine.is_contiguous(value):
            value = machine.copied(value, f"{value.label}, contiguous")
        self.key, self.value, self.dtype = key, value, key.dtype
        self.others = f"{mesh.ranks}_others"
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
        count = {"all": self.others, "three": "3"}.get(self.words.alive, f"{self.mesh.ranks}_two")
        return [self.machine.new(f"{self.name} of other ranks", (count, *self.sent), self.dtype)]

    def waits(self, rows: Dims) -> list[Tensor]:
        """What lies there while the next chunk is asked for: a slice of the chunk before holds on to it."""
        if self.words.alive != "sliced":
            return []
        ranks = self.mesh.ranks
        return [
            self.machine.new(
                f"{self.name} of other ranks, the step before's too", (f"{ranks}_three", *self.sent), self.dtype
            ),
            self.machine.new("log-sum-exp of steps that wait", (f"{ranks}_rows", *rows), "fp32"),
        ]

    def last(self) -> list[Tensor]:
        """What is still there where gradients are handed back: the chunk that came last."""
        if self.words.saved == "every":
            return []
        return [self.machine.new(f"{self.name} that came last", self.sent, self.dtype)]

    def _gathered(self) -> list[Tensor]:
        whole = (self.mesh.whole, *self.sent[1:])
        recorded(self.machine, "all_gather", self.mesh, self.name, self.sent, self.dtype, self.sent)
        if self.words.alive == "one-head":  # two buffers, one head of keys and values each, and what is sent of them
            batch, width = self.sent[1], self.sent[3]
            heads = self.machine.new(f"{self.name} of two heads", ("2", whole[0], batch, width), self.dtype)
            return [heads, *self._slices("2")]
        joined = self.machine.new(f"{self.name}, joined", self.sent, self.dtype)
        found = self.machine.new(f"{self.name} of all ranks", whole, self.dtype)
        del joined
        return [found]

    def row_of_a_key(self) -> list[Tensor]:
        """A third head's keys in a row of their own, while those of the head before are still there."""
        s, batch, heads, width = self.parts[0]
        if self.machine.predicates.is_one(heads):
            return []
        return [self.machine.new(f"{self.name} of the next head, in a row", (s, batch, width), self.dtype)]

    def _slices(self, count: str) -> list[Tensor]:
        """Heads of the rank's own keys and values, each in a row of its own where there are several."""
        if self.machine.predicates.is_one(self.sent[2]):
            return []
        dims = (count, *self.sent[:2], self.sent[3])
        return [self.machine.new(f"{self.name} of a head, in a row", dims, self.dtype)]

    def bring_back(self) -> list[Tensor]:
        """Gradients of keys and values go home, and where they lie on the way."""
        label, dtype = f"gradient of {self.name}", "fp32" if self.words.gradients == "fp32" else self.dtype
        whole = (self.mesh.whole, *self.sent[1:])
        if self.words.back == "scatter":
            recorded(self.machine, "reduce_scatter", self.mesh, label, whole, dtype, self.sent)
            one = self.words.alive == "one-head"
            found = [self.machine.new(f"{label} of all ranks", (*whole[:2], whole[3]) if one else whole, dtype)]
            return [*found, *(self._slices("1") if one else ())]
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
