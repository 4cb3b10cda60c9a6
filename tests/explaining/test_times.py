"""The terms of a time add up to what a plan says, and so does the formula with a device's figures put in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sympy

import mla_cost
from mla_cost import api
from mla_cost.cli import main
from mla_cost.inputs.catalog import device
from mla_cost.timing import rules
from mla_cost.timing.ceilings import Ceilings, ceilings

ASKED: dict[str, Any] = {"sp": 1, "seq_len": 4096, "kernel": "flash"}


def test_terms_and_formula_add_up_to_a_plan() -> None:
    """On one rank, where nothing is sent and graphs leave the host out, kernels run one after another."""
    found = api.explain_plan("laga", "time", {**ASKED, "device": ["h100-80gb"], "model": "deepseek-v2-lite"}, {})
    told = json.loads(found.record().to_json())
    (row,) = mla_cost.plan(
        "deepseek-v2-lite", "h100-80gb", form="laga", scope="attention", graphs="on", **ASKED
    ).results
    assert row.time is not None
    assert told["total_seconds"] == pytest.approx(row.time.total.seconds)
    assert {term["limit"] for term in told["terms"]} == {"compute", "memory", "launch"}
    on, formula = ceilings(device("h100-80gb")), found.expression()
    values = {symbol.name: symbol.value for symbol in found.record().symbols if symbol.value is not None}
    known = {name: getattr(on, name) for name in Ceilings._fields} | values
    put_in = {symbol: known[symbol.name] for symbol in formula.free_symbols if symbol.name in known}
    assert put_in.keys() == formula.free_symbols

    def use(*output: Any) -> float:
        batch, m, n = map(int, output)
        return float(rules.tile_use(on, rules.ProductShape(batch, m, n, 1)))

    numbers = formula.xreplace(put_in).replace(sympy.Function("use"), use)
    assert float(numbers) == pytest.approx(row.time.total.seconds)


def test_a_variant_has_a_formula_without_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    formula = mla_cost.formula("absorbed", "time", kernel="eager")
    sent = {call.func.__name__ for call in formula.atoms(sympy.core.function.AppliedUndef)}
    assert sent == {"use", "all_to_all", "all_gather", "reduce_scatter"}
    for asked, code in (("time", 0), ("tme", 2)):
        with pytest.raises(SystemExit) as ended:
            main(["explain", "laga", "--quantity", asked])
        assert ended.value.code == code
    out, err = capsys.readouterr()
    assert "gemm: flops a second of products" in out
    assert "saved, peak, payload, wire, flops, time" in " ".join(err.split())
