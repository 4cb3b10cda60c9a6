"""What a way to shard, and an optimizer, declare: rows that `weights/` prices and knows nothing else of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from mla_cost.language.numbers import round_up

WEIGHTS: Final = "weights"
GRADIENTS: Final = "gradients"
PARTIAL: Final = "gradients of a micro-batch"  # in the weights' dtype, beside those that they are added to
MASTER: Final = "master weights"
MOMENTS: Final = "moments"  # whatever tensors the optimizer keeps for itself
OPTIMIZER: Final = frozenset({MASTER, MOMENTS})

# `reduce`: each rank's part is reduced to that rank alone, one call after the other
Collective = Literal["all_reduce", "reduce", "reduce_scatter", "all_gather"]


class Send(NamedTuple):
    """One collective that keeps weights equal over the ranks that hold the same ones.

    state: `weights`, or their `gradients`. calls: once a step, or for every micro-batch of it; times: how often then.
    dtype: that of the weights or of the gradients; shared_dtype: another one, where ranks share a sequence. padded:
    whether the whole buffer travels, its padding with it; a reduce-scatter and an all-gather always send all of it.
    again: only where what forward gathered is given back, and gathered anew for backward. copies: over the replicas
    instead of the ranks that share one, each sending its part.
    to_owners: the collective in its place where `multi_rank_bucket_allreduce` is off.
    """

    state: Literal["weights", "gradients"]
    kind: Collective
    dtype: Literal["weights", "gradients"]
    calls: Literal["step", "micro-batch"] = "step"
    times: int = 1
    shared_dtype: str | None = None
    padded: bool = False
    again: bool = False
    copies: bool = False
    to_owners: Collective | None = None


EARLIER: Final = -(2**20)  # further than any unit is


class Alive(NamedTuple):
    """What of a unit is alive at a moment of another: of those `first` to `last` places further on in forward.

    what: weights gathered; the buffer in which they are `arriving`; their `rearranged` copies; gradients as a layer's
    backward leaves them; `lingering`: the last of those that were rearranged; `reduced`: the buffer from which they are
    reduced and scattered; `part`: what this rank gets of that; `cast`: that in the weights' dtype, where it is another.
    """

    what: Literal["gathered", "arriving", "rearranged", "gradients", "lingering", "reduced", "part", "cast"]
    first: int = 0
    last: int = 0
    times: int = 1


class Gathering(NamedTuple):
    """What is alive beside activations while one unit after another is gathered, runs, and is reduced.

    gather, forward: as its weights arrive, and as it runs. regather, backward: the same on the way back. reduce,
    scatter: as its gradients are put into the buffer that is sent, and as this rank's part of the sum arrives.
    """

    gather: tuple[Alive, ...]
    forward: tuple[Alive, ...]
    regather: tuple[Alive, ...]
    backward: tuple[Alive, ...]
    reduce: tuple[Alive, ...]
    scatter: tuple[Alive, ...]


class Case(NamedTuple):
    """Another row that runs in place of the one asked for, at these dtypes of weights and of gradients."""

    weight_dtype: str
    gradient_dtype: str
    sharding: Sharding


class Offload(NamedTuple):
    """An optimizer that steps on the host for a share of a rank's part, with its states there. Bytes for each weight.

    host: kept there; to_host: its gradient, each step; the new weight comes back in the weight's own dtype.
    moment_dtype, main_dtype, optimizer: the only ones that it has.
    """

    host: int
    to_host: int
    source: str
    moment_dtype: str = "fp32"
    main_dtype: str = "fp32"
    optimizer: str = "adam"


class Sharding(NamedTuple):
    """How the ranks that hold the same weights share what belongs to them.

    split: the states of which a rank has its part only. padded: those that lie whole in buffers padded as parts need
    it. step: a buffer is padded to a multiple of this, by the number of ranks. sends: what keeps weights equal, in
    order. partial: whether gradients of a micro-batch stay beside those that they are added to. clones: whether weights
    in fp32 get master weights all the same. bucket_elements: what is reduced at once through a buffer that stays, in
    the weights' dtype. one_stage: why no pipeline has it, with the way out, of `{pp}` stages. cases: what runs instead.

    gathers: for rows that split weights, by whether weights are given back after forward, how many units are gathered
    ahead, and whether there are replicas: what is alive at each moment of a unit. by_weight: each weight is padded by
    itself, not the buffer. whole_dtype: weights, and what is added up of gradients, are kept in fp32, and weights in
    their own dtype exist only gathered. profiles: of which it is priced, all where empty. own_weights: why it is not
    priced where units share weights. offload: how its optimizer runs on the host; None where that is not priced.
    """

    name: str
    title: str
    source: str
    step: Callable[[int], int]
    sends: tuple[Send, ...]
    split: frozenset[str] = frozenset()
    padded: frozenset[str] = frozenset()
    partial: bool = False
    clones: bool = False
    bucket_elements: int = 0
    bucket_source: str = ""
    one_stage: str = ""
    cases: tuple[Case, ...] = ()
    gathers: Callable[[bool, int, bool], Gathering] | None = None
    by_weight: bool = False
    whole_dtype: bool = False
    profiles: tuple[str, ...] = ()
    own_weights: str = ""
    offload: Offload | None = None

    def running(self, weight_dtype: str, gradient_dtype: str) -> Sharding:
        """The row that runs at these dtypes: this one, or what stands in its place."""
        asked = (weight_dtype, gradient_dtype)
        return next((case.sharding for case in self.cases if case[:2] == asked), self)

    def reduced_to_owners(self) -> Sharding:
        """The row with gradients reduced to the ranks that own them, where it has a way to."""
        sends = tuple(send._replace(kind=send.to_owners or send.kind) for send in self.sends)
        return self._replace(sends=sends)

    @property
    def has_owners(self) -> bool:
        """Whether anything is reduced to owners if asked."""
        return any(send.to_owners for send in self.sends)

    @property
    def every_micro_batch(self) -> bool:
        """Whether something is sent for every micro-batch."""
        return any(send.calls == "micro-batch" for send in self.sends)

    def padded_elements(self, elements: int, ranks: int) -> int:
        """Elements after padding so that `ranks` share equally."""
        return round_up(elements, self.step(ranks))


class StateTensor(NamedTuple):
    """A tensor that an optimizer keeps for every weight. dtype: None is the plan's `moment_dtype`.

    of: for which weights it is kept; `matrices` are those of two dims or more without a vocabulary's, `others` what
    is left.
    """

    name: str
    dtype: str | None = None
    of: Literal["all", "matrices", "others"] = "all"


class Optimizer(NamedTuple):
    """What updates weights, by the tensors that it keeps beside master weights.

    making: bytes alive while it makes the update of one matrix, of so many rows and columns on a rank, that so many
    ranks of tp have parts of. whole: the only shardings that leave matrices whole, where it needs them so.
    note: what a reader of its figures has to know.
    """

    name: str
    title: str
    source: str
    tensors: tuple[StateTensor, ...]
    making: Callable[[int, int, int], int] | None = None
    whole: tuple[str, ...] = ()
    note: str = ""
