"""A real browser for tests of pages: headless Chromium where there is one, with an empty profile and no network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.choosing import EXHAUSTIVE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
needs_browser = pytest.mark.skipif(
    not (EXHAUSTIVE and CHROMIUM), reason="a browser takes seconds: `make exhaustive`, where Chromium is installed"
)


def dom(page: Path, profile: Path, fragment: str = "", seconds: int = 60) -> str:
    """The page's elements as text after its scripts ran."""
    assert CHROMIUM is not None
    flags = (*FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom")
    done = subprocess.run(
        [CHROMIUM, *flags, f"{page.as_uri()}{fragment}"],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=seconds,
    )
    return done.stdout
