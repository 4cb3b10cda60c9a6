"""A ring of latents: each hop brings a chunk of the latent, of which keys and values are made and let go.

Read in source: mlc-ai/pith-train@889a4088. Saved are the query, the rank's own latent, the output and its statistics;
the weight is cast to fp32 for the sum of its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.around import Steps, hops
from mla_cost.language.rules.exchange import SEQUENCE

Dims = tuple[str, ...]
Made = tuple[str, Dims, str]  # a label, dims and a dtype
OF_LATENT: Final = "gradient of the latent of a step"


@op("latent_ring", absent="left out")
def latent_ring(machine: Machine, label: str, tensors: list[Tensor]) -> Tensor:
    """query [s b n k+r], weight [n k+v d_c], latent [s b d_c] and rotated key [s b r] to [s b n v].

    Latents go P - 1 hops in their dtype, in backward again, with gradients in fp32 that go P hops, home. Counted is the
    first rank, which expands the chunks of all others whole, in zig-zag order, and attends to them with half its
    queries. What a step made is held until the next one has made its own.
    """
    query, weight, *latents = tensors
    tensors.clear()
    sizes = Sizes(machine, query.dims, weight.dims, tuple(latent.dims for latent in latents), query.dtype)
    hops(machine, SEQUENCE, "latent", sizes.chunk, query.dtype, "P_others")
    result, statistics = _forward(sizes, label)
    work = Steps(machine, query, (sizes.key, sizes.value), "P")
    expands = _Expands(machine, ("P", *query.dims[:2]), weight.dims)
    work.forward()
    expands.forward()
    machine.timeline.fused_calls.append(FusedCall(query.dims, sizes.key, sizes.value))
    given = [query, weight, *latents]
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in given]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        hops(machine, SEQUENCE, "latent", sizes.chunk, sizes.dtype, "P_others")
        results = _backward(sizes, made)
        work.backward()
        expands.backward()
        hops(machine, SEQUENCE, "gradient of latent", sizes.chunk, "fp32", "P")
        return results

    machine.attach([result], given, backward, saved=[*given, result, statistics])
    return result


class Sizes(NamedTuple):
    """The dims of what goes round and of what a step makes of it. latents: the parts that are there."""

    machine: Machine
    query: Dims
    weight: Dims
    latents: tuple[Dims, ...]
    dtype: str

    @property
    def chunk(self) -> Dims:
        """A latent with its rotated key."""
        return (*self.query[:2], "+".join(dims[-1] for dims in self.latents))

    @property
    def key(self) -> Dims:
        """Keys of a step."""
        return (*self.query[:2], self.weight[0], self.query[-1])

    @property
    def value(self) -> Dims:
        """Values of a step, and the output."""
        return (*self.query[:2], self.weight[0], self.weight[1].rpartition("+")[2])

    @property
    def both(self) -> Dims:
        """What a latent is expanded to."""
        return (*self.query[:2], *self.weight[:2])

    def new(self, label: str, dims: Dims, dtype: str = "") -> Tensor:
        """A tensor, of the query's dtype where none is named."""
        return self.machine.new(label, dims, dtype or self.dtype)

    def pair(self, *times: str) -> list[Tensor]:
        """What a latent is expanded to, and the values of it, contiguous."""
        return [self.new("latent expanded", (*times, *self.both)), self.new("value of a step", (*times, *self.value))]

    def gradients(self, query: Dims, *times: str) -> list[Tensor]:
        """What the kernel of a step makes in backward."""
        made = (("query", query), ("key", self.key), ("value", self.value))
        return [self.new(f"gradient of {name} of a step", (*times, *dims)) for name, dims in made]

    def of_latents(self, *times: str) -> list[Tensor]:
        """The gradients of a latent and its rotated key, in fp32."""
        return [self.new(OF_LATENT, (*times, *dims), "fp32") for dims in self.latents]


def _forward(sizes: Sizes, label: str) -> tuple[Tensor, Tensor]:
    """The merged output and its statistics; most is there where the second step expands its latent."""
    first = [*sizes.pair(), sizes.new("key of a step", sizes.key)]
    out = sizes.new(f"{label} of a step", sizes.value)
    statistics = sizes.new("log-sum-exp", (*sizes.query[1:3], sizes.query[0]), "fp32")
    merging = sizes.new(f"{label}, merged", sizes.value, "fp32")
    coming = sizes.new("latent of other ranks", ("P_two", *sizes.chunk))
    again = sizes.pair()
    del first[:2]
    again.append(sizes.new("key of a step", sizes.key))
    del first, out, again, coming
    result = sizes.new(label, sizes.value)
    del merging
    return result, statistics


def _backward(sizes: Sizes, made: Sequence[Made]) -> list[Tensor | None]:
    """The gradients of query, weight, latent and rotated key, while three steps hand over to each other."""
    query, half = sizes.query, ("s_half", *sizes.query[1:])
    wide = sizes.new("weight, in fp32", sizes.weight, "fp32")
    halves = _halves(sizes, half)
    of_weight = sizes.new(f"{made[1][0]}, summed", sizes.weight, "fp32")
    held = _StepMade(sizes, query)
    of_query = sizes.new(f"{made[0][0]}, summed", query, "fp32")
    going = sizes.of_latents("2")
    held.second(half)
    held.third(half)
    last = sizes.new("latent that came last", sizes.chunk)
    results: list[Tensor | None] = [sizes.machine.new(*item) for item in made]
    del wide, halves, of_weight, of_query, going, held, last
    return results


def _halves(sizes: Sizes, half: Dims) -> list[Tensor]:
    """Copies of the second half of the positions, of several sequences: of one it lies in a row already."""
    found = [sizes.new("log-sum-exp of the second half", (*half[1:3], half[0]), "fp32")]
    if not sizes.machine.predicates.is_one("b"):
        found.append(sizes.new("query of the second half", half))
        found += [
            sizes.new(f"{name} of the second half", (half[0], *sizes.value[1:])) for name in ("gradient", "output")
        ]
    return found


class _StepMade:
    """What a step of backward made, each until the next one has made its own."""

    def __init__(self, sizes: Sizes, query: Dims) -> None:
        self.sizes = sizes
        self.pair = sizes.pair()
        self.key = [sizes.new("key of a step", sizes.key)]
        self.gradients = sizes.gradients(query)
        self.joined = [self._joined()]
        self.of_latents: list[Tensor] = []

    def second(self, half: Dims) -> None:
        """The second step, which every ring has, in place of the first."""
        sizes = self.sizes
        coming = sizes.new("latent of other ranks", ("P_two", *sizes.chunk))
        self.pair = sizes.pair()
        self.key = [sizes.new("key of a step", sizes.key)]
        self.gradients = sizes.gradients(half)
        narrow = sizes.new("gradient of what is expanded", sizes.both)
        self.joined = [self._joined()]
        del narrow
        of_latent, *of_key = sizes.latents
        self.of_latents = [sizes.new(OF_LATENT, of_latent, "fp32")]
        self._product().clear()
        self.of_latents += [sizes.new(OF_LATENT, dims, "fp32") for dims in of_key]
        del coming

    def third(self, half: Dims) -> None:
        """The third step, where there is one, which leaves what the second one left."""
        sizes, there = self.sizes, "P_third"
        coming = sizes.new("latent of other ranks", ("P_rows", *sizes.chunk))
        sizes.pair(there).clear()
        [sizes.new("key of a step", (there, *sizes.key))].clear()
        sizes.gradients(half, there).clear()
        narrow = sizes.new("gradient of what is expanded", (there, *sizes.both))
        joined = self._joined(there)
        del narrow, joined
        self._product(there).clear()
        del coming

    def _joined(self, *times: str) -> Tensor:
        return self.sizes.new("gradient of what is expanded, in fp32", (*times, *self.sizes.both), "fp32")

    def _product(self, *times: str) -> list[Tensor]:
        sizes = self.sizes
        found = [sizes.new("latent, in fp32", (*times, *sizes.latents[0]), "fp32")]
        return [*found, sizes.new("gradient of weight of a step", (*times, *sizes.weight), "fp32")]


class _Expands:
    """The product that makes keys and values of the latents of all ranks: [rows h_out] and in backward once more."""

    def __init__(self, machine: Machine, rows: Dims, weight: Dims) -> None:
        self._machine = machine
        self._once = machine.predicates.multiple((*rows, *weight), 2)
        self._shape = rows, weight[:2], weight[2:]

    def forward(self) -> None:
        self._machine.flops(self._once)
        self._machine.multiplies(*self._shape)

    def backward(self) -> None:
        """The gradients of both operands, and the product again."""
        self._machine.flops(self._once * 2, recomputed=self._once)
        self._machine.multiplies(*self._shape)
        self._machine.multiplies_back(*self._shape)
