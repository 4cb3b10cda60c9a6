"""The text that forms and kernels are written in, and what a form, a scheme and a kernel declare.

One line is one op, in the order a practitioner writes them:

    q_latent = linear x, W_q_down[d_q h]        an op on variables and parameters; dims follow from the operands
    k_nope[k], value[v] = split kv              several results, each with its last dim
    kv[S b n k+v] = linear latent, w            dims that the rules have to find as well; a rank's part of one counts
    scores = einsum "sbnd,tbnd->bnst" q, key    letters stand for axes by position
    exchange query q                            a point where a scheme may move q to other ranks
    o = attend q, key, value                    a point that a kernel fills
    w = parameter W_kv_up[n k+v d_c]            a name for a parameter; `key = same latent` a second name
    logits = linear x, W_router[e h]:fp32       a weight in a dtype of its own
    drop scores                                 the name goes; what nothing else holds is freed
    q = query x                                 a piece: its names die when it returns
    if r / if not d_q / if v_layout == view     on a fact or a setting, never on a size
    return q
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from mla_cost.errors import InputError, nearest
from mla_cost.language.fused_workspace import NO_WORKSPACE, Workspace
from mla_cost.language.numbers import remainder, where


class ProgramError(ValueError):
    """Declarations that make no program together, such as a kernel that takes no shared key."""


class DeclarationError(InputError):
    """A fault in a declaration: whose it is, in which piece, the line, and what was probably meant."""

    def __init__(self, message: str, *, field: str | None = None, nearest: Iterable[str] = ()) -> None:
        super().__init__(message, field=field, nearest=nearest)

    def at(self, where: str) -> "DeclarationError":
        """The same fault with the place it stands at; the innermost place stays."""
        return self if self.field else DeclarationError(self.message, field=where, nearest=self.nearest)


class BoundName(NamedTuple):
    """A name that an op binds, its last dim, and all dims where the text shows them."""

    name: str
    dim: str | None
    dims: tuple[str, ...] = ()


class Parameter(NamedTuple):
    """A weight, its dims, and its dtype where that is not the one of the whole program."""

    name: str
    dims: tuple[str, ...]
    dtype: str | None = None

    @property
    def text(self) -> str:
        """The weight as texts write it."""
        return f"{self.name}[{' '.join(self.dims)}]{f':{self.dtype}' if self.dtype else ''}"


class Op(NamedTuple):
    """results = op "words" arguments."""

    results: tuple[BoundName, ...]
    name: str
    words: tuple[str, ...]
    arguments: tuple[str | Parameter, ...]
    line: str = ""

    @property
    def text(self) -> str:
        """The op as texts write it, without the dims of its results."""
        quoted = "".join(f' "{word}"' for word in self.words)
        given = ", ".join(argument if isinstance(argument, str) else argument.text for argument in self.arguments)
        return f"{', '.join(result.name for result in self.results)} = {self.name}{quoted} {given}".rstrip()


class Exchange(NamedTuple):
    """A point where a scheme may move what these names hold."""

    tag: str
    names: tuple[str, ...]
    line: str = ""


class Drop(NamedTuple):
    """Names that end here."""

    names: tuple[str, ...]
    line: str = ""


class Return(NamedTuple):
    """What a piece gives back; all its other names end."""

    names: tuple[str, ...]
    line: str = ""


class If(NamedTuple):
    """A choice on a fact or a setting. value None: a fact."""

    name: str
    value: str | None
    negated: bool
    then: "Block"
    otherwise: "Block"
    line: str = ""


Statement = Op | Exchange | Drop | Return | If
Block = tuple[Statement, ...]


class Piece(NamedTuple):
    """A named function of the program text. owner: whose text it is, as messages say it."""

    name: str
    parameters: tuple[str, ...]
    body: Block
    owner: str = ""

    def where(self, line: str) -> str:
        """A line of it, as messages say it."""
        owner = f"{self.owner}, " if self.owner else ""
        return f"{owner}piece {self.name}, line `{line}`"


ATTEND: Final = "attend"  # the op that a kernel's piece stands for, or a scheme's

SIZES_ASKED: Final = (
    "seq_len",
    "sp",
    "heads",
    "sp_inside",
    "sp_outside",
    "qk",
    "v",
)  # what requirements ask about, and their messages tell


@dataclass(frozen=True)
class Requirement:
    """A condition for a program to exist. message may use the names of all values, e.g. `{heads}`.

    kind `divides`: `what` must be a multiple of `by`, or of `times` as much where `by` is above 1; `at_most`: `what` <=
    `by`. Both name settings or dims. way_out: what to do instead, where no degree or length helps.

    Raises:
        DeclarationError: a name that is none of those, in the message too.

    """

    kind: Literal["divides", "at_most"]
    what: str
    by: str
    message: str
    times: int = 1
    way_out: str = ""

    def __post_init__(self) -> None:
        named = [field.split(".")[0] for _, field, _, _ in Formatter().parse(self.message) if field is not None]
        for name in (self.what, self.by, *named):
            if name not in SIZES_ASKED:
                known = f"a requirement asks about {', '.join(SIZES_ASKED)}, not {name!r}"
                raise DeclarationError(known, nearest=nearest(name, SIZES_ASKED))

    def parts(self, degree: Any) -> Any:
        """Into how many parts ranks cut something. degree: a number or an array, as the answer."""
        return degree * where(degree > 1, self.times, 1) if self.times > 1 else degree

    def broken(self, sizes: Mapping[str, Any]) -> Any:
        """Whether it does not hold. sizes: numbers or arrays by the names of settings and dims (`sizes_asked`)."""
        what, by = sizes[self.what], sizes[self.by]
        return what > by if self.kind == "at_most" else remainder(what, self.parts(by)) != 0


def sizes_asked(values: Mapping[str, Any]) -> dict[str, Any]:
    """What requirements ask about, by the names of settings and dims. values: of the symbols S, P and n."""
    inside, outside, qk = values.get("A", 1), values.get("C", values["P"]), values["k"] + values["r"]
    return dict(
        zip(SIZES_ASKED, (values["S"], values["P"], values["n"], inside, outside, qk, values["v"]), strict=True)
    )


class Form(NamedTuple):
    """The maths of the block. text: its pieces, of which `forward` is the block; scheme: the one it usually runs with.

    shared_key: all heads attend to one key. qk, value: the widths of a head that attention sees. titles: what tables
    call its weights, by their names here; others go by their own.
    """

    name: str
    title: str
    text: str
    scheme: str
    source: str
    known_as: str = ""
    shared_key: bool = False
    qk: str = "k+r"
    value: str = "v"
    titles: Mapping[str, str] = MappingProxyType({})

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """The pieces by name."""
        return parse(self.text, f"form {self.name}")

    @property
    def points(self) -> frozenset[str]:
        """The tags that a scheme can move."""
        return frozenset(_points(piece.body for piece in self.pieces.values()))


Role = Literal["block", "layer", "embedding", "head", "ahead", "ends"]


class Layer(NamedTuple):
    """What stands around attention, or beside it. text: its pieces, of which `whole` is all of it.

    takes_input: whether its argument is a tensor that needs a gradient. recomputed: whether recomputation applies.
    role: where it stands. A `block` is attention alone, a `layer` one of a model's, with or without `experts`; then the
    `embedding`, the `head` with the loss, what a module that predicts further ahead does before its layer (`ahead`),
    and such a module through such a layer with both losses in one program (`ends`). shares: weights of which a stage
    has one, however many of its layers use it. titles: what tables call its weights.
    """

    name: str
    title: str
    text: str
    takes_input: bool = True
    recomputed: bool = True
    whole: str = "layer"
    role: Role = "layer"
    experts: bool = False
    shares: tuple[str, ...] = ()
    titles: Mapping[str, str] = MappingProxyType({})

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """The pieces by name."""
        return parse(self.text, f"layer {self.name}")


class Pair(NamedTuple):
    """A form and a scheme that together bear a name of their own."""

    name: str
    title: str
    form: str
    scheme: str
    source: str
    known_as: str = ""


class Allowance(NamedTuple):
    """Memory that an implementation takes for itself and that no program shows. with_experts: in expert layers only.

    role: only on a stage that has a layer of it. on: bytes on architectures where they differ, by a device's `arch`.
    """

    name: str
    bytes: int
    source: str
    with_experts: bool = False
    role: Role | None = None
    on: Mapping[str, int] = MappingProxyType({})

    def at(self, arch: str) -> int:
        """Bytes on an architecture, `bytes` without one."""
        return self.on.get(arch, self.bytes)

    def taken_by(self, layers: Sequence[Layer]) -> bool:
        """Whether a stage of these layers takes it."""
        experts = not self.with_experts or any(layer.experts for layer in layers)
        return bool(layers) and experts and (self.role is None or any(layer.role == self.role for layer in layers))


class StagingShape(NamedTuple):
    """What a dispatcher sizes its buffers by, for one rank.

    tokens: local positions of a micro-batch. ranks: those that share the experts; domain: how many of them share fast
    links. experts: of one rank.
    """

    tokens: int
    hidden: int
    ranks: int
    domain: int
    experts: int


class Staging(NamedTuple):
    """Memory that a dispatcher takes past torch's allocator, so that no allocated figure holds it and a device must."""

    bytes: Callable[[StagingShape], int]
    source: str


class Profile(NamedTuple):
    """Whose implementation runs.

    texts: for each layer by name, pieces that stand in place of the layer's and the form's own; a profile that has any
    prices these layers only. kernels: those that it runs, all where empty. refused: forms that it does not train, each
    with the reason and the way out. sparse: how it trains models with an indexer, where that is another way than the
    one priced. fixed: settings that its code leaves no choice in. needs: dims that may
    not be absent, with the reason. recomputes: policies without output that its texts have pieces for. losses: the
    values of cross_entropy that its head knows. allowances: budgeted beside what its programs count. reentrant: its
    checkpoints run a part again to its end and go back through it by themselves. staging: by dispatcher, what lies
    outside torch. shardings: its own ways to share optimizer states, any where empty. overlaps: the
    settings of overlap that it has on where nothing is said. left_of_chunk: hidden states that each chunk goes on
    holding between two steps where it received its input. once_per_node: dispatchers that send a row to a node once
    and on from there. gradient_passes: how often a step goes through all summed gradients beside the update, each a
    read or a write. reduced_fp32: whether fp32 products run at half the rate of bf16 ones, as TF32. notes: reported
    with every answer.
    """

    name: str
    title: str
    source: str
    texts: Mapping[str, str] = MappingProxyType({})
    kernels: tuple[str, ...] = ()
    refused: Mapping[str, str] = MappingProxyType({})
    sparse: str = ""
    fixed: Mapping[str, str] = MappingProxyType({})
    needs: Mapping[str, str] = MappingProxyType({})
    recomputes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ("native",)
    allowances: tuple[Allowance, ...] = ()
    reentrant: bool = False
    staging: Mapping[str, Staging] = MappingProxyType({})
    shardings: tuple[str, ...] = ()
    overlaps: tuple[str, ...] = ()
    once_per_node: tuple[str, ...] = ()
    gradient_passes: int = 0
    reduced_fp32: bool = False
    left_of_chunk: int = 0
    notes: tuple[str, ...] = ()

    def pieces(self, layer: str) -> Mapping[str, Piece]:
        """The pieces that it replaces in a layer."""
        if self.texts and layer not in self.texts:
            raise ProgramError(f"profile {self.name} prices whole layers; use scope model")
        return parse(self.texts.get(layer, ""), f"profile {self.name}")


# one op, or several one after another: `heads_to_sequence, cut_to "v"`
Move = str


def first_op(move: str) -> str:
    """The op that a move begins with."""
    return move.partition(",")[0]


class Scheme(NamedTuple):
    """What crosses ranks, and where: a move for each tag. Nothing moves on one rank.

    attends: the op, with its words, that attends and exchanges in one call. text: pieces that stand in place of the
    form's, with points of their own. inside: what inner groups of `sp_inside` ranks do, next to each other: `moves` run
    among them (`heads`), or they are the windows of a ring (`window`); what attends goes between the groups.
    turns: heads go one of each rank at a time. deal: how the tokens of a sequence sit on ranks. profiles: whose code
    runs it. basis: whether its moves were read in code or in equations (`stated`), follow from what was read
    (`derived`), or are ours from words (`inferred`).
    offered: whether searches, levers and the grids of tests try it where nobody names it. systems: where it is found,
    under the names that it has there. use: when, as the end of a sentence. source: what was read, where; paper: what
    that follows, which was not. notes: reported with every answer.
    """

    name: str
    title: str
    moves: Mapping[str, Move]
    requires: tuple[Requirement, ...]
    source: str
    attends: str = ""
    text: str = ""
    inside: Literal["", "heads", "window"] = ""
    turns: bool = False
    deal: Literal["contiguous", "zig-zag"] = "contiguous"
    profiles: tuple[str, ...] = ("reference",)
    basis: Literal["stated", "derived", "inferred"] = "stated"
    offered: bool = False
    systems: tuple[str, ...] = ()
    use: str = ""
    paper: str = ""
    notes: tuple[str, ...] = ()

    @property
    def piece(self) -> Piece:
        """What stands in the place of the kernel's piece under a scheme that attends itself: its own, or its one op."""
        if ATTEND in self.pieces:
            return self.pieces[ATTEND]
        text = f"attend(q, key, value):\n    o = {self.attends} q, key, value\n    return o"
        return parse(text, f"scheme {self.name}")["attend"]

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """What stands in place of the form's pieces of the same names."""
        return parse(self.text, f"scheme {self.name}")

    @property
    def points(self) -> frozenset[str]:
        """The tags of its own text."""
        return frozenset(_points(piece.body for piece in self.pieces.values()))

    @property
    def divides_heads(self) -> bool:
        """Whether each rank computes its own heads only."""
        return self.turns or any(first_op(each) in {"sequence_to_heads", "own_heads"} for each in self.moves.values())

    def groups(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """Whether heads are divided, and whether there are groups inside groups, for so many ranks of each.

        At either end one of the two is left: all ranks in one group, or each in one of its own.
        """
        if not self.inside:
            return self.divides_heads, False
        nested = (inner > 1) & (outer > 1)
        return (self.divides_heads & (inner > 1)) if self.divides_heads else False, nested


class Limit(NamedTuple):
    """Where one implementation of a kernel trains, forward and backward.

    archs: device architectures. max_qk, max_v: widths of one head in elements, None without a limit.
    equal: V must be as wide as Q and K. at_most_qk: V may not be wider than Q and K. only: exact (qk, v) pairs.
    multiple_of: alignment of both widths. dtypes: those of its inputs.
    """

    implementation: str
    archs: tuple[str, ...]
    source: str
    max_qk: int | None = None
    max_v: int | None = None
    equal: bool = False
    at_most_qk: bool = False
    only: tuple[tuple[int, int], ...] = ()
    multiple_of: int = 1
    note: str = ""
    dtypes: tuple[str, ...] = ("bf16", "fp16")

    def trains(self, arch: str, qk: Any, v: Any, dtype: str) -> Any:
        """Whether it trains heads of these widths, numbers or arrays, and this dtype on this architecture."""
        return self._widths(qk, v) if arch in self.archs and dtype in self.dtypes else False

    def _widths(self, qk: Any, v: Any) -> Any:
        found: Any = not self.only
        for only_qk, only_v in self.only:
            found = found | ((qk == only_qk) & (v == only_v))
        if self.multiple_of > 1:
            found = found & (remainder(qk, self.multiple_of) == 0) & (remainder(v, self.multiple_of) == 0)
        if self.equal:
            found = found & (v == qk)
        if self.at_most_qk:
            found = found & (v <= qk)
        for width, most in ((qk, self.max_qk), (v, self.max_v)):
            found = found if most is None else found & (width <= most)
        return found


class Kernel(NamedTuple):
    """How softmax(q k) v is executed. text and shared_text: pieces for per-head keys and for one shared key.

    workspace: what one call holds inside its backward.
    """

    name: str
    title: str
    text: str
    shared_text: str | None
    fused: bool
    limits: tuple[Limit, ...]
    source: str
    layouts: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    shared_layouts: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    value_padding: str = "none"
    shared_refusal: str = ""
    workspace: Workspace = NO_WORKSPACE
    workspace_source: str = ""

    def pads(self, shared: bool) -> bool:
        """Whether its program asks for value padding at all."""
        return "value_padding" in ((self.shared_text if shared else self.text) or "")

    def piece(self, shared: bool, layout: str) -> Piece:
        """The piece for these operands, its `{letters}` filled in for the attention layout."""
        text = self.shared_text if shared else self.text
        if text is None:
            raise ProgramError(f"kernel {self.name} has no program for a shared key: {self.shared_refusal}")
        layouts = self.shared_layouts if shared else self.layouts
        return _kernel_piece(text, tuple(sorted(layouts.get(layout, {}).items())), f"kernel {self.name}")


@cache
def _kernel_piece(text: str, letters: tuple[tuple[str, str], ...], owner: str) -> Piece:
    for name, value in letters:
        text = text.replace("{" + name + "}", value)
    pieces = parse(text, owner)
    if "attend" not in pieces:
        raise DeclarationError("no piece `attend(q, key, value)`", field=owner, nearest=nearest("attend", pieces))
    return pieces["attend"]


# ---- parsing


@cache
def parse(text: str, owner: str = "") -> dict[str, Piece]:
    """Pieces of a program text, by name. owner: whose text it is.

    Raises:
        DeclarationError: a line that cannot be read, quoted.

    """
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    rows = [(len(line) - len(line.lstrip()), line.strip()) for line in lines if line.strip()]
    pieces: dict[str, Piece] = {}
    at = 0
    while at < len(rows):
        heading = re.fullmatch(r"(\w+)\(([\w, ]*)\):", rows[at][1])
        if heading is None:
            raise DeclarationError(f"expected `name(arguments):`, read {rows[at][1]!r}", field=owner or None)
        piece = Piece(heading.group(1), _names(heading.group(2)), (), owner)
        if piece.name in pieces:
            raise DeclarationError(f"piece {piece.name} stands there twice", field=owner or None)
        body, at = _block(rows, at + 1, rows[at][0], piece)
        pieces[piece.name] = piece._replace(body=body)
    return pieces


def _block(rows: Sequence[tuple[int, str]], at: int, outer: int, piece: Piece) -> tuple[Block, int]:
    statements: list[Statement] = []
    while at < len(rows) and rows[at][0] > outer:
        indent, line = rows[at]
        try:
            if line.startswith("if "):
                then, at = _block(rows, at + 1, indent, piece)
                otherwise: Block = ()
                if at < len(rows) and rows[at] == (indent, "else"):
                    otherwise, at = _block(rows, at + 1, indent, piece)
                statements.append(_condition(line, then, otherwise))
            else:
                statements.append(_statement(line))
                at += 1
        except DeclarationError as error:
            raise error.at(piece.where(line)) from None
    return tuple(statements), at


def _condition(line: str, then: Block, otherwise: Block) -> If:
    match = re.fullmatch(r"if (not )?(\w+)(?: == (\S+))?", line)
    if match is None:
        raise DeclarationError(f"expected `if fact`, `if not fact` or `if setting == value`, read {line!r}")
    return If(match.group(2), match.group(3), bool(match.group(1)), then, otherwise, line)


def _statement(line: str) -> Statement:
    word, _, rest = line.partition(" ")
    if word == "drop":
        return Drop(_names(rest), line)
    if word == "return":
        return Return(_names(rest), line)
    if word == "exchange":
        tag, _, moved = rest.partition(" ")
        return Exchange(tag, _names(moved), line)
    return _op(line)


def _op(line: str) -> Op:
    left, equals, right = line.partition(" = ")
    match = re.fullmatch(r"(\w+)((?: \"[^\"]*\")*)(?: (.*))?", right)
    if not equals or match is None:
        raise DeclarationError(f'expected `results = op "words" arguments`, read {line!r}')
    words = tuple(re.findall(r'"([^"]*)"', match.group(2)))
    return Op(_results(left), match.group(1), words, _arguments(match.group(3) or ""), line)


def called(text: str) -> tuple[str, tuple[str, ...]]:
    """An op with its words as tables of moves write it: `gather "tp"` is gather with the word tp."""
    name, *_ = text.partition(" ")
    return name, tuple(re.findall(r'"([^"]*)"', text))


def _results(text: str) -> tuple[BoundName, ...]:
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\w+)(?:\[([^\[\]]+)\])?", part.strip())
        if match is None:
            raise DeclarationError(f"expected `name` or `name[dims]`, read {part.strip()!r}")
        dims = tuple((match.group(2) or "").split())
        found.append(BoundName(match.group(1), dims[-1] if dims else None, dims if len(dims) > 1 else ()))
    return tuple(found)


def _arguments(text: str) -> tuple[str | Parameter, ...]:
    return tuple(_argument(part.strip()) for part in text.split(",") if part.strip())


def _argument(text: str) -> str | Parameter:
    match = re.fullmatch(r"(\w+)(?:\[([^\]]+)\](?::(\w+))?)?", text)
    if match is None:
        raise DeclarationError(f"expected a name, `W[dims]` or `W[dims]:dtype`, read {text!r}")
    name, dims, dtype = match.groups()
    return name if dims is None else Parameter(name, tuple(dims.split()), dtype)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _points(blocks: Iterable[Block]) -> list[str]:
    found: list[str] = []
    for block in blocks:
        for statement in block:
            if isinstance(statement, Exchange):
                found.append(statement.tag)
            elif isinstance(statement, If):
                found += _points([statement.then, statement.otherwise])
    return found
