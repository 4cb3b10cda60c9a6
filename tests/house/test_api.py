"""The Python interface: typed answers, how they print, symbolic formulas, and docstrings whose examples run."""

from __future__ import annotations

import doctest
import html
import json
import re
from importlib import import_module

import pytest
import sympy

import mla_cost
from mla_cost.language.dims import SYMBOLS
from mla_cost.results import Memory, Plan, Result, Verdict

FORMS = ("explicit", "absorbed", "laga")
QUANTITIES = ("saved", "peak", "payload", "wire", "flops")


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, positive=True, integer=True)


@pytest.fixture(scope="module")
def study():
    return mla_cost.plan(
        model="deepseek-v3", device="910b-64gb", seq_len=16384, sp=8, scope="attention", kernel="eager"
    )


def test_an_answer_is_made_of_typed_records(study):
    assert isinstance(study, Plan)
    assert [row.form for row in study.results] == list(FORMS)
    for row in study.results:
        assert isinstance(row, Result)
        assert isinstance(row.memory, Memory)
        assert isinstance(row.verdict, Verdict)
        assert type(row.memory.saved_bytes) is int
        assert type(row.flops.forward.model) is int


def test_the_same_fields_as_the_json(study):
    reported = json.loads(study.to_json())
    assert reported == json.loads(json.dumps(study.to_dict()))
    assert reported["schema"] == "mla-cost/plan/1"
    for row, record in zip(reported["results"], study.results, strict=True):
        assert list(row) == list(record._fields)
        assert list(row["memory"]) == list(record.memory._fields)
        assert row["memory"]["saved_bytes"] == record.memory.saved_bytes
        assert row["verdict"]["basis"][0]["bytes"] == record.verdict.basis[0].bytes
        assert len(row["memory"]["tensors"]) == len(record.memory.tensors)


def test_records_do_not_change(study):
    with pytest.raises(AttributeError):
        study["laga"].memory.saved_bytes = 1


def test_a_form_by_its_name(study):
    assert study["absorbed"].form == "absorbed"
    with pytest.raises(KeyError):
        study["nope"]


def test_it_prints_as_the_table(study):
    text = repr(study)
    assert text.splitlines()[0].startswith("DeepSeek-V3: one attention block, 16,384 tokens, sp 8")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    for form in FORMS:
        assert re.search(rf"^{form} .* one block fits", text, re.MULTILINE)


def test_it_prints_in_a_notebook(study):
    page = study._repr_html_()
    assert page.startswith("<pre")
    assert "<script" not in page
    words = html.unescape(re.sub(r"<[^>]*>", "", page))
    for form in FORMS:
        assert re.search(rf"^{form} .* one block fits", words, re.MULTILINE)


def test_a_hostile_title_stays_text(tmp_path):
    (tmp_path / "m.yaml").write_text(
        "title: '<script>alert(1)</script>[red]x'\n"
        "dims: {hidden: 64, heads: 8, q_lora_rank: 8, kv_lora_rank: 8, qk_nope_head_dim: 8, qk_rope_head_dim: 8,"
        " v_head_dim: 8}\n"
    )
    answer = mla_cost.plan(model=tmp_path / "m.yaml", device=None, seq_len=64, scope="attention")
    assert "<script>" not in answer._repr_html_()
    assert "[red]x" in repr(answer)


def test_names_and_sequences_of_names():
    one = mla_cost.plan(device="a100-80gb", form="laga", scope="attention")
    many = mla_cost.plan(device=["a100-80gb"], form=("laga",), scope="attention")
    assert one.results == many.results
    assert [row.device for row in mla_cost.plan(device=None, form="laga", scope="attention").results] == [None]


def test_dims_over_a_model():
    answer = mla_cost.plan(dims={"heads": 64}, device=None, form="explicit", scope="attention")
    assert answer.inputs["dims"]["heads"] == 64
    assert (
        mla_cost.plan(device=None, scope="attention").inputs["dims"]["heads"] == 128
    )  # the model itself stays as it is


def test_an_error_is_a_value_error_with_one_line():
    with pytest.raises(ValueError, match="unknown model 'nope'") as caught:
        mla_cost.plan(model="nope", scope="attention")
    assert isinstance(caught.value, mla_cost.InputError)
    assert "\n" not in str(caught.value)


def test_equal_questions_get_equal_answers(study):
    again = mla_cost.plan(model="DeepSeek-V3", device="910B3", seq_len=16384, sp=8, scope="attention", kernel="eager")
    assert again.to_json() == study.to_json()


# ---- formulas


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_formula_of_every_quantity(form, quantity):
    formula = mla_cost.formula(form, quantity)
    assert isinstance(formula, sympy.Expr)
    assert {str(it) for it in formula.free_symbols} <= SYMBOLS.keys()


def test_the_payload_of_laga_by_hand():
    """Both ways q and o of the rank's heads; of the latent, the rank's part in forward and the whole in backward."""
    S, s, b, heads = map(symbol, ("S", "s", "b", "l"))
    d_c, k, r, v = map(symbol, ("d_c", "k", "r", "v"))
    by_hand = 2 * 2 * S * b * heads * (k + r + v) + 2 * b * (s + S) * (d_c + r)
    assert sympy.expand(mla_cost.formula("laga", "payload") - by_hand) == 0


def test_the_wire_of_explicit_by_hand():
    P, s, b, heads = map(symbol, ("P", "s", "b", "l"))
    k, r, v = map(symbol, ("k", "r", "v"))
    by_hand = 2 * 2 * (P - 1) * s * b * heads * (2 * (k + r) + 2 * v)
    assert sympy.expand(mla_cost.formula("explicit", "wire") - by_hand) == 0


def test_the_extra_of_the_absorbed_form_is_the_copy_of_the_probabilities():
    S, b, heads = map(symbol, ("S", "b", "l"))
    eager, bmm = (mla_cost.formula("absorbed", "saved", kernel=kernel) for kernel in ("eager", "eager-bmm"))
    assert sympy.expand(eager - bmm) == 2 * S**2 * b * heads


def test_variants_of_a_formula():
    assert mla_cost.formula("laga", "wire", one=["sp"]) == 0
    assert symbol("d_q") in mla_cost.formula("laga").free_symbols
    assert symbol("d_q") not in mla_cost.formula("laga", without=["query-latent"]).free_symbols
    assert symbol("r") not in mla_cost.formula("laga", without=["rope"]).free_symbols
    half, whole = mla_cost.formula("laga"), mla_cost.formula("laga", dtype="fp32")
    scores = [it.coeff(symbol("S") ** 2) for it in map(sympy.expand, (half, whole))]
    assert scores[1] == 2 * scores[0]


# ---- docstrings


@pytest.mark.parametrize(("module", "least"), [("mla_cost.api", 2)])
def test_examples_run(module, least):
    """`pytest` runs them as well (--doctest-modules); here, that there are some."""
    found = [test for test in doctest.DocTestFinder().find(import_module(module)) if test.examples]
    assert len(found) >= least
    assert doctest.testmod(import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_pytest_collects_doctests(pytestconfig):
    assert pytestconfig.getoption("doctestmodules")


@pytest.mark.parametrize("name", ["plan", "formula"])
def test_public_functions_tell_how_to_use_them(name):
    text = getattr(mla_cost, name).__doc__
    assert ">>> " in text
    assert "InputError" in text
