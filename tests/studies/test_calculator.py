"""`mla-cost page`: JavaScript printed from the rules gives the figures of `plan`, to the byte, wherever it runs."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.cli import main
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.inputs import catalog
from mla_cost.language.numbers import maximum, round_up
from mla_cost.results import Result
from mla_cost.studies.javascript import Js, of_polynomial, printed
from tests.views.browser import PHONE, across_a_phone, dom, evaluated, needs_browser

pytest.importorskip("jinja2")
WIDTHS: dict[str, tuple[int, ...]] = {
    "hidden": (7168, 2048, 64),
    "heads": (128, 40, 16, 8, 2, 1),
    "q_lora_rank": (1536, 64),
    "kv_lora_rank": (512, 96),
    "qk_nope_head_dim": (128, 192, 80),
    "qk_rope_head_dim": (64, 32, 2),
    "v_head_dim": (128, 192, 96, 256),
}
# what is not a width of the model
ASKED: dict[str, tuple[Any, ...]] = {
    "seq_len": (4096, 6144, 16384, 131072, 1 << 20),
    "sp": (1, 1, 2, 3, 8, 16),
    "micro_batch": (1, 1, 3),
    "kernel": tuple(KERNELS),
}


def some(count: int, model: str) -> list[dict[str, Any]]:
    """Random settings, the same each time."""
    draw, devices = random.Random(16), catalog.device_names()  # noqa: S311  # no secret
    absent = {name for name in WIDTHS if getattr(catalog.model(model).dims, name) is None}
    choices = {**ASKED, **WIDTHS, "device": tuple(devices)}
    return [{name: draw.choice(each) for name, each in choices.items() if name not in absent} for _ in range(count)]


def told(row: Result) -> dict[str, Any]:
    """What the page tells of a form, from the result of `plan`."""
    assert row.verdict is not None
    found: dict[str, Any] = {"status": row.verdict.status}
    if row.verdict.status != "illegal":
        sent = (row.communication.forward, row.communication.backward)
        found |= {name: getattr(row.verdict, name) for name in ("required_bytes", "usable_bytes", "headroom_bytes")}
        found |= {name: getattr(row.memory, name) for name in ("peak_bytes", "saved_bytes", "parameter_bytes")}
        found |= {name: sum(getattr(each, name) or 0 for each in sent) for name in ("payload_bytes", "wire_bytes")}
    return found


def compare(model: str, states: list[dict[str, Any]], answers: list[list[dict[str, Any]]]) -> Counter[str]:
    """Every figure of every form, and how many answers of each kind there were."""
    kinds: Counter[str] = Counter()
    for state, answer in zip(states, answers, strict=True):
        asked = {name: state[name] for name in ASKED}
        dims = {name: state[name] for name in WIDTHS if name in state}
        rows = mla_cost.plan(model, state["device"], dims=dims, scope="attention", **asked).results
        for row, found in zip(rows, answer, strict=True):
            del found["reason"]
            assert found == told(row), (row.form, state)
            kinds[found["status"]] += 1
    return kinds


def page(folder: Path, model: str) -> Path:
    path = folder / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["page", model, "-o", str(path)])
    assert ended.value.code == 0
    return path


def asking(states: list[dict[str, Any]]) -> str:
    """JavaScript that answers all of them."""
    return f"{json.dumps(states)}.map(v=>{json.dumps(list(FORMS))}.map(form=>price(form,v)))"


@pytest.fixture(scope="module")
def own(tmp_path_factory, checkout) -> Path:
    """A model without a query latent, whose file and title would run in a page that let them."""
    source = (checkout / "configs/models/deepseek-v2-lite.yaml").read_text(encoding="utf-8")
    path: Path = tmp_path_factory.mktemp("own") / "my${alert(1)}`<model.yaml"
    hostile = source.replace("title: DeepSeek-V2-Lite", "title: '</script><script>alert(1)</script>'")
    path.write_text(hostile, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory, own) -> Path:
    """Its page."""
    return page(tmp_path_factory.mktemp("page"), str(own))


def test_the_code_of_a_page_gives_the_figures_of_plan(made, own, tmp_path):
    """Every figure of every form and kernel, at random settings."""
    states = some(300, str(own))
    kinds = compare(str(own), states, evaluated(made, asking(states), tmp_path))
    assert {"fits", "oom", "illegal", "unsupported"} <= set(kinds)


@needs_browser
def test_a_browser_gives_the_figures_of_plan_in_time(tmp_path):
    """300 random settings, each form and kernel among them; and the page draws an answer within a frame of 16 ms."""
    path, states = page(tmp_path, "deepseek-v3"), some(300, "deepseek-v3")
    ends, out = "fromAddress();fill();show();\n</script>", "const out=document.createElement('pre');out.id='out';"
    out += f"out.textContent=JSON.stringify({asking(states)});document.body.append(out);"
    times = "const times=[];for(let i=0;i<20;i++){show();times.push(+document.body.dataset.milliseconds)}"
    times += "document.body.dataset.median=times.sort((a,b)=>a-b)[10];"
    asks = f"fromAddress();fill();show();{times}{out}</script>"
    text = path.read_text(encoding="utf-8")
    assert text.count(ends) == 1
    text = text.replace(ends, asks)
    asked = tmp_path / "asked.html"
    asked.write_text(text, encoding="utf-8")
    shown = dom(asked, tmp_path / "profile", "#sp=16&kernel=flash&device=h100-80gb/vs/sp=4")
    answers = re.search(r'<pre id="out">(.*?)</pre>', shown, re.DOTALL)
    milliseconds = re.search(r'data-median="([\d.]+)"', shown)
    assert answers is not None
    assert milliseconds is not None
    kinds = compare("deepseek-v3", states, json.loads(answers.group(1).replace("&amp;", "&")))
    assert {"fits", "oom", "illegal", "unsupported"} <= set(kinds)
    assert float(milliseconds.group(1)) < 16
    assert "--device h100-80gb --kernel flash --seq-len 16384 --sp 16" in shown
    assert shown.count("was illegal") + shown.count("was fits") == 3


@needs_browser
def test_a_phone_needs_no_scrolling_sideways(made, tmp_path):
    window, scrolled, out = across_a_phone(made.read_text(encoding="utf-8"), tmp_path, "#sp=2/vs/sp=4")
    assert (window, out) == (PHONE, [])
    assert scrolled <= window


def test_a_page_is_one_file_that_says_what_it_does_not_hold(made):
    text = made.read_text(encoding="utf-8")
    assert len(text.encode()) < 1 << 20
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert 'id="q_lora_rank"' not in text
    assert all(f'id="{name}"' in text for name in ("seq_len", "sp", "micro_batch", "heads", "v_head_dim"))
    assert all(f'value="{name}"' in text for name in catalog.device_names())
    assert "scope model; a scheme other than the form's own" in text.replace("&#39;", "'")


def test_a_name_cannot_leave_the_data_of_a_page(made):
    text = made.read_text(encoding="utf-8")
    assert text.count("<script") == 2
    assert "alert(1)" not in text.rpartition("<script>")[2]


def test_rules_print_themselves():
    x, y = Js("x"), Js("y")
    assert printed(lambda: round_up(x, 128) + y) == "((Math.floor(((x+128)-1)/128)*128)+y)"
    assert printed(lambda: maximum(x, 3)) == "Math.max(3,x)"
    assert printed(lambda: int(x > 128) * y) == "((x>128)?(1*y):(0*y))"
    assert printed(lambda: 1 if x > 1 and y > 2 else 0) == "((x>1)?((y>2)?1:0):0)"
    assert of_polynomial(KERNELS["flash"].workspace.polynomial) == "4*batch*heads*rows+4*batch*heads*rows*width"
