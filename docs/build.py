"""Writes the generated parts of the documentation anew: `make docs`. Tests compare them with what is written here.

A generated part stands between `<!-- made by docs/build.py: NAME -->` and `<!-- end -->`; docs/formulas.md and
docs/cli.md are all made.
"""
# ruff: noqa: INP001  # a script, not a package

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from mla_cost.checks.evidence import evidence
from mla_cost.cli import documented
from mla_cost.declared.kernels import KERNELS
from mla_cost.explaining import formulas, schemes
from mla_cost.inputs import catalog
from mla_cost.language.dims import SYMBOLS
from mla_cost.language.program import Limit
from mla_cost.language.workspace import SOFTMAX
from mla_cost.results import markdown
from mla_cost.views.evidence import time_words

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"(?<=<!-- made by docs/build\.py: )([\w-]+)( -->\n)(?:(?!<!--).)*(?=<!-- end -->)", re.DOTALL)


MODEL_PLAN = "plan moonlight-8-h100 --form laga --levers"
BLOCK_PLAN = "plan --scope attention"


def output(arguments: str) -> str:
    """What a command prints into a pipe of 80 columns."""
    command = (sys.executable, "-c", f"from mla_cost.cli import main; main({arguments.split()!r})")
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=True)  # noqa: S603  # our own command
    lines = "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())
    return f"```text\n$ mla-cost {arguments}\n{lines}\n```"


def opening(arguments: str, until: str) -> str:
    """What a command prints before a line that begins so."""
    lines = output(arguments).splitlines()
    cut = next(at for at, line in enumerate(lines) if line.startswith(until))
    return "\n".join([*lines[:cut], "...", "```"])


def symbols() -> str:
    """Every symbol of a formula."""
    rows = [(f"`{name}`", meaning, f"`{field}`") for name, (meaning, field) in SYMBOLS.items()]
    return markdown.table(("symbol", "meaning", "set by"), rows)


def limits() -> str:
    """Where each fused kernel trains."""
    rows = [
        (
            kernel.name,
            limit.implementation,
            ", ".join(limit.archs),
            widths(limit),
            ", ".join(limit.dtypes),
            limit.source,
        )
        for kernel in KERNELS.values()
        for limit in kernel.limits
    ]
    heads = ("kernel", "implementation", "architectures", "head widths", "dtypes", "source")
    return markdown.table(heads, rows)


def widths(limit: Limit) -> str:
    """The limit in words."""
    parts = [f"exactly {qk}/{v}" for qk, v in limit.only]
    parts += [f"Q and K up to {limit.max_qk}, V up to {limit.max_v}"] * (limit.max_qk is not None)
    parts += ["any width"] * (not limit.only and limit.max_qk is None)
    parts += ["V as wide as Q and K"] * limit.equal + ["V no wider than Q and K"] * limit.at_most_qk
    parts += [f"multiples of {limit.multiple_of}"] * (limit.multiple_of > 1)
    return ", ".join(parts + [limit.note] * bool(limit.note))


def softmax_workspace() -> str:
    """What eager softmax holds inside its calls, by device family."""
    rows = [(name, found.words, found.basis, found.source) for name, found in SOFTMAX.items() if found.source]
    return markdown.table(("family", "workspace", "how sure", "source"), rows)


def fused_workspace() -> str:
    """Where the size of each fused kernel's backward workspace was read."""
    rows = [(kernel.name, kernel.workspace_source) for kernel in KERNELS.values() if kernel.fused]
    return markdown.table(("kernel", "read in"), rows)


def kv_gather() -> str:
    """The file of the scheme that docs/adding.md reads line by line."""
    scheme = ROOT / "mla_cost" / "declared" / "schemes" / "kv_gather.py"
    return f"```python\n{scheme.read_text(encoding='utf-8').strip()}\n```"


def reserves() -> str:
    """What is taken off visible memory, the same item of several devices once."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in catalog.device_names():
        for item in catalog.device(name).reserve:
            sure = "read at its source" if item.verified else "not verified"
            sure += ", which is second hand" if catalog.device(name).second_hand(item) else ""
            low = "" if item.high is None else ", low end"
            found.setdefault((item.name, f"{item.bytes / 2**20:,.0f}{low}", item.per, sure), []).append(name)
    rows = [(*item, ", ".join(names)) for item, names in found.items()]
    return markdown.table(("item", "MiB", "per", "how sure", "devices"), rows)


CEILINGS = (
    "gemm_share",
    "grouped_gemm_share",
    "attention_share",
    "memory_share",
    "all_to_all_share",
    "launch_floor_us",
)


def ceilings() -> str:
    """What every device reaches, with its spread; an asterisk where no source says so."""
    rows = []
    for name in catalog.device_names():
        time = catalog.device(name).time
        facts = [time[fact] for fact in CEILINGS]  # type: ignore[index]  # names of facts
        told = [f"{fact.value} ({fact.low} to {fact.high}){'' if fact.verified else ' *'}" for fact in facts]
        rows.append((name, *told))
    return markdown.table(("device", *(fact.replace("_", " ") for fact in CEILINGS)), rows)


def times() -> str:
    """How far predicted times are from published ones."""
    found = evidence(only=("time_runs",)).listed()
    told = "\n".join(f"- {words}." for words in time_words(found))
    rows = [
        (row["id"], _figure(row["published"], row["unit"]), _figure(row["predicted"], row["unit"]),
         "-" if row["relative_difference"] is None else f"{row['relative_difference']:+.1%}")
        for row in found["rows"] if row["use"] == "gate" and row["predicted"]
    ]  # fmt: skip
    return f"{told}\n\n" + markdown.table(("row to meet first", "published", "predicted", "difference"), rows)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}" if unit != "ratio" else f"{value:.3f}"


# what docs/gallery.md shows: each file is what its command draws
GALLERY = {
    "stages.svg": "plan deepseek-v3-2048-h800 --form laga",
    "levers.svg": "plan moonlight-8-h100 --form laga --picture levers",
    "communication.svg": "plan moonlight-8-h100 --sp 2 --dp 4 --picture communication",
    "schedule.svg": "plan moonlight-8-h100 --form laga --pp 4 --dp 8 --micro-batches 8 --picture schedule",
    "frontier.svg": "sweep --scope attention --over seq_len=4096..1048576*2 --over sp=1..64*2 --device 910b-64gb",
    "search.svg": (
        "search --model moonlight-16b-a3b --device h100-80gb --devices 8 --global-batch 64 --seq-len 4096 --form laga "
        "--remat full"
    ),
    "published.svg": "evidence",
    "times.svg": "evidence --only time_runs",
}


def commands() -> str:
    """Each picture of the gallery with its command."""
    shown = [f"![{name}](pictures/{name})\n\n`mla-cost {line} --plot {name}`" for name, line in GALLERY.items()]
    return "\n\n".join(shown)


PARTS: dict[str, Callable[[], str]] = {
    "ceilings": ceilings,
    "times": times,
    "first-output": partial(opening, MODEL_PLAN, "Peak event"),
    "model-output": partial(output, MODEL_PLAN),
    "block-output": partial(output, BLOCK_PLAN),
    "symbols": symbols,
    "limits": limits,
    "softmax-workspace": softmax_workspace,
    "fused-workspace": fused_workspace,
    "reserves": reserves,
    "kv-gather": kv_gather,
    "gallery": commands,
}


def gallery(names: Iterable[str] = tuple(GALLERY)) -> Iterator[tuple[Path, str]]:
    """Pictures of the gallery; all of them take a while to draw."""
    for name in names:
        yield picture(name, GALLERY[name])


def picture(name: str, arguments: str) -> tuple[Path, str]:
    """The file of a picture, as a plan draws it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        output(f"{arguments} --plot {path.as_posix()}")
        return ROOT / "docs" / "pictures" / name, path.read_text(encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with generated parts, as it should read."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if MARK.search(text):
            yield path, MARK.sub(lambda mark: f"{mark.group(1)}{mark.group(2)}{PARTS[mark.group(1)]()}\n", text)
    yield ROOT / "docs" / "formulas.md", formulas.page()
    yield ROOT / "docs" / "cli.md", documented.page()
    yield ROOT / "docs" / "schemes.md", schemes.page()
    for name, told in schemes.pages():
        yield ROOT / "docs" / "schemes" / name, told
    for name, drawn in schemes.pictures():
        yield ROOT / "docs" / "pictures" / "schemes" / name, drawn
    if find_spec("matplotlib"):
        yield picture("laga-paper.svg", "plan laga-paper --form absorbed")


if __name__ == "__main__":
    for page, wanted in [*pages(), *(gallery() if find_spec("matplotlib") else ())]:
        if not page.is_file() or page.read_text(encoding="utf-8") != wanted:
            page.parent.mkdir(exist_ok=True)
            page.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)} written\n")
