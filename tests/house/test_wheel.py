"""The wheel works outside the checkout: built through the sdist, installed in a new environment, run from nowhere.

Nothing is downloaded: the new environment sees the dependencies of the one that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build")
pytest.importorskip("hatchling")

SECONDS = 120


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The scripts folder of a new environment that holds the wheel."""
    root = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", root, cwd=root)
    paths = sysconfig.get_paths(scheme="venv", vars={"base": str(root), "platbase": str(root)})
    python = next(Path(paths["scripts"]).glob("python*"))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
    run(*pip, wheel, cwd=root)
    ours = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (Path(paths["purelib"]) / "dependencies.pth").write_text("\n".join(ours))
    return python.parent


def test_every_config_is_shipped(wheel, checkout):
    ours = {f"mla_cost/{path.relative_to(checkout)}" for path in (checkout / "configs").rglob("*.yaml")}
    shipped = set(zipfile.ZipFile(wheel).namelist())
    assert any(name.startswith("mla_cost/configs/models/") for name in ours)
    assert ours <= shipped


def test_only_the_package_is_shipped(wheel):
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"mla_cost"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("plan",), ("explicit", "absorbed", "laga")),
        (("models",), ("deepseek-v3",)),
        (("show", "deepseek-v3"), ("deepseek-v3",)),
    ],
)
def test_command_runs_from_an_empty_folder(installed, tmp_path, command, expected):
    printed = run(installed / "mla-cost", *command, cwd=tmp_path).lower()
    assert [word for word in expected if word not in printed] == []


def test_the_installed_package_is_the_one_that_runs(installed, tmp_path):
    where = run(installed / "python", "-c", "import mla_cost; print(mla_cost.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
