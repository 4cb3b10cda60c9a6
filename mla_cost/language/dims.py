"""The symbols of every formula, and how the dims of a tensor are made of them.

s, P and l (or n, where no scheme divides the heads) are base symbols; S = s*P and n = l*P, so nothing ever divides.
Where a scheme has groups inside groups, A and C stand for P = A*C and `l_in` for l: n = l_in*A.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from mla_cost.language.numbers import floor_divide, maximum, minimum
from mla_cost.language.polynomial import Polynomial, product, total

# symbol: (meaning, the field that sets it)
SYMBOLS: dict[str, tuple[str, str]] = {
    "S": ("sequence length, all ranks together", "seq_len"),
    "P": ("ranks that share one sequence", "sp"),
    "P_others": ("the other ranks that share one sequence, P - 1", "sp - 1"),
    "A": ("ranks of an inner group of those that share one sequence", "sp_inside"),
    "C": ("inner groups that share one sequence, P/A", "sp / sp_inside"),
    "C_others": ("the other inner groups, C - 1", "sp / sp_inside - 1"),
    "A_others": ("the other ranks of an inner group, A - 1", "sp_inside - 1"),
    "P_two": ("chunks of other ranks in hand and on their way in a ring, P - 1 and at most 2", "sp"),
    "P_three": ("the same with the one before, which a slice holds on to, at most 3", "sp"),
    "P_rows": ("statistics of a ring's hops that wait beside them, P - 2 and at most 2", "sp"),
    "P_third": ("whether a ring has a third rank, 1 or 0", "sp"),
    "C_two": ("as P_two, of inner groups", "sp / sp_inside"),
    "C_three": ("as P_three, of inner groups", "sp / sp_inside"),
    "C_rows": ("as P_rows, of inner groups", "sp / sp_inside"),
    "C_third": ("as P_third, of inner groups", "sp / sp_inside"),
    "t": ("ranks of tensor parallelism", "tp"),
    "s": ("sequence positions on one rank, S/P", "seq_len / sp"),
    "S_in": ("sequence positions of an inner group, s*A", "seq_len / sp * sp_inside"),
    "u": ("sequence positions on one rank outside the regions of tensor parallelism, s/t", "seq_len / sp / tp"),
    "b": ("sequences in a micro-batch", "micro_batch"),
    "n": ("attention heads of one tp rank", "dims.heads / tp"),
    "l": ("heads on one rank where a scheme divides them, n/P", "dims.heads / tp / sp"),
    "l_in": ("heads on one rank where a scheme divides them inside groups, n/A", "dims.heads / tp / sp_inside"),
    "h": ("hidden width", "dims.hidden"),
    "d_q": ("width of the query latent, 0 without one", "dims.q_lora_rank"),
    "d_q_part": ("columns of the query latent on one tp rank, d_q/t", "dims.q_lora_rank / tp"),
    "d_c": ("width of the key-value latent", "dims.kv_lora_rank"),
    "k": ("width of a head's query and key without position", "dims.qk_nope_head_dim"),
    "r": ("width of a head's rotated query and key", "dims.qk_rope_head_dim"),
    "kv_part": ("columns of latent and rope key on one tp rank, (d_c+r)/t", "(kv_lora_rank + qk_rope_head_dim) / tp"),
    "v": ("width of a head's value", "dims.v_head_dim"),
    "f": ("width of a dense MLP on one rank", "intermediate_size / tp"),
    "V": ("vocabulary rows on one rank", "vocab_size / tp, padded"),
    "V_all": ("vocabulary rows of all ranks together, without padding", "vocab_size"),
    "q": ("positions of one chunk of the loss", "seq_len / sp * micro_batch / loss_chunks, rounded up"),
    "E": ("ranks that share the experts", "ep"),
    "e": ("experts", "num_routed_experts"),
    "T": ("ranks that share each expert", "etp"),
    "c": ("experts of one rank, e/E", "num_routed_experts / ep"),
    "K": ("experts per token", "num_experts_per_token"),
    "R": ("rows that reach one rank over ep", "routed, with their imbalance"),
    "w": ("rows that go to each expert rank", "rows * num_experts_per_token / ep, rounded up"),
    "z": ("rows that the experts of one rank send back to each rank of ep, R/E rounded up", "R / ep, rounded up"),
    "g": ("width of an expert on one rank", "moe_intermediate_size / etp"),
    "m": ("width of the shared experts on one tp rank, 0 without any", "num_shared_experts * width / tp"),
    "j": ("columns of a multi-token-prediction projection on one tp rank, h/t", "dims.hidden / tp"),
    "D": ("tokens that the experts of one rank receive, each once", "routed, by deepep or hybridep"),
    "a": ("tokens that go to each expert rank, each once, D/E rounded up", "routed, by deepep or hybridep"),
    "B": ("bytes that the token mixer of a layer without MLA keeps", "facts.other_layer_bytes"),
    "I": ("bytes that the indexer of one layer keeps", "facts.indexer_layer_bytes"),
    "i": ("width of an indexer's key, 0 without one", "indexer.index_head_dim"),
    "r_half": ("half of r, which RoPE turns as one", "dims.qk_rope_head_dim / 2"),
    "s_half": ("half of s, one of two chunks of the sequence that a rank holds", "seq_len / sp / 2"),
}
HEADS = frozenset({"n", "l"})  # dims that count heads, all of a rank or those of one of a sequence's
# dims that are one tp rank's part of a width: a weight with one of them is divided
TP_PARTS = frozenset({"n", "l", "l_in", "d_q_part", "kv_part", "f", "V", "m", "j"})
# dims that are one rank's part of the experts: a weight with one of them is divided over ep, and over etp by its width
EXPERT_PARTS = frozenset({"c"})
# widths that a kernel fixes, such as the last dim of Ascend's softmax statistics
CONSTANTS: dict[str, int] = {"1": 1, "2": 2, "3": 3, "8": 8}

Atoms = tuple[str, ...]
Stride = Atoms | None  # None: an expanded axis, stride zero


class Axis(NamedTuple):
    """One dim of a tensor and the stride along it."""

    name: str
    stride: Stride


Axes = tuple[Axis, ...]


class Predicates:
    """What the structure of a program may depend on: which dims are absent and which are one, nothing else.

    ones: base symbols whose value is 1. zeros: symbols whose value is 0 (r without RoPE, d_q without a query latent).
    heads_divided: whether a scheme divides the heads over the ranks (then n = l*P, otherwise n is a base symbol).
    rows_divided: whether tensor parallelism divides the sequence between its regions (then s = u*t, otherwise u is s).
    nested: whether the ranks of a sequence are groups inside groups (then P = C*A and n = l_in*A).
    Equal predicates are one object (`predicates`), so what is derived from dims is worked out once.
    """

    __slots__ = (
        "_atoms",
        "_elements",
        "_multiples",
        "_row_majors",
        "alike",
        "heads_divided",
        "nested",
        "ones",
        "rows_divided",
        "zeros",
    )

    def __init__(
        self,
        ones: frozenset[str] = frozenset(),
        zeros: frozenset[str] = frozenset(),
        heads_divided: bool = True,
        rows_divided: bool = False,
        nested: bool = False,
    ) -> None:
        self.ones = ones
        self.zeros = zeros
        self.heads_divided = heads_divided
        self.rows_divided = rows_divided
        self.nested = nested
        self._atoms: dict[str, Atoms] = {}
        self._elements: dict[tuple[str, ...], Polynomial] = {}
        self._multiples: dict[tuple[tuple[str, ...], int], Polynomial] = {}
        self._row_majors: dict[tuple[str, ...], Axes] = {}
        self.alike: dict[tuple[Axes, ...], Axes] = {}  # what `strides.like` found

    @property
    def exchanged(self) -> bool:
        """Whether more than one rank shares the sequence."""
        return "P" not in self.ones

    @property
    def rows(self) -> str:
        """The dim of positions outside the regions of tensor parallelism: u, which is s where nothing divides it."""
        return "u" if self.rows_divided else "s"

    @property
    def heads(self) -> str:
        """The dim of a rank's heads: n where no scheme divides them."""
        return ("l_in" if self.nested else "l") if self.heads_divided else "n"

    @property
    def experts_divided(self) -> bool:
        """Whether more than one rank shares the experts."""
        return "E" not in self.ones

    @property
    def experts_split(self) -> bool:
        """Whether more than one rank shares each expert."""
        return "T" not in self.ones

    def words(self) -> str:
        """The key in words, as formulas print it: 'sp > 1, more than one head per rank'."""
        heads = "head per rank" if self.heads_divided else "head"
        parts = ["sp > 1" if self.exchanged else "sp = 1"]
        parts += ["groups inside groups"] * self.nested
        parts.append(f"one {heads}" if self._one_head() else f"more than one {heads}")
        parts.append("one sequence per micro-batch" if "b" in self.ones else "more than one sequence per micro-batch")
        parts += ["one position per rank"] * ("s" in self.ones)
        parts += ["no query latent"] * ("d_q" in self.zeros) + ["no rotated part"] * ("r" in self.zeros)
        return ", ".join(parts)

    def _one_head(self) -> bool:
        return self.heads in self.ones

    def present(self, name: str) -> str:
        """The dim without its absent parts: k+r is k where r is 0."""
        return "+".join(part for part in name.split("+") if part not in self.zeros)

    def factors(self, name: str) -> tuple[str, ...]:
        """The base factors of a dim: S is (P, s), k+r is one factor of its own."""
        if name == "S":
            return (*self.factors("P"), *self.factors("s"))
        if name == "P" and self.nested:
            return ("C", "A")
        if name == "S_in":
            return ("A", *self.factors("s"))
        if name == "s" and self.rows_divided:
            return ("t", "u")
        if name == "n" and self.heads_divided:
            return ("A", "l_in") if self.nested else ("P", "l")
        return (name,)

    def atoms(self, name: str) -> Atoms:
        """The factors that are not known to be one: the alphabet of strides. Empty for a dim of size one."""
        found = self._atoms.get(name)
        if found is None:
            found = self._atoms[name] = tuple(factor for factor in self.factors(name) if factor not in self.ones)
        return found

    def row_major(self, names: tuple[str, ...]) -> Axes:
        """The dims with their strides where the last varies fastest."""
        found = self._row_majors.get(names)
        if found is None:
            found = self._row_majors[names] = self._row_major(names)
        return found

    def _row_major(self, names: tuple[str, ...]) -> Axes:
        axes: list[Axis] = []
        inner: Atoms = ()
        for name in reversed(names):
            axes.append(Axis(name, inner))
            inner = tuple(sorted(inner + self.atoms(name)))
        return tuple(reversed(axes))

    def is_one(self, name: str) -> bool:
        """Whether the dim has size one."""
        return not self.atoms(name)

    def size(self, name: str) -> Polynomial:
        """Elements along the dim."""
        return self.elements((name,))

    def elements(self, names: tuple[str, ...]) -> Polynomial:
        """Elements of a tensor with these dims."""
        found = self._elements.get(names)
        if found is None:
            found = product(_factor_size(factor) for name in names for factor in self.factors(name))
            self._elements[names] = found
        return found

    def multiple(self, names: tuple[str, ...], factor: int) -> Polynomial:
        """So many times the elements of a tensor with these dims: its bytes, or the flops of a product over them."""
        found = self._multiples.get((names, factor))
        if found is None:
            found = self._multiples[names, factor] = self.elements(names) * factor
        return found


@cache
def predicates(
    ones: frozenset[str] = frozenset(),
    zeros: frozenset[str] = frozenset(),
    heads_divided: bool = True,
    rows_divided: bool = False,
    nested: bool = False,
) -> Predicates:
    """The predicates, one object for equal arguments."""
    return Predicates(ones, zeros, heads_divided, rows_divided, nested)


@cache
def _factor_size(factor: str) -> Polynomial:
    return total(
        Polynomial.constant(CONSTANTS[part]) if part in CONSTANTS else Polynomial.symbol(part)
        for part in factor.split("+")
    )


def rank_share(predicates: Predicates, rows: tuple[str, ...], outer: tuple[str, ...]) -> Polynomial:
    """Twice the multiply-adds of rows [s .. inner] times a weight [outer inner] that the maths asks of this rank.

    What other tp ranks do as well is theirs in equal parts: a weight that is whole on each of them makes the same of
    all gathered positions s, so this rank's share is u of them. Padded rows of the vocabulary are nobody's.
    """
    dims, padded = (*rows, *outer), "V" in outer
    divided = not padded and any(part in TP_PARTS for dim in dims for part in dim.split("+"))
    if predicates.rows_divided and not divided:
        dims = tuple("u" if dim == "s" else dim for dim in dims)
    return predicates.multiple(tuple("V_all" if dim == "V" else dim for dim in dims), 2)


# symbols that follow from others: what is divided, and by what
QUOTIENTS: dict[str, tuple[str, str | int]] = {
    "s": ("S", "P"),
    "u": ("s", "t"),
    "l": ("n", "P"),
    "r_half": ("r", 2),
    "s_half": ("s", 2),
    "C": ("P", "A"),
    "l_in": ("n", "A"),
}
# of those, what only groups inside groups have
NESTED: frozenset[str] = frozenset({"C", "l_in", "C_others", "A_others", "C_two", "C_three", "C_rows", "C_third"})
FLAT: tuple[str, ...] = tuple(name for name in QUOTIENTS if name not in NESTED)
# ranks of an axis less this one, and of which axis; formulas know the first alone
OTHERS: dict[str, str] = {
    "P_others": "P",
    "C_others": "C",
    "A_others": "A",
    "other_tp_ranks": "t",
    "other_expert_ranks": "E",
    "other_etp_ranks": "T",
}
# what is there of a ring's hops at once: ranks less so many, and at most so many
AT_ONCE: dict[str, tuple[str, int, int]] = {
    f"{ranks}_{name}": (ranks, less, most)
    for ranks in ("P", "C")
    for name, less, most in (("two", 1, 2), ("three", 1, 3), ("rows", 2, 2), ("third", 2, 1))
}
OTHERS_OF_A_SEQUENCE: tuple[str, ...] = ("P_others", "C_others", "A_others")
OF_RANKS: tuple[str, ...] = (
    "P_others",
    "P_two",
    "P_three",
    "P_rows",
    "P_third",
)  # what follows from the ranks of a sequence


def follow(values: Mapping[str, Any], wanted: Iterable[str] = (*FLAT, *OF_RANKS)) -> dict[str, Any]:
    """The symbols that follow from these values: numbers, or arrays of them.

    A rank of tensor parallelism is the only one where t has no value, and alone in its inner group where A has none.
    """
    found = {"t": 1, "A": 1, **values}
    for name in wanted:
        if name in OTHERS:
            found[name] = found[OTHERS[name]] - 1
        elif name in AT_ONCE:
            of, less, most = AT_ONCE[name]
            found[name] = minimum(maximum(found[of] - less, 0), most)
        else:
            what, by = QUOTIENTS[name]
            parts = found[by] if isinstance(by, str) else by
            found[name] = floor_divide(found[what], parts)
    return {name: found[name] for name in wanted}


def base_values(values: Mapping[str, int], heads_divided: bool, nested: bool = False) -> dict[str, int]:
    """Values for the base symbols, from S, P, b, the widths, n (heads of one tp rank), and t and A where above 1.

    Raises:
        ValueError: ranks do not divide S, or n where the heads are divided (a plan refuses these first, by name).

    """
    ranks, parts = values["A" if nested else "P"], values["P"] * values.get("t", 1)
    if values["S"] % parts or (heads_divided and values["n"] % ranks):
        raise ValueError(f"{parts} ranks do not divide S = {values['S']}, or {ranks} not n = {values['n']}")
    base = {**values, **follow(values, (*QUOTIENTS, *OTHERS_OF_A_SEQUENCE, *AT_ONCE))}
    del base["S"]
    heads = ("l_in" if nested else "l") if heads_divided else "n"
    for unused in {"l", "l_in"} - {heads}:
        del base[unused]
    if not nested:
        for unused in ("A", *NESTED - {"l_in"}):
            base.pop(unused, None)
    return base


_WIDTHS = ("h", "d_q", "d_q_part", "d_c", "k", "r", "kv_part", "v", "r_half", "f", "V", "g", "m", "i")
# what structure asks of, whether it is one
COUNTED = ("P", "s", "t", "u", "b", *_WIDTHS, "q", "e", "c", "K", "R")
# the sizes of which structure asks whether they are 0, 1 or more
STRUCTURAL: tuple[str, ...] = (*COUNTED, "n", "l", "l_in", "A", "C")


def following(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these symbols that follow from others, and what they follow from on the way, in an order to work out."""
    wanted = set(names)
    every = (*QUOTIENTS, *OTHERS, *AT_ONCE)
    for name in reversed(every):
        if name in wanted:
            wanted.update(_sources(name))
    return tuple(name for name in every if name in wanted)


def _sources(name: str) -> tuple[str, ...]:
    if name in QUOTIENTS:
        return tuple(part for part in QUOTIENTS[name] if isinstance(part, str))
    return (OTHERS[name] if name in OTHERS else AT_ONCE[name][0],)


def follow_where_known(values: Mapping[str, Any], wanted: Iterable[str], beside: Container[str] = ()) -> dict[str, Any]:
    """Of these symbols, in an order to work out, those that follow from what has values.

    beside: what has values elsewhere, from which nothing follows here; t and A are 1 where they have none at all.
    """
    found: dict[str, Any] = {}
    for name in wanted:
        known = {**values, **found}
        if name not in known and all(part in known or _is_one(part, beside) for part in _sources(name)):
            found |= follow(known, (name,))
    return found


def _is_one(symbol: str, beside: Container[str]) -> bool:
    return symbol in {"t", "A"} and symbol not in beside


def predicates_of(base: Mapping[str, int], heads_divided: bool, nested: bool = False) -> Predicates:
    """The predicates that hold for these base values."""
    heads = ("l_in" if nested else "l") if heads_divided else "n"
    ones = frozenset(name for name in (*COUNTED, heads) if base.get(name) == 1)
    zeros = frozenset(name for name in ("d_q", "r", "m", "i") if base.get(name, 0) == 0)
    alone = {symbol for symbol in ("E", "T") if base.get(symbol, 1) == 1}
    return predicates(ones | alone, zeros, heads_divided, base.get("t", 1) > 1, nested)


def declared(names: Iterable[str]) -> tuple[str, ...]:
    """Dims (or the symbols of a monomial) as formulas print them: S and n where P meets s and l, in declared order."""
    found = list(names)
    for parts, whole in (("CAs", "S"), ("Ps", "S"), ("As", "S_in"), ("CA", "P"), ("Pl", "n"), (("A", "l_in"), "n")):
        while all(part in found for part in parts):
            for part in parts:
                found.remove(part)
            found.append(whole)
    order = {name: at for at, name in enumerate(SYMBOLS)}
    return tuple(sorted(found, key=lambda name: order.get(name, len(order))))


def product_text(factors: Sequence[str]) -> str:
    """Factors as a product: numbers, symbols with powers, sums in brackets."""
    powers = {factor: factors.count(factor) for factor in factors}
    return "*".join(_power(factor, count) for factor, count in powers.items())


def _power(factor: str, count: int) -> str:
    text = f"({factor})" if "+" in factor or "-" in factor else factor
    return text if count == 1 else f"{text}^{count}"
