"""A fault in a declaration is reported as a user's is: whose, the piece, the line, the nearest word; no traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import mla_cost
from mla_cost import InputError
from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language.program import Requirement
from mla_cost.language.schedule import Schedule
from mla_cost.pricing import compile as programs

TABLES: dict[str, dict[str, Any]] = {"form": FORMS, "kernel": KERNELS, "layer": LAYERS}


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """What was compiled of the right declarations is forgotten, and so is what was compiled of wrong ones."""
    for known in (programs.timeline, programs.reduced, programs.saved):
        known.cache_clear()
    yield
    for known in (programs.timeline, programs.reduced, programs.saved):
        known.cache_clear()


def broken(patch: pytest.MonkeyPatch, kind: str, name: str, old: str, new: str) -> None:
    """A declaration one of whose lines says something else."""
    declared = TABLES[kind][name]
    assert declared.text.count(old) >= 1, old
    patch.setitem(TABLES[kind], name, declared._replace(text=declared.text.replace(old, new)))


def message(**settings: Any) -> str:
    """What a plan says."""
    with pytest.raises(InputError) as caught:
        mla_cost.plan("deepseek-v3", None, **{"form": "explicit", "seq_len": 4096, "sp": 4, **settings})
    return str(caught.value)


# (line as it is, line as it is written, what the message says after the place)
LINES = {
    "a misspelt op": (
        "kv[S b n k+v] = linear latent, w",
        "kv = linaer latent, w",
        "unknown op linaer; did you mean linear",
    ),
    "a misspelt piece": (
        "key, value = keys_values latent, k_rope, w",
        "key, value = key_values latent, k_rope, w",
        "unknown op key_values; did you mean keys_values",
    ),
    "an op without its word": (
        "q_rotated = rope q_rope",
        'q_rotated = rope "in-palce" q_rope',
        'did you mean rope "in-place"',
    ),
    "a missing argument": (
        "kv[S b n k+v] = linear latent, w",
        "kv = linear latent",
        "linear takes tensor, weight; 1 given",
    ),
    "an argument too many": (
        "q_rotated = rope q_rope",
        "q_rotated = rope q_rope, q_nope",
        "rope takes tensor; 2 given",
    ),
    "a missing argument of a piece": (
        "key, value = keys_values latent, k_rope, w",
        "key, value = keys_values latent, w",
        "keys_values takes latent, k_rope, w; 2 given",
    ),
    "attention without a value": (
        "o = attend q, key, value",
        "o = attend q, key",
        "attend takes q, key, value; 2 given",
    ),
    "an unknown tensor": (
        "kv[S b n k+v] = linear latent, w",
        "kv = linear latnet, w",
        "unknown tensor latnet; did you mean latent?",
    ),
    "a name that was dropped": ("drop q_normed", "drop q_normed, q_latent", "unknown tensor q_latent"),
    "an unknown tensor to return": ("return key, value", "return kye, value", "unknown tensor kye; did you mean key?"),
    "an unknown tensor to move": (
        "exchange value value",
        "exchange value vlaue",
        "unknown tensor vlaue; did you mean value?",
    ),
    "a dim that is no symbol": ("W_kv_down[d_c+r h]", "W_kv_down[d_cc+r h]", "unknown dim d_cc; did you mean d_c"),
    "a condition on no dim": ("if d_q", "if d_qq", "unknown dim d_qq; did you mean d_q"),
    "a condition on no setting": (
        "if v_layout ==",
        "if v_layuot ==",
        "unknown setting v_layuot; did you mean v_layout?",
    ),
    "one result too many": (
        "latent[S b d_c] = norm c, g_kv[d_c]",
        "latent, more = norm c, g_kv[d_c]",
        "1 results, and 2 named: latent, more",
    ),
    "one result too few": (
        "key, value = keys_values latent, k_rope, w",
        "key = keys_values latent, k_rope, w",
        "2 results, and 1 named: key",
    ),
    "a product of other widths": (
        "y[S b h] = linear o, W_o[h n v]",
        "y = linear o, W_o[h n k]",
        "linear o [s b n v], W_o [h n k]: the last dims differ, so there is nothing to contract",
    ),
    "other dims than the rules find": ("key[S b n k+r] =", "key[S b n k+v] =", "key is [s b n k+r], not [S b n k+v]"),
    "dims in another order": ("kv[S b n k+v] =", "kv[b S n k+v] =", "kv is [s b n k+v], not [b S n k+v]"),
    "a split without dims": (
        "k_nope[k], value[v] = split kv",
        "k_nope, value = split kv",
        "k_nope needs its dim, as in k_nope[d]",
    ),
    "a split into other parts": (
        "k_nope[k], value[v] = split kv",
        "k_nope[k], value[r] = split kv",
        "kv is [s b n k+v], without a dim k+r",
    ),
    "a scale of another width": ("g_kv[d_c]", "g_kv[d_q]", "its weight is [d_q], and what it norms ends in d_c"),
    "joined from other dims": (
        "key[S b n k+r] = concat k_nope, k_rope_heads",
        "key = concat k_nope, k_rope",
        "k nope [s b n k] and k rotated [s b r] differ before their last dims",
    ),
    "one weight of two shapes": (
        "W_kv_up[n k+v d_c]",
        "W_o[n k+v d_c]",
        "W_o was [n k+v d_c] before, and is [h n v] here",
    ),
    "a line that is none": ("kv[S b n k+v] = linear latent, w", "kv linear latent, w", "expected `results = op"),
}


ASKED = "seq_len, sp, heads, sp_inside, sp_outside, qk, v"


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_a_form(name, monkeypatch):
    old, new, words = LINES[name]
    broken(monkeypatch, "form", "explicit", old, new)
    assert re.match(r"form explicit, piece \w+, line `[^`]+`: ", message()), message()
    assert words in message()


def test_the_line_is_quoted_and_the_piece_named(monkeypatch):
    broken(monkeypatch, "form", "explicit", "kv[S b n k+v] = linear latent, w", "kv = linaer latent, w")
    place = "form explicit, piece keys_values, line `kv = linaer latent, w`"
    assert message().startswith(f"{place}: unknown op linaer; did you mean linear")


def test_a_piece_that_returns_nothing(monkeypatch):
    broken(monkeypatch, "form", "explicit", "    return key, value\n", "")
    assert message() == "form explicit: piece keys_values returns nothing"


def test_a_piece_that_is_missing(monkeypatch):
    broken(monkeypatch, "form", "explicit", "forward(x):", "forwrad(x):")
    assert (
        message()
        == "layer dense, piece mixer, line `attended = forward hidden`: unknown op forward; did you mean forwrad?"
    )


def test_a_heading_that_cannot_be_read(monkeypatch):
    broken(monkeypatch, "form", "explicit", "forward(x):", "forward x:")
    assert message() == "form explicit: expected `name(arguments):`, read 'forward x:'"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("softmax scores", "sotfmax scores", "unknown op sotfmax; did you mean softmax?"),
        ('"{scores}" "attention" q, key', '"attention" q, key', "einsum 'attention'"),
        ('permute "{order}" o', "permute o", 'permute needs the present order of four axes, as in permute "bnsd" o'),
        ("if names == rebound", "if name == rebound", "unknown setting name; did you mean names?"),
    ],
)
def test_a_line_of_a_kernel(old, new, words, monkeypatch):
    broken(monkeypatch, "kernel", "eager", old, new)
    said = message(kernel="eager")
    assert said.startswith("kernel eager, piece attend, line `")
    assert words in said


def test_what_a_fused_kernel_keeps_is_read(monkeypatch):
    broken(monkeypatch, "kernel", "flash", "fp32 bns", "fp23 bns")
    said = message(kernel="flash")
    assert "kernel flash, piece attend, line `" in said
    assert 'expected "keep LABEL: DTYPE dims" with dims of s b n d 8, read "keep log-sum-exp: fp23 bns"' in said


def test_a_kernel_without_its_piece(monkeypatch):
    broken(monkeypatch, "kernel", "flash", "attend(q", "atend(q")
    assert message(kernel="flash") == "kernel flash: no piece `attend(q, key, value)`; did you mean atend?"


def test_a_line_of_a_layer(monkeypatch):
    broken(monkeypatch, "layer", "dense", "activated = silu gate", "activated = silu gaet")
    said = message(sp=1)
    assert said == "layer dense, piece mlp, line `activated = silu gaet`: unknown tensor gaet; did you mean gate?"


def test_a_move_that_no_op_makes(monkeypatch):
    moves: Any = {**SCHEMES["ulysses"].moves, "query": "sequence_to_head"}
    monkeypatch.setitem(SCHEMES, "ulysses", SCHEMES["ulysses"]._replace(moves=moves))
    place = "form explicit, piece forward, line `exchange query q`"
    assert message().startswith(f"{place}: unknown op sequence_to_head; did you mean sequence_to_heads")


def test_a_move_that_does_not_fit_names_the_operand(monkeypatch):
    moves: Any = {"query": "own_heads"}
    monkeypatch.setitem(SCHEMES, "ulysses", SCHEMES["ulysses"]._replace(moves=moves | {"latent": "sequence_to_heads"}))
    said = message()
    assert said.startswith("form explicit, piece forward, line `exchange latent latent, k_rope`: ")


def test_an_attending_op_that_is_none(monkeypatch):
    monkeypatch.setitem(SCHEMES, "ring", SCHEMES["ring"]._replace(attends="rign_attention"))
    said = message(scheme="ring", profile="megatron", scope="model")
    assert said.startswith("scheme ring, piece attend, line `o = rign_attention q, key, value`: unknown op")
    assert "did you mean ring_attention" in said


def test_the_command_line_prints_it_and_ends_with_2(monkeypatch, capsys):
    broken(monkeypatch, "form", "explicit", "if d_q", "if d_qq")
    with pytest.raises(SystemExit) as left:
        main(["plan", "--model", "deepseek-v3", "--form", "explicit"])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith("mla-cost: form explicit, piece query, line `if d_qq`: unknown dim d_qq")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("what", "message", "said"),
    [
        (
            "seq_length",
            "",
            f"a requirement asks about {ASKED}, not 'seq_length'; did you mean seq_len?",
        ),
        (
            "heads",
            "{head} heads over sp {sp}",
            f"a requirement asks about {ASKED}, not 'head'",
        ),
    ],
)
def test_a_requirement_is_checked_where_it_is_declared(what: str, message: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        Requirement("divides", what, "sp", message)


def test_a_schedule_is_checked_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="schedule made-up: problems gives a Problem each, not str"):
        Schedule("made-up", "", "", lambda *_: (), lambda _: iter(["pp"]))  # type: ignore[list-item]
