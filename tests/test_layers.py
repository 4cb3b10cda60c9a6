"""Imports point one way, and names of forms, schemes and kernels stay where they are declared.

Read from the source text, so a lazy import counts too. A part is the first name below `mla_cost`: a module
(`dims`) or a folder (`rules`). Parts that do not exist yet are not missed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "mla_cost"
LANGUAGE = {"dims", "polynomial", "program", "layout", "remat", "rules", "engine"}
DECLARATIONS = {"forms", "schemes", "kernels", "profiles", "layers"}
HEAVY = {"pydantic", "typer", "rich", "sympy", "numpy", "torch", "yaml"}
ABOVE_FIT = {"arrays", "composing", "sweeping", "rowmodel", "searching", "evidence", "views", "api", "cli"}
ABOVE_CONFIG = {
    *("arrays", "composing"),
    *("fit", "sweeping", "rowmodel", "searching", "evidence", "results", "views", "api", "cli"),
    *("reference", "importers"),
}

# All that a part may import of the package. Its own modules are always allowed.
ONLY: dict[str, set[str]] = {
    **{part: LANGUAGE | {"errors"} for part in LANGUAGE},
    **{part: {"program", "dims", "errors"} for part in DECLARATIONS},
    "cost": LANGUAGE | DECLARATIONS | {"errors"},
    "evaluate": LANGUAGE | {"cost", "errors"},
    "importers": {"config", "errors"},
    "views": {"results", "errors"},
    "rowmodel": {"results", "errors"},
    "errors": set(),
}

# What a part must not import, where the rest is free.
NEVER: dict[str, set[str]] = {
    "config": ABOVE_CONFIG,
    "fit": {*ABOVE_FIT, "reference", "importers"},
    "arrays": {"composing", "sweeping", "searching", "evidence", "views", "api", "cli", "reference", "importers"},
    "composing": {"sweeping", "searching", "evidence", "views", "api", "cli", "reference", "importers"},
    "searching": {"evidence", "cli", "reference", "importers"},
    "sweeping": {"searching", "evidence", "views", "api", "cli", "reference", "importers"},
    # A witness shares no code with what it checks.
    "reference": LANGUAGE - {"dims"} | DECLARATIONS | {"cost", "evaluate", "fit"},
}

NAMES = {
    *("explicit", "absorbed", "laga"),
    *("ulysses", "latent-gather", "kv-gather"),
    *("eager", "eager-bmm", "flash", "mem-efficient", "npu-fusion"),
}
NAMED_IN = DECLARATIONS | {"reference", "defaults"}


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
    first = path.relative_to(package).parts[0]
    return PACKAGE if first == "__init__.py" else first.removesuffix(".py")


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
    """The modules that a statement imports: `from mla_cost import dims` is mla_cost.dims."""
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
    if found.part is None or found.part == part:
        return False
    if part in ONLY and found.part not in ONLY[part]:
        return True
    if found.part in NEVER.get(part, ()):
        return True
    # cost asks a registry; which form it gets is the key's business
    return part == "cost" and found.part in DECLARATIONS and found.module.count(".") > 1


def wrong_arrows(package: Path) -> list[str]:
    return [
        f"{found.where}: {part} must not import {found.module}"
        for part, path, tree in sources(package)
        for found in imports(path, tree, package)
        if against_arrow(part, found) or (found.part == "cli" and part not in {"cli", "__main__"})
    ]


def heavy_imports(package: Path) -> list[str]:
    """Libraries that the language never needs, and those that evaluate may need only inside a function."""
    return [
        f"{found.where}: {part} must not import {found.module}{' at module level' if part == 'evaluate' else ''}"
        for part, path, tree in sources(package)
        for found in imports(path, tree, package)
        if found.module.partition(".")[0] in HEAVY and (part in LANGUAGE or (part == "evaluate" and not found.lazy))
    ]


def docstrings(tree: ast.Module) -> set[ast.expr]:
    """Every string that stands alone as a statement."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def declared_names(package: Path) -> set[str]:
    """NAMES and those of the declarations that came later, by their file names."""
    files = [path for part in ("forms", "schemes", "kernels") for path in (package / part).glob("[!_]*.py")]
    return NAMES | {path.stem.replace("_", "-") for path in files}


def stray_names(package: Path) -> list[str]:
    names = declared_names(package)
    return [
        f"{path.relative_to(package.parent)}:{node.lineno}: {node.value!r} belongs in its declaration or in defaults"
        for part, path, tree in sources(package)
        if part not in NAMED_IN
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
        ("program.py", "import mla_cost.cost"),
        ("program.py", "from mla_cost import cost"),
        ("program.py", "def f():\n    from mla_cost.cost import fold"),
        ("rules/matmul.py", "from ..cost import fold"),
        ("rules/matmul.py", "from .. import cost"),
        ("dims.py", "import mla_cost"),
        ("forms/explicit.py", "from mla_cost.rules import matmul"),
        ("schemes/ulysses.py", "from mla_cost.forms import find"),
        ("cost.py", "from mla_cost.config import Model"),
        ("cost.py", "from mla_cost.forms import explicit"),
        ("cost.py", "from mla_cost.forms.explicit import FORM"),
        ("views/table.py", "from mla_cost.cost import fold"),
        ("reference/modules.py", "import mla_cost.rules.matmul"),
        ("importers/huggingface.py", "from mla_cost.fit import verdict"),
        ("fit.py", "from mla_cost.views import table"),
        ("api.py", "from mla_cost.cli import main"),
    ],
)
def test_wrong_arrow_is_seen(tmp_path, name, text):
    package = make_package(tmp_path, {"cost.py": "", "forms/__init__.py": "", "forms/explicit.py": "", name: text})
    assert [line.split(":")[0] for line in wrong_arrows(package)] == [f"{PACKAGE}/{name}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rules/matmul.py", "from mla_cost.program import Op\nfrom .norm import rule\nimport math"),
        ("forms/laga.py", "from mla_cost.program import form\nfrom mla_cost.forms.explicit import FORM"),
        ("cost.py", "from mla_cost.forms import find\nfrom mla_cost import forms"),
        ("cli/plan.py", "from mla_cost.cli import options\nfrom mla_cost.api import plan"),
        ("reference/modules.py", "import torch\nfrom mla_cost.dims import DIMS"),
    ],
)
def test_right_arrow_passes(tmp_path, name, text):
    package = make_package(tmp_path, {"forms/__init__.py": "", name: text})
    assert wrong_arrows(package) == []


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("dims.py", "def f():\n    import sympy", 1),
        ("rules/matmul.py", "from numpy.linalg import norm", 1),
        ("evaluate.py", "import numpy", 1),
        ("evaluate.py", "def f():\n    import numpy", 0),
        ("evaluate.py", "if TYPE_CHECKING:\n    import sympy", 0),
        ("config.py", "import pydantic", 0),
    ],
)
def test_heavy_import_is_seen(tmp_path, name, text, count):
    assert len(heavy_imports(make_package(tmp_path, {name: text}))) == count


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("cost.py", "if form == 'absorbed': pass", 1),
        ("cost.py", "match kernel:\n    case 'flash': pass", 1),
        ("cost.py", "x = {'latent-gather': 1}", 1),
        ("cost.py", "x = 'ring'", 1),  # declared by a file
        ("cost.py", '"""laga"""\nx = "the flash kernel"', 0),
        ("defaults.py", "KERNEL = 'eager'", 0),
        ("kernels/flash.py", "NAME = 'flash'", 0),
    ],
)
def test_stray_name_is_seen(tmp_path, name, text, count):
    assert len(stray_names(make_package(tmp_path, {"schemes/ring.py": "", name: text}))) == count
