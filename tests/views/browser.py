"""A real browser for tests of pages: headless Chromium where there is one, with an empty profile and no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.choosing import EXHAUSTIVE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
NODE = shutil.which("node")
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


def evaluated(page: Path, expression: str, folder: Path) -> Any:
    """What an expression over the script of a page gives: in Chromium, else in node; skips where neither is."""
    text = page.read_text(encoding="utf-8")
    if CHROMIUM is not None:
        out = f"const out=document.createElement('pre');out.id='out';out.textContent=JSON.stringify({expression});"
        script = f"{out}document.body.append(out);</script>"
        (folder / "asked.html").write_text(script.join(text.rsplit("</script>", 1)), encoding="utf-8")
        found = re.search(r'<pre id="out">(.*?)</pre>', dom(folder / "asked.html", folder / "profile"), re.DOTALL)
        assert found is not None
        return json.loads(unescape(found.group(1)))
    if NODE is None:
        pytest.skip("runs the page's script in Chromium or node, and neither is here")
    code = text.rpartition("<script>")[2].partition("const by=")[0]
    code = code.replace('JSON.parse(document.getElementById("data").textContent)', "{}")
    (folder / "asked.js").write_text(f"{code}\nconsole.log(JSON.stringify({expression}))", encoding="utf-8")
    asked = [NODE, str(folder / "asked.js")]
    return json.loads(subprocess.run(asked, capture_output=True, encoding="utf-8", check=True, timeout=60).stdout)


PHONE = 390  # CSS pixels across
_MEASURE = (
    "<script>parent.postMessage([innerWidth,document.documentElement.scrollWidth,"
    "[...document.querySelectorAll('body *')].filter(it=>!it.closest('.wide')"
    "&&it.getBoundingClientRect().right>innerWidth+1).map(it=>it.outerHTML.slice(0,60))],'*')</script></body>"
)


def across_a_phone(text: str, folder: Path, fragment: str = "") -> tuple[int, int, list[str]]:
    """How wide a page is on a phone: the window, what would have to be scrolled sideways, and what sticks out.

    A window of its own has at least 500 pixels, so the page stands in a frame.
    """
    own = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (folder / "inner.html").write_text(own.replace("</body>", _MEASURE), encoding="utf-8")
    frame = f'<iframe src="inner.html{fragment}" width="{PHONE}" height="2000" style="border:0"></iframe>'
    heard = "<pre id=out></pre><script>onmessage=it=>out.textContent=JSON.stringify(it.data)</script>"
    (folder / "outer.html").write_text(heard + frame, encoding="utf-8")
    found = re.search(r'<pre id="out">(.*?)</pre>', dom(folder / "outer.html", folder / "profile"), re.DOTALL)
    assert found is not None
    window, scrolled, out = json.loads(unescape(found.group(1)))
    return window, scrolled, out
