"""The program text: what parses, what is refused and in which words, and that every declaration holds together."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import rules
from mla_cost.language.dims import SYMBOLS, Predicates
from mla_cost.language.ops import spelled
from mla_cost.language.program import (
    Block,
    BoundName,
    DeclarationError,
    Drop,
    Exchange,
    Form,
    If,
    Op,
    Parameter,
    Piece,
    ProgramError,
    Return,
    Statement,
    called,
    parse,
)
from mla_cost.language.rules import RULES
from mla_cost.pricing.key import Key, form_of

LAYOUTS = ("sbnd", "bsht", "bnsd")
SETTINGS = Key("explicit", "ulysses", "eager", Predicates(), "bf16").settings()


def one_line(line: str) -> Statement:
    """The only statement of a piece."""
    return bare(parse(f"piece(x):\n    {line}\n")["piece"].body)[0]


def bare(block: Block) -> Block:
    """The statements without the lines that they were read from."""
    return tuple(
        statement._replace(then=bare(statement.then), otherwise=bare(statement.otherwise), line="")
        if isinstance(statement, If)
        else statement._replace(line="")
        for statement in block
    )


# ---- what parses


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "q = linear x, W_q[n k+r h]",
            Op((BoundName("q", None),), "linear", (), ("x", Parameter("W_q", ("n", "k+r", "h")))),
        ),
        (
            "kv[S b n k+v] = linear latent, w",
            Op((BoundName("kv", "k+v", ("S", "b", "n", "k+v")),), "linear", (), ("latent", "w")),
        ),
        (
            "k_nope[k], value[v] = split kv",
            Op((BoundName("k_nope", "k"), BoundName("value", "v")), "split", (), ("kv",)),
        ),
        (
            's = einsum "sbnd,tbd->bnst" q, key',
            Op((BoundName("s", None),), "einsum", ("sbnd,tbd->bnst",), ("q", "key")),
        ),
        ('o = fused "keep a: fp32 bns" "b" q', Op((BoundName("o", None),), "fused", ("keep a: fp32 bns", "b"), ("q",))),
        ("exchange latent latent, k_rope", Exchange("latent", ("latent", "k_rope"))),
        ("drop scores, q", Drop(("scores", "q"))),
        ("return key, value", Return(("key", "value"))),
        ("y = scale x  # its own op", Op((BoundName("y", None),), "scale", (), ("x",))),
    ],
)
def test_a_line(line, expected):
    assert one_line(line) == expected


def test_conditions_nest_and_else_belongs_to_its_own_if():
    text = """
piece(x):
    if r
        if not d_q
            return x
        else
            drop x
    else
        if v_layout == view
            return x
"""
    (outer,) = bare(parse(text)["piece"].body)
    assert isinstance(outer, If)
    assert (outer.name, outer.value, outer.negated) == ("r", None, False)
    (inner,) = outer.then
    assert inner == If("d_q", None, True, (Return(("x",)),), (Drop(("x",)),))
    assert outer.otherwise == (If("v_layout", "view", False, (Return(("x",)),), ()),)


def test_pieces_have_names_and_parameters():
    pieces = parse("first(q, key):\n    return q\n\n# a remark\nsecond():\n    drop q\n")
    assert {name: piece._replace(body=bare(piece.body)) for name, piece in pieces.items()} == {
        "first": Piece("first", ("q", "key"), (Return(("q",)),)),
        "second": Piece("second", (), (Drop(("q",)),)),
    }


# ---- what is refused, with the text that was read


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("linear x, W", "expected `results = op \"words\" arguments`, read 'linear x, W'"),
        ('s = einsum "sbnd,tbd->bnst q, key', "expected a name, `W[dims]` or `W[dims]:dtype`, read '\"sbnd'"),
        ("k-nope = split kv", "expected `name` or `name[dims]`, read 'k-nope'"),
        ("k_nope[k, value = split kv", "expected `name` or `name[dims]`, read 'k_nope[k'"),
        ("y = linear x, W[d_q h", "expected a name, `W[dims]` or `W[dims]:dtype`, read 'W[d_q h'"),
        ("y = linear x z, W[d_q h]", "expected a name, `W[dims]` or `W[dims]:dtype`, read 'x z'"),
        ("else", "read 'else'"),
        ("if r is 0", "expected `if fact`, `if not fact` or `if setting == value`, read 'if r is 0'"),
        ("if r == ", "read 'if r =='"),
        ("= linear x", "read '= linear x'"),
    ],
)
def test_a_line_that_does_not_parse_is_quoted(line, words):
    with pytest.raises(DeclarationError, match=re.escape(words)):
        one_line(line)


@pytest.mark.parametrize("heading", ["forward(x)", "forward x:", "for ward(x):", "return x"])
def test_a_heading_that_does_not_parse_is_quoted(heading):
    with pytest.raises(DeclarationError, match=re.escape(f"expected `name(arguments):`, read {heading!r}")):
        parse(f"{heading}\n    return x\n")


def test_a_kernel_without_a_program_for_a_shared_key_says_so():
    with pytest.raises(ProgramError, match="kernel flash has no program for a shared key"):
        KERNELS["flash"].piece(shared=True, layout="sbnd")


# ---- every declaration


def statements(block: Block) -> Iterator[Statement]:
    """Every statement, those under conditions too."""
    for statement in block:
        yield statement
        if isinstance(statement, If):
            yield from statements(statement.then)
            yield from statements(statement.otherwise)


def kernel_pieces() -> Iterator[tuple[str, Piece]]:
    for kernel in KERNELS.values():
        for shared in (False, True):
            if (kernel.shared_text if shared else kernel.text) is not None:
                keys = "one key" if shared else "all keys"
                yield from ((f"{kernel.name} {layout} {keys}", kernel.piece(shared, layout)) for layout in LAYOUTS)


def unknown(pieces: Iterable[Piece], ops: set[str]) -> set[str]:
    """Ops that no rule runs, names read before they are bound, and conditions on what is neither dim nor setting."""
    found: set[str] = set()
    for piece in pieces:
        bound = set(piece.parameters)
        for statement in statements(piece.body):
            found |= _unknown(statement, bound, ops)
    return found


def _unknown(statement: Statement, bound: set[str], ops: set[str]) -> set[str]:
    if isinstance(statement, If):
        known = SETTINGS if statement.value is not None else SYMBOLS
        return set() if statement.name in known else {f"if {statement.name}"}
    if isinstance(statement, Op):
        read = {argument for argument in statement.arguments if isinstance(argument, str)}
        names = {statement.name, *(spelled(statement.name, word) for word in statement.words[:1])}
        missing = (set() if names & ops else names) | (read - bound)
        bound |= {result.name for result in statement.results}
        return missing
    return set(statement.names) - bound


@pytest.mark.parametrize("name", FORMS)
def test_each_form(name):
    form = form_of(name)
    assert isinstance(form, Form)
    assert "forward" in form.pieces
    ops = set(RULES) | set(form.pieces) | {"attend", "parameter", "same"}
    assert not unknown(form.pieces.values(), ops)
    assert form.scheme in SCHEMES
    for piece in form.pieces.values():
        assert isinstance(piece.body[-1], (Return, If)), f"{piece.name} ends without a return"


@pytest.mark.parametrize("name", dict(kernel_pieces()))
def test_each_kernel(name):
    piece = dict(kernel_pieces())[name]
    assert not unknown([piece], set(RULES)), name
    assert piece.parameters == ("q", "key", "value")
    assert "{" not in repr(piece.body), f"{name}: letters that no layout fills"


@pytest.mark.parametrize("name", SCHEMES)
def test_each_scheme_moves_points_that_some_form_has(name):
    scheme = SCHEMES[name]
    points = scheme.points.union(*(form_of(form).points for form in FORMS))
    assert set(scheme.moves) <= points
    assert {called(each.strip())[0] for move in scheme.moves.values() for each in move.split(",")} <= set(RULES)
    assert not scheme.attends or called(scheme.attends)[0] in RULES
    assert set(scheme.profiles) <= set(PROFILES)
    assert scheme.source


def values(annotation: object) -> set[object]:
    """The values of a literal type, or of one that may be None as well."""
    return {value for part in get_args(annotation) for value in (values(part) or {part})}


def test_each_condition_asks_for_a_value_that_its_setting_has():
    texts = [form_of(name).pieces for name in FORMS] + [layer.pieces for layer in LAYERS.values()]
    texts += [profile.pieces(layer) for profile in PROFILES.values() for layer in profile.texts]
    blocks = [piece.body for pieces in texts for piece in pieces.values()]
    blocks += [piece.body for _, piece in kernel_pieces()]
    asked = {(it.name, it.value) for block in blocks for it in statements(block) if isinstance(it, If) and it.value}
    allowed = {name: values(field.annotation) for name, field in PlanSettings.model_fields.items()}
    wrong = {(name, value) for name, value in asked if allowed.get(name) and value not in allowed[name]}
    assert not wrong
    assert {name for name, _ in asked} <= SETTINGS.keys()


@pytest.mark.parametrize("name", FORMS)
def test_each_parameter_has_dims_that_are_symbols(name):
    for piece in form_of(name).pieces.values():
        for statement in statements(piece.body):
            arguments = statement.arguments if isinstance(statement, Op) else ()
            for parameter in (argument for argument in arguments if isinstance(argument, Parameter)):
                assert {part for dim in parameter.dims for part in dim.split("+")} <= set(SYMBOLS), parameter


def test_the_table_of_ops_is_complete_whoever_asks_first_and_a_block_does_not_load_it():
    """In processes of their own: in this one another test may have filled the table."""
    files = sorted(path.stem for path in Path(rules.__file__).parent.rglob("[!_]*.py") if "@op(" in path.read_text())
    names = "{it.function.__module__.rpartition('.')[2] for it in RULES.values()}"
    asked = f"from mla_cost.language.rules import RULES; found = {names}; assert found == set({files}), found"
    loaded = "import sys; from mla_cost.language.rules import rule; [rule('linear'), rule('einsum', ('sbd,tbd->bst',))]"
    block = f"{loaded}; assert 'mla_cost.language.rules.vocabulary' not in sys.modules"
    for script in (asked, block):
        subprocess.run([sys.executable, "-c", script], check=True)
