"""Where what the fuzzed commands write goes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory):
    """Commands that write do so in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("written"))
        yield patch
