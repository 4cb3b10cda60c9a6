"""Which cases of a test that runs torch an everyday run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.choosing import EXHAUSTIVE, spread

HERE = Path(__file__).parent
MOST = 5  # of one test; that the rest agrees is for `validate` to say, whose grid holds every two settings together


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test in this folder leave a few cases, from the first to the last."""
    if EXHAUSTIVE:
        return
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if HERE in item.path.parents:
            tests.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    kept = {id(item) for cases in tests.values() for item in spread(cases, MOST)}
    left = [item for item in items if HERE in item.path.parents and id(item) not in kept]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if HERE not in item.path.parents or id(item) in kept]
