"""Imports point one way, and names of forms, schemes and kernels stay where they are declared.

Read from the source text, so a lazy import counts too. A part is the first name below `mla_cost`: a package
(`language`) or a module (`api`). Parts that do not exist yet are not missed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "mla_cost"
HEAVY = {"pydantic", "typer", "rich", "sympy", "numpy", "torch", "yaml"}
WITNESS = "checks.reference"  # a room of its own: it shares no code with what it checks

# All that a part may import of the package, from the ground floor up. Its own modules are always allowed.
ONLY: dict[str, set[str]] = {
    "errors": set(),
    "language": {"errors"},
    "declared": {"language", "errors"},
    "results": {"errors"},
    "mesh": {"declared", "language", "errors"},
    "inputs": {"declared", "language", "errors"},
    "weights": {"inputs", "mesh", "declared", "language", "errors"},
    "timing": {"inputs", "declared", "language", "errors"},
    "pricing": {"timing", "weights", "mesh", "inputs", "results", "declared", "language", "errors"},
    "batch": {"pricing", "timing", "weights", "mesh", "inputs", "results", "declared", "language", "errors"},
    "explaining": {"pricing", "timing", "weights", "mesh", "inputs", "results", "declared", "language", "errors"},
    "views": {"results", "errors"},
    "api": {"explaining", "pricing", "inputs", "results", "views", "declared", "errors", PACKAGE},
    "studies": {
        *(
            "api",
            "batch",
            "explaining",
            "pricing",
            "timing",
            "weights",
            "mesh",
            "inputs",
            "results",
            "views",
            "declared",
        ),
        *("language", "errors"),
    },
    "checks": {
        *(
            "api",
            "studies",
            "batch",
            "explaining",
            "pricing",
            "timing",
            "weights",
            "mesh",
            "inputs",
            "results",
            "views",
        ),
        *("declared", "language", "errors"),
    },
    WITNESS: {"errors"},
}
DIMS = "mla_cost.language.dims"  # the names of dims are words, not code that is checked
SETTINGS = "mla_cost.inputs.table"  # what settings are called, for those who print them

NAMES = {
    *("explicit", "absorbed", "laga"),
    *("ulysses", "latent-gather", "kv-gather"),
    *("eager", "eager-bmm", "flash", "mem-efficient", "npu-fusion"),
}
GENERATED = "keywords.py"  # types of keywords, made from the declarations by mla_cost.checks.schema
NAMED_IN = {"declared", WITNESS}


@dataclass(frozen=True)
class Import:
    """One imported module, `module` in full, at `where`; `lazy` inside a function or for type checkers alone."""

    module: str
    where: str
    lazy: bool

    @property
    def part(self) -> str | None:
        """The part of the package it is, PACKAGE for the package itself, None for others' modules."""
        first, _, rest = self.module.partition(".")
        return None if first != PACKAGE else rest.partition(".")[0] or PACKAGE


def part_of(path: Path, package: Path) -> str:
    inside = path.relative_to(package).parts
    if inside[:2] == tuple(WITNESS.split(".")):
        return WITNESS
    return PACKAGE if inside[0] == "__init__.py" else inside[0].removesuffix(".py")


def sources(package: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield part_of(path, package), path, ast.parse(path.read_bytes(), str(path))


def is_lazy(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST, *, lazy: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, lazy
        yield from statements(child, lazy=lazy or is_lazy(child))


def origin(node: ast.ImportFrom, path: Path, package: Path) -> str:
    """The module after `from`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    folders = path.relative_to(package.parent).parts[: -node.level]
    return ".".join((*folders, *([node.module] if node.module else [])))


def is_module(dotted: str, package: Path) -> bool:
    path = package.parent.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules(node: ast.Import | ast.ImportFrom, path: Path, package: Path) -> Iterator[str]:
    """The modules that a statement imports: `from mla_cost import dims` is mla_cost.language.dims."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = origin(node, path, package)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if base.partition(".")[0] == PACKAGE and is_module(inner, package) else base


def imports(path: Path, tree: ast.Module, package: Path) -> Iterator[Import]:
    for node, lazy in statements(tree):
        where = f"{path.relative_to(package.parent)}:{node.lineno}"
        for module in modules(node, path, package):
            yield Import(module, where, lazy)


def against_arrow(part: str, found: Import) -> bool:
    if found.part is None or found.part == part or (part, found.module) in {(WITNESS, DIMS), ("views", SETTINGS)}:
        return False
    if part == WITNESS:
        return found.part not in ONLY[part] and not f"{found.module}.".startswith(f"{PACKAGE}.{WITNESS}.")
    if part in ONLY and found.part not in ONLY[part]:
        return True
    # a registry is asked; which declaration answers is the key's business
    return found.part == "declared" and part != "declared" and found.module.count(".") > 2


def wrong_arrows(package: Path) -> list[str]:
    return [
        f"{found.where}: {part} must not import {found.module}"
        for part, path, tree in sources(package)
        for found in imports(path, tree, package)
        if against_arrow(part, found) or (found.part == "cli" and part not in {"cli", "__main__"})
    ]


def heavy_imports(package: Path) -> list[str]:
    """Libraries that the language never needs; its evaluators may need some, inside a function."""
    return [
        f"{found.where}: {part} must not import {found.module} at module level"
        for part, path, tree in sources(package)
        for found in imports(path, tree, package)
        if found.module.partition(".")[0] in HEAVY and part == "language" and not may_be_heavy(path, found)
    ]


def may_be_heavy(path: Path, found: Import) -> bool:
    return path.name == "evaluate.py" and found.lazy


def docstrings(tree: ast.Module) -> set[ast.expr]:
    """Every string that stands alone as a statement."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def declared_names(package: Path) -> set[str]:
    """NAMES and those of the declarations that came later, by their file names."""
    declared = package / "declared"
    files = [
        path
        for part in ("forms", "schemes", "kernels", "shardings", "optimizers")
        for path in (declared / part).glob("[!_]*.py")
    ]
    return NAMES | {path.stem.replace("_", "-") for path in files}


def stray_names(package: Path) -> list[str]:
    names = declared_names(package)
    return [
        f"{path.relative_to(package.parent)}:{node.lineno}: {node.value!r} belongs in its declaration or in defaults"
        for part, path, tree in sources(package)
        if part not in NAMED_IN and path.name != GENERATED
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
        if node not in docstrings(tree)
    ]


@pytest.mark.parametrize("check", [wrong_arrows, heavy_imports, stray_names])
def test_package(check, checkout):
    assert check(checkout / PACKAGE) == []


# The checks themselves, on small packages that break one rule each.


def make_package(root: Path, files: dict[str, str]) -> Path:
    package = root / PACKAGE
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("language/program.py", "import mla_cost.pricing.compile"),
        ("language/program.py", "from mla_cost import pricing"),
        ("language/program.py", "def f():\n    from mla_cost.pricing.compile import fold"),
        ("language/rules/matmul.py", "from ...pricing.compile import fold"),
        ("language/rules/matmul.py", "from ... import pricing"),
        ("language/dims.py", "import mla_cost"),
        ("declared/forms/explicit.py", "from mla_cost.pricing import compile"),
        ("pricing/compile.py", "from mla_cost.declared.forms import explicit"),
        ("pricing/compile.py", "from mla_cost.declared.forms.explicit import FORM"),
        ("views/table.py", "from mla_cost.pricing.compile import fold"),
        ("checks/reference/modules.py", "import mla_cost.language.rules.matmul"),
        ("inputs/importers/huggingface.py", "from mla_cost.pricing.verdicts import verdict"),
        ("pricing/verdict.py", "from mla_cost.views import table"),
        ("api.py", "from mla_cost.cli import main"),
    ],
)
def test_wrong_arrow_is_seen(tmp_path, name, text):
    there = {"pricing/compile.py": "", "declared/forms/__init__.py": "", "declared/forms/explicit.py": "", name: text}
    assert [line.split(":")[0] for line in wrong_arrows(make_package(tmp_path, there))] == [f"{PACKAGE}/{name}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("language/rules/matmul.py", "from mla_cost.language.program import Op\nfrom .norm import rule\nimport math"),
        ("declared/forms/laga.py", "from mla_cost.language.program import form"),
        ("pricing/compile.py", "from mla_cost.declared.forms import find\nfrom mla_cost.declared import forms"),
        ("cli/plan.py", "from mla_cost.cli import options\nfrom mla_cost.api import plan"),
        ("checks/reference/modules.py", "import torch\nfrom mla_cost.language.dims import DIMS"),
        ("checks/reference/modules.py", "from mla_cost.checks.reference import forms"),
    ],
)
def test_right_arrow_passes(tmp_path, name, text):
    package = make_package(tmp_path, {"declared/forms/__init__.py": "", "checks/reference/forms.py": "", name: text})
    assert wrong_arrows(package) == []


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("language/dims.py", "def f():\n    import sympy", 1),
        ("language/rules/matmul.py", "from numpy.linalg import norm", 1),
        ("language/evaluate.py", "import numpy", 1),
        ("language/evaluate.py", "def f():\n    import numpy", 0),
        ("language/evaluate.py", "if TYPE_CHECKING:\n    import sympy", 0),
        ("inputs/config.py", "import pydantic", 0),
    ],
)
def test_heavy_import_is_seen(tmp_path, name, text, count):
    assert len(heavy_imports(make_package(tmp_path, {name: text}))) == count


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("pricing/compile.py", "if form == 'absorbed': pass", 1),
        ("pricing/compile.py", "match kernel:\n    case 'flash': pass", 1),
        ("pricing/compile.py", "x = {'latent-gather': 1}", 1),
        ("pricing/compile.py", "x = 'ring'", 1),  # declared by a file
        ("pricing/compile.py", '"""laga"""\nx = "the flash kernel"', 0),
        ("declared/defaults.py", "KERNEL = 'eager'", 0),
        ("declared/kernels/flash.py", "NAME = 'flash'", 0),
    ],
)
def test_stray_name_is_seen(tmp_path, name, text, count):
    assert len(stray_names(make_package(tmp_path, {"declared/schemes/ring.py": "", name: text}))) == count
