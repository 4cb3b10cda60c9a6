"""A program run statement by statement on the abstract machine, after every rewrite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.layers import (
    COLUMNS,
    EXPERT_PARALLEL,
    EXPERT_TENSOR_PARALLEL,
    FROM_SEVERAL_RANKS,
    LAYERS,
    TENSOR_PARALLEL,
)
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import nearest
from mla_cost.language import recompute
from mla_cost.language.checks import check_dims, checked_dim, tensor_of
from mla_cost.language.dims import Predicates
from mla_cost.language.machine import Machine, Tensor, Timeline
from mla_cost.language.ops import OPS
from mla_cost.language.program import (
    Block,
    BoundName,
    DeclarationError,
    Drop,
    Exchange,
    If,
    Op,
    Parameter,
    Piece,
    Return,
    Scheme,
    Statement,
    called,
)
from mla_cost.language.rules import Call, Runs, readable, rule
from mla_cost.pricing.key import Key, form_of

ATTENTION: Final = "attend"  # the op that a kernel's piece stands for
ATTENDED: Final = ("q", "key", "value")  # what it takes


class Line(NamedTuple):
    """A statement as it runs, after every rewrite. dims: of each result; note: what put it there, or drops it."""

    depth: int
    text: str
    dims: tuple[tuple[str, ...], ...] = ()
    note: str = ""


def _moves(key: Key) -> dict[str, str]:
    """What crosses ranks at the points of a program."""
    predicates, scheme = key.predicates, SCHEMES[key.scheme]
    found: dict[str, str] = (
        dict(scheme.moves) if predicates.exchanged and inner_groups_exchange(scheme, predicates) else {}
    )
    for holds, moves in (
        (predicates.rows_divided, TENSOR_PARALLEL),
        (predicates.experts_divided, EXPERT_PARALLEL),
        (predicates.experts_split, EXPERT_TENSOR_PARALLEL),
        (predicates.experts_divided or predicates.experts_split, FROM_SEVERAL_RANKS),
    ):
        found.update(moves if holds else {})
    return found


def inner_groups_exchange(scheme: Scheme, predicates: Predicates) -> bool:
    """Whether a scheme's moves run: not among inner groups of one rank each."""
    return scheme.inside != "heads" or predicates.heads_divided


def attends_itself(scheme: Scheme, predicates: Predicates) -> bool:
    """Whether a scheme's own attention runs: not where all ranks are one inner group."""
    return (
        bool(scheme.attends)
        and predicates.exchanged
        and (scheme.inside != "heads" or predicates.nested or not predicates.heads_divided)
    )


def divided_columns(op: Op, predicates: Predicates) -> tuple[Op, ...]:
    """The op, or a product with this rank's rows of the weight and the columns of all ranks joined after it."""
    if op.name != "linear" or op.words:
        return (op,)
    tensor, weight = op.arguments
    part = COLUMNS.get(weight.name) if isinstance(weight, Parameter) else None
    if part is None or not isinstance(weight, Parameter):
        return (op,)
    (result,), own = op.results, weight._replace(dims=(part, *weight.dims[1:]))
    joined = result._replace(dim=predicates.present(weight.dims[0]))
    return (
        op._replace(results=(BoundName(result.name, None),), arguments=(tensor, own)),
        Op((joined,), "join_columns", (), (result.name,), op.line),
    )


class ProgramRun:
    """One execution of a program on the abstract machine."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.layer = LAYERS[key.layer]
        replaced = PROFILES[key.profile].pieces(key.layer)
        own = SCHEMES[key.scheme].pieces if key.predicates.exchanged else {}
        self.pieces: Mapping[str, Piece] = {**form_of(key.form).pieces, **self.layer.pieces, **replaced, **own}
        self.moves = _moves(key)
        self.settings = key.settings()
        self.checkpointed = recompute.pieces(key.remat) if self.layer.recomputed else frozenset()
        self.discarded = recompute.discarded(key.remat) if self.layer.recomputed else frozenset()
        self.machine = Machine(key.predicates, key.dtype)
        self.reentrant = PROFILES[key.profile].reentrant
        self.columns = key.down_projections == "sharded" and not PROFILES[key.profile].texts
        self.parameters: dict[str, Tensor] = {}
        self.lines: list[Line] | None = None  # where a listing is asked for
        self.depth = 0
        self.inside = ""  # the piece that runs
        self.written: dict[str, tuple[str, ...]] = {}  # the dims that texts give them

    def timeline(self, backward: bool) -> Timeline:
        machine = self.machine
        inputs = [machine.input("x", (self.key.predicates.rows, "b", "h"))] if self.layer.takes_input else []
        y = self._call(self.pieces[self.layer.whole], list(inputs))[0]
        if not self.key.input_held:
            inputs.clear()
        edge, dims = y.edge, y.dims
        assert edge is not None
        machine.timeline.forward_events = len(machine.timeline.events)
        machine.mark_saved(edge)
        outputs = [y] if self.key.output_held else []  # by whoever called
        del y
        if backward:
            held: list[Tensor] = []  # by whoever received it
            machine.backward(edge, lambda: self._gradient(dims, held))
        machine.closed = True
        outputs.clear()
        return machine.timeline

    def reached(self) -> frozenset[str]:
        """The names of the pieces that run, that of the kernel among them."""
        found, waiting = {self.layer.whole}, [self.layer.whole]
        while waiting:
            piece = self.pieces.get(waiting.pop())
            new = set(self._called(piece, piece.body)) - found if piece is not None else set()
            found |= new
            waiting += new
        return frozenset(found)

    def _called(self, piece: Piece, block: Block) -> Iterator[str]:
        for statement in block:
            if isinstance(statement, If):
                yield from self._called(piece, self._branch(piece, statement))
            elif isinstance(statement, Op) and (statement.name in self.pieces or statement.name == ATTENTION):
                yield statement.name

    def _gradient(self, dims: tuple[str, ...], held: list[Tensor]) -> Tensor:
        """The gradient that the output is handed, kept in `held` where its receiver goes on holding it."""
        gradient = self.machine.new("gradient of output", dims) if dims else self.machine.uncounted("1")
        if self.key.gradient_held:
            held.append(gradient)
        return gradient

    def _call(self, piece: Piece, arguments: list[Tensor]) -> list[Tensor]:
        if piece.name in self.checkpointed:
            return self.machine.checkpoint(partial(self._body, piece), arguments, reentrant=self.reentrant)
        if piece.name in self.discarded:
            return self.machine.checkpoint(partial(self._body, piece), arguments, discards=True)
        return self._body(piece, arguments)

    def _body(self, piece: Piece, arguments: list[Tensor]) -> list[Tensor]:
        if len(arguments) != len(piece.parameters):
            raise DeclarationError(f"{piece.name} takes {', '.join(piece.parameters)}; {len(arguments)} given")
        names = dict(zip(piece.parameters, arguments, strict=True))
        arguments.clear()
        outer, self.inside = self.inside, readable(piece.name)
        returned = self._block(piece, piece.body, names)
        self.inside = outer
        if returned is None:
            raise DeclarationError(f"piece {piece.name} returns nothing", field=piece.owner)
        return returned

    def _block(self, piece: Piece, block: Block, names: dict[str, Tensor]) -> list[Tensor] | None:
        for statement in block:
            if isinstance(statement, If):
                returned = self._block(piece, self._branch(piece, statement), names)
            else:
                try:
                    returned = self._statement(statement, names)
                except DeclarationError as error:
                    raise error.at(piece.where(statement.line)) from error.__cause__
            if returned is not None:
                return returned
        return None

    def _branch(self, piece: Piece, condition: If) -> Block:
        try:
            return condition.then if self._holds(condition) else condition.otherwise
        except DeclarationError as error:
            raise error.at(piece.where(condition.line)) from None

    def _statement(self, statement: Statement, names: dict[str, Tensor]) -> list[Tensor] | None:
        """Run a statement that is no condition; the tensors of a return."""
        if isinstance(statement, Return):
            return [tensor_of(name, names) for name in statement.names]
        if isinstance(statement, Exchange):
            self._exchange(statement, names)
        elif isinstance(statement, Drop):
            for name in statement.names:
                tensor_of(name, names)
                del names[name]
            self._list(statement.line)
        elif isinstance(statement, Op):
            for step in self._rewritten(statement):
                self._bind(names, step.results, self._listed(step, names))
        return None

    def _list(self, text: str, tensors: Sequence[Tensor] = (), note: str = "") -> None:
        if self.lines is not None:
            self.lines.append(Line(self.depth, text, tuple(tensor.dims for tensor in tensors), note))

    def _listed(self, op: Op, names: dict[str, Tensor], note: str = "") -> list[Tensor]:
        """Run an op; where a listing is asked for, its line stands before those of the piece that it calls."""
        if self.lines is None:
            return self._run(op, names)
        at = len(self.lines)
        self.depth += 1
        made = self._run(op, names)
        self.depth -= 1
        dims = tuple(tensor.dims for tensor in made)
        self.lines.insert(at, Line(self.depth, op.text, dims, note or self._place(op)))
        return made

    def _place(self, op: Op) -> str:
        """What a call says of the piece that it runs."""
        attends = op.name == ATTENTION
        reported = [f"kernel {self.key.kernel}"] if attends else []
        reported += ["run again in backward"] * (op.name in self.checkpointed | self.discarded)
        return ", ".join([*reported, *["its result too"] * (op.name in self.discarded)])

    def _holds(self, condition: If) -> bool:
        if condition.value is None:
            checked_dim(condition.name)
            holds = condition.name not in self.key.predicates.zeros
        else:
            found = self.settings.get(condition.name)
            if found is None:
                meant = nearest(condition.name, self.settings)
                raise DeclarationError(f"unknown setting {condition.name}", nearest=meant)
            holds = found == condition.value
        return holds is not condition.negated

    def _bind(self, names: dict[str, Tensor], results: tuple[BoundName, ...], tensors: list[Tensor]) -> None:
        if len(results) != len(tensors):
            shown = ", ".join(result.name for result in results)
            raise DeclarationError(f"{len(tensors)} results, and {len(results)} named: {shown}")
        for result in results:
            tensor = names[result.name] = tensors.pop(0)
            if result.dim is not None:
                check_dims(self.key.predicates, result, tensor)

    def _rewritten(self, op: Op) -> tuple[Op, ...]:
        """The op, or what stands for it where a weight is divided over tensor-parallel ranks."""
        return divided_columns(op, self.key.predicates) if self.columns else (op,)

    def _run(self, op: Op, names: dict[str, Tensor]) -> list[Tensor]:
        given = [self._argument(argument, names) for argument in op.arguments]
        if op.name in {"parameter", "same"}:
            return given
        if op.name == ATTENTION:
            if len(given) != len(ATTENDED):
                raise DeclarationError(f"{ATTENTION} takes {', '.join(ATTENDED)}; {len(given)} given")
            return self._call(self._attention(shared=len(given[1].axes) == 3), given)
        piece = self.pieces.get(op.name)
        if piece is not None:
            return self._call(piece, given)
        self.machine.op = readable(op.results[0].name)
        self.machine.place = self.inside, readable(op.name)
        return self._by_rule(op, given)

    def _by_rule(self, op: Op, given: list[Tensor]) -> list[Tensor]:
        """What the op's rule makes; what it cannot take apart is reported with the dims of its operands."""
        found = self._rule(op)
        try:
            return found(Call(self.machine, op.results, op.words, self.settings), given)
        except DeclarationError:
            raise
        except (ValueError, IndexError, KeyError, AssertionError) as error:
            shapes = ", ".join(f"{tensor.label} [{' '.join(tensor.dims)}]" for tensor in given)
            raise DeclarationError(f"{op.name} cannot run on {shapes or 'nothing'}: {error}") from error

    def _rule(self, op: Op) -> Runs:
        try:
            return rule(op.name, op.words)
        except DeclarationError as error:
            meant = error.nearest if op.words else nearest(op.name, (*OPS, *self.pieces))
            raise DeclarationError(error.message, nearest=meant) from None

    def _attention(self, shared: bool) -> Piece:
        scheme = SCHEMES[self.key.scheme]
        if attends_itself(scheme, self.key.predicates):
            return scheme.piece
        return KERNELS[self.key.kernel].piece(shared, self.key.attention_layout)

    def _argument(self, argument: str | Parameter, names: dict[str, Tensor]) -> Tensor:
        if isinstance(argument, str):
            return tensor_of(argument, names)
        known = self.parameters.get(argument.name)
        if known is None:
            for dim in argument.dims:
                checked_dim(dim)
            known = self.machine.parameter(argument.name, argument.dims, argument.dtype)
            self.parameters[argument.name] = known
            self.written[argument.name] = argument.dims
        if self.written[argument.name] != argument.dims:
            before = " ".join(self.written[argument.name])
            raise DeclarationError(f"{argument.name} was [{before}] before, and is [{' '.join(argument.dims)}] here")
        return known

    def _exchange(self, point: Exchange, names: dict[str, Tensor]) -> None:
        """Move what the scheme moves here. Several tensors under one move travel as one, joined along the last dim."""
        here = [tensor_of(name, names) for name in point.names]
        move = self.moves.get(point.tag)
        if move is None:
            return
        present = [name for name, it in zip(point.names, here, strict=True) if not it.is_absent(self.key.predicates)]
        here.clear()
        if not present:
            return
        if len(present) == 1:
            self._bind(names, (BoundName(present[0], None),), self._move(point.tag, move, present[0], names))
            return
        dims = [names[name].dims[-1] for name in present]
        joined = "_and_".join(present)
        self._step(names, (BoundName(joined, None),), "concat", tuple(present))
        self._bind(names, (BoundName(joined, None),), self._move(point.tag, move, joined, names))
        parts = tuple(BoundName(name, dim) for name, dim in zip(present, dims, strict=True))
        self._step(names, parts, "split", (joined,))

    def _step(self, names: dict[str, Tensor], results: tuple[BoundName, ...], op: str, given: tuple[str, ...]) -> None:
        self._bind(names, results, self._listed(Op(results, op, (), given), names))

    def _move(self, tag: str, move: str, name: str, names: dict[str, Tensor]) -> list[Tensor]:
        *before, last = (called(each.strip()) for each in move.split(","))
        for op, words in before:
            self._bind(names, (BoundName(name, None),), self._one_move(tag, op, words, name, names))
        return self._one_move(tag, *last, name, names)

    def _one_move(self, tag: str, op: str, words: tuple[str, ...], name: str, names: dict[str, Tensor]) -> list[Tensor]:
        return self._listed(Op((BoundName(name, None),), op, words, (name,)), names, f"exchange {tag}")
