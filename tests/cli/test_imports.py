"""What a command imports and reads: start-up time and memory depend on it. Each case is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "sympy", "numpy", "matplotlib", "pandas", "hypothesis", "jsonschema", "mpmath"}
PROBE = """
import contextlib, io, json, sys
opened = []
sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
{code}
print(json.dumps({{"modules": sorted(sys.modules), "opened": opened}}))
"""
COMMAND = """
from mla_cost.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({arguments!r})
"""


def probe(code: str, checkout: Path) -> dict[str, list[str]]:
    """The modules imported and the paths opened by a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=checkout,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1])


def imported(found: dict[str, list[str]]) -> set[str]:
    return {name.partition(".")[0] for name in found["modules"]}


def read(found: dict[str, list[str]], *suffixes: str) -> list[str]:
    """The files of configs/ that were opened, by their last two parts."""
    paths = [Path(path) for path in found["opened"] if path.endswith(suffixes) and "configs" in path]
    return ["/".join(path.parts[-2:]) for path in paths]


PLANS = [
    ["plan"],
    ["plan", "--format", "json"],
    ["plan", "--layers", "61", "--kernel", "flash"],
    ["plan", "--sp", "3"],
    ["plan", "--model", "kimi-k2", "--device", "h100-80gb", "--set", "dims.heads=32"],
]


@pytest.mark.parametrize("arguments", PLANS, ids=" ".join)
def test_plan_imports_nothing_heavy(checkout, arguments):
    found = probe(COMMAND.format(arguments=arguments), checkout)
    assert imported(found) & HEAVY == set()
    assert "mla_cost.pricing.rows" in found["modules"]  # it did run


def test_plan_reads_the_files_it_needs_and_no_other(checkout):
    found = probe(COMMAND.format(arguments=["plan"]), checkout)
    files = ["devices/910b-64gb.yaml", "devices/a100-80gb.yaml", "models/deepseek-v3.yaml"]
    assert sorted(read(found, ".yaml")) == files


def test_an_alias_needs_the_index_and_nothing_more(checkout):
    found = probe(COMMAND.format(arguments=["plan", "--device", "910B3"]), checkout)
    files = ["configs/aliases.yaml", "devices/910b-64gb.yaml", "models/deepseek-v3.yaml"]
    assert sorted(read(found, ".yaml")) == files


def test_json_needs_no_table(checkout):
    found = probe(COMMAND.format(arguments=["plan", "--format", "json"]), checkout)
    assert "mla_cost.views.table" not in found["modules"]
    assert "rich" not in imported(found)


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], []], ids=" ".join)
def test_help_imports_nothing_heavy(checkout, arguments):
    found = probe(COMMAND.format(arguments=arguments), checkout)
    assert imported(found) & (HEAVY | {"yaml", "rich"}) == set()  # pydantic is typer's own import since 0.29
    assert read(found, ".yaml") == []
    assert {"mla_cost.pricing.rows", "mla_cost.inputs.config"} & set(found["modules"]) == set()


def test_the_package_alone_imports_nothing(checkout):
    found = probe("import mla_cost", checkout)
    assert imported(found) & (HEAVY | {"pydantic", "yaml", "rich", "typer"}) == set()


def test_only_the_command_that_is_called_is_imported(checkout):
    found = probe(COMMAND.format(arguments=["plan"]), checkout)
    commands = {name for name in found["modules"] if name.startswith("mla_cost.cli.")}
    shared = {f"mla_cost.cli.{name}" for name in ("program", "flags", "options", "grouped", "progress")}
    assert commands - shared == {"mla_cost.cli.plan"}


def test_a_call_from_python_leaves_garbage_collection_alone(checkout):
    code = COMMAND.format(arguments=["plan"]) + "\nimport gc\nassert gc.isenabled()"
    assert "mla_cost.pricing.rows" in probe(code, checkout)["modules"]


def test_a_symbolic_formula_needs_sympy_and_a_table_of_it_does_not(checkout):
    table = probe(COMMAND.format(arguments=["explain", "laga"]), checkout)
    latex = probe(COMMAND.format(arguments=["explain", "laga", "--latex"]), checkout)
    assert imported(table) & HEAVY == set()
    assert "sympy" in imported(latex)  # the check above can fail


def test_a_warm_call_reads_nothing(checkout):
    code = """
import mla_cost
question = dict(model="deepseek-v3", device=["910b-64gb", "a100-80gb"], seq_len=16384, sp=8)
mla_cost.plan(**question)
before = len(opened)
first = set(sys.modules)
mla_cost.plan(**question)
mla_cost.plan(**question | {"seq_len": 8192})
del opened[:before]
assert set(sys.modules) == first, set(sys.modules) - first
"""
    assert probe(code, checkout)["opened"] == []


def test_the_audit_hook_sees_what_is_opened(checkout):
    """So that an empty list above means something."""
    found = probe("import mla_cost\nmla_cost.plan()", checkout)
    assert "models/deepseek-v3.yaml" in read(found, ".yaml")
