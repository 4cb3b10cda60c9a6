"""Settings and fixtures that every test shares."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest

collect_ignore = ["program_checks.py"]  # has no doctests, and needs torch
pytest.register_assert_rewrite("tests.program_checks")  # so that a mismatch shows both sides

# A slow machine is no failure, and a draw that fails in CI fails again at home.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_finish() -> None:
    """Leave what collecting made, five thousand tests and all modules, out of every later garbage collection."""
    gc.freeze()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
