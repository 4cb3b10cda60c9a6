"""The evidence page as Markdown and as a table: reads `Evidence.to_dict()` and computes nothing but rounding."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from statistics import median
from typing import Any

from mla_cost.results.markdown import table as markdown_table
from mla_cost.views.grid import TextGrid

COMMAND = "mla-cost evidence --format markdown"
CATALOGUE = "catalogue"
TIMES = "time_runs"
WIDTH = 110  # of a pipe: every row on a line
UNITS = {
    **{unit: f" {unit}" for unit in ("GB", "MB", "GiB", "MiB", "ms", "tokens/s")},
    "bytes": " B",
    "percent": " %",
}
COUNTED = {"matches": "match", "differs": "differ", "not-modelled": "are not modelled"}
Data = Mapping[str, Any]


def markdown(page: Data) -> str:
    """The whole page, ending with a newline."""
    parts = (_head, _figures, _reasons, _times, _parameters, _sent, _fused, _regression, _regimes, _gather)
    return "\n\n".join("\n".join(part(page)) for part in parts) + "\n"


def show(page: Data, *, notes: bool = True) -> None:
    """Print the counts, one line per row and, unless left out, what differs and why."""
    from rich.console import Group
    from rich.text import Text

    from mla_cost.views import terminal

    told = map(Text, _sentences(page)) if notes else ()
    rows = _listing([*_listed(page), *_timed(page)])
    terminal.show(Group(Text(_counts(page)), Text(""), rows, Text(""), *told), pipe=WIDTH)


def _sentences(page: Data) -> Iterator[str]:
    yield from (f"{row['row']}: {_accounts(row)}" for row in page["sent"] if row["unit"] == "ratio")
    yield from (f"{row['id']}: {row['reason']}" for row in page["rows"] if row["status"] == "differs")
    if _counted(page):
        yield _counted_words(page)
    yield from time_words(page)
    yield "Reasons for every row and the questions the paper leaves: --format markdown"


def _accounts(row: Data) -> str:
    """Three ways to count, in words."""
    counted = f"prints {_number(row['published'])}, its own count gives {row['printed_way']:.3f}"
    return f"{counted}; payload {row['payload']:.3f}; {row['wire']:.3f} on the wire, which is what a network sees"


def show_beside(name: str, rows: Iterable[Data]) -> None:
    """Print published rows beside their predictions; `name` as a plan gives it."""
    from rich.console import Group
    from rich.text import Text

    from mla_cost.views import terminal

    head = Text(f"Published beside predicted ({name}), each at its own sizes")
    terminal.show(Group(Text(""), head, Text(""), _listing(rows)))


def _listing(rows: Iterable[Data]) -> TextGrid:
    """One line per row."""
    table = TextGrid(("row", "published", "predicted", "off", "status"), left=("row", "status"))
    for row in rows:
        table.add(row["id"], _published(row), _predicted(row), _off(row), row["status"])
    return table


def _counts(page: Data) -> str:
    counts = page["counts"]
    return (
        ", ".join(f"{counts[state]} {words}" for state, words in COUNTED.items())
        + f" of {len(page['rows'])} published figures."
    )


def _paragraph(*sentences: str) -> Iterator[str]:
    """Text filled to the width of the other pages; a formula is never broken."""
    yield from textwrap.wrap(" ".join(sentences), width=118, break_long_words=False, break_on_hyphens=False)


# ---- rows


def _head(page: Data) -> Iterator[str]:
    yield "# Published figures beside predictions"
    yield ""
    yield f"Written by `{COMMAND}` (`make docs`); a test fails when it is stale. Bytes are for one rank."
    yield ""
    yield f"**{_counts(page)}**"
    yield ""
    yield from _paragraph(
        "A plan states only what its source states, each field with its citation in `configs/evidence/`; the rest are",
        "this tool's defaults. Of the paper's setup one field is inferred, `names: held`: docs/decisions/0014.",
        "The tool answers for the two rows marked `gate`, within 5 %; no row is fitted and the others gate nothing.",
    )


def _figures(page: Data) -> Iterator[str]:
    yield "## Figures"
    yield ""
    rows = (
        (row["id"], row["quantity"], row["origin"], _published(row), _predicted(row), _off(row), _status(row))
        for row in _listed(page)
    )
    yield markdown_table(("row", "quantity", "origin", "published", "predicted", "difference", "status"), rows)


def _published(row: Data) -> str:
    amount = _amount(row["published"], row["unit"])
    return f"{row['bound']} {amount}" if row["bound"] else amount


def _predicted(row: Data) -> str:
    return "-" if row["predicted"] is None else _amount(row["predicted"], row["unit"])


def _amount(value: Any, unit: str) -> str:
    if isinstance(value, list):
        return " to ".join(_number(end) for end in value) + UNITS.get(unit, "")
    if unit == "fits":
        return "fits" if value else "does not fit"
    return f"{_number(value)}{UNITS.get(unit, '')}"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "identical" if value else "not identical"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.5g}"


def _status(row: Data) -> str:
    return f"{row['status']}, gate" if row["gates"] else str(row["status"])


def _off(row: Data) -> str:
    off = row["relative_difference"]
    if row["bound"] and row["status"] == "matches":
        return "within"  # how far a figure stays from a limit says nothing of either
    return "-" if off is None else f"{100 * off:+.2f} %"


def _reasons(page: Data) -> Iterator[str]:
    yield "## Reasons"
    yield ""
    yield from _said(_listed(page))


def _said(rows: Iterable[Data]) -> Iterator[str]:
    said = [row for row in rows if row["reason"]]
    for reason, found in groupby(said, key=lambda row: row["reason"]):
        yield f"- {', '.join(row['id'] for row in found)}: {reason}."


# ---- times of runs

USES = {"gate": "to meet first", "ratio": "two settings of one machine", "": "kept back"}


def _times(page: Data) -> Iterator[str]:
    yield "## Time"
    yield ""
    yield from _paragraph(
        "Steps and tokens a second of training runs, predicted from first principles and the ceilings of",
        "`configs/devices/`; no ceiling is fitted to a step. Tokens a second are of one device. Rows to meet first",
        "come first: the aim is a median error of 15 % and none above 25 %. docs/time.md says what is modelled.",
    )
    yield ""
    yield from _paragraph(*(f"{words}." for words in time_words(page)))
    yield ""
    found = _timed(page)
    rows = (
        (row["id"], row["quantity"], USES[row["use"]], _published(row), _predicted(row), _off(row), row["status"])
        for row in found
    )
    yield markdown_table(("row", "quantity", "use", "published", "predicted", "difference", "status"), rows)
    yield ""
    yield from _said(found)


def _timed(page: Data) -> list[Data]:
    return [row for row in page["rows"] if row["source"] == TIMES]


def time_words(page: Data) -> Iterator[str]:
    """Of each use of the times: how many are predicted, and how far off they are."""
    for use, words in USES.items():
        rows = [row for row in page["rows"] if (row["source"], row.get("use")) == (TIMES, use)]
        off = sorted(abs(row["relative_difference"]) for row in rows if row["relative_difference"] is not None)
        if off:
            told = f"median error {100 * median(off):.1f} %, worst {100 * off[-1]:.1f} %"
            yield f"Times {words}: {len(off)} of {len(rows)} predicted, {told}"


# ---- parameter counts, which have a table of their own


def _listed(page: Data) -> list[Data]:
    """The rows of the long table: all but the catalogue's, and times, which have one of their own."""
    return [row for row in page["rows"] if row["source"] not in {CATALOGUE, TIMES}]


def _counted(page: Data) -> list[Data]:
    return [row for row in page["rows"] if row["source"] == CATALOGUE]


def _counted_words(page: Data) -> str:
    rows = _counted(page)
    same = sum(row["status"] == "matches" for row in rows)
    return f"{same} of {len(rows)} parameter counts of the catalogue's models are matched exactly"


def _parameters(page: Data) -> Iterator[str]:
    yield "## Parameter counts"
    yield ""
    yield from _paragraph(
        f"{_counted_words(page)}, in elements.",
        "`parameters-*` were worked out from the dims elsewhere and are carried in `configs/models/`;",
        "`checkpoint-*` are the elements of all tensors of a checkpoint, itemised.",
    )
    yield ""
    rows = ((row["id"], _published(row), _predicted(row), row["status"], row["reason"]) for row in _counted(page))
    yield markdown_table(("count", "published", "predicted", "status", "made of"), rows)


# ---- answers


def _fused(page: Data) -> Iterator[str]:
    found = page["fused"]
    tier, wide = found["as_measured"], found["beyond"]
    yield f"## The +{found['published_gb']} GB under a fused kernel"
    yield ""
    yield from _paragraph(
        "The source does not say which kernel served the absorbed form, nor at which sequence length and degree. The",
        "readings tried are in `configs/evidence/questions.yaml`. On the paper's metric and grid",
        f"{tier['priced']} were priced and {len(tier['within_5_percent'])} come within 5 %. The nearest:",
    )
    yield ""
    yield from _candidates(tier["nearest"])
    yield ""
    units = "; ".join(f"{at}: {count:.2f}" for at, count in found["in_score_matrices"])
    yield from _paragraph(
        f"The difference in tensors of S x S over a rank's heads (bf16), which any reading has to explain: {units}.",
        "Not priced, because no such kernel or recomputation is modelled yet: a fused scale-mask-softmax that works in",
        "place, attention in chunks, recomputed attention.",
    )
    yield ""
    one = [c for c in wide["within_5_percent"] if c["read"] == "allocated peak" and c["at"]["layers"] == 1]
    yield from _paragraph(
        "With other metrics, longer sequences, stacks of 4 blocks, 16 heads and SP 1 and 2 as well,",
        f"{wide['priced']:,} readings were priced and {len(wide['within_5_percent'])} come within 5 %.",
        f"So many readings also come within 5 % of {wide['whole_numbers_from_10_to_30_hit']} of the 21 whole numbers",
        "from 10 to 30 GB, so none of them is shown to be what was run. Those on the allocated peak of one block:",
    )
    yield ""
    yield from _candidates(one)


def _sent(page: Data) -> Iterator[str]:
    yield "## What forward sends, counted three ways"
    yield ""
    yield from _paragraph(
        "Payload is what a rank hands to its collectives. Wire is what a rank sends, and this is what a network sees:",
        "(P-1)/P of an all-to-all's payload, P-1 times what a gather is handed. The paper's count takes every",
        "all-to-all at 2(P-1)/P of its payload, twice what is sent, as if what a rank receives were added, and the",
        "latent once as it is handed over, which is 1/(P-1) of what its gather sends. So it favours a gather against",
        "all-to-alls, and its ratio is above what a network gains from LAGA. MB of 1e6 bytes, one rank.",
    )
    yield ""
    rows = (
        (found["row"], _number(found["published"]), *(_way(found, way) for way in ("printed_way", "payload", "wire")))
        for found in page["sent"]
    )
    yield markdown_table(("row", "printed", "as the paper counts", "payload", "wire: what a network sees"), rows)


def _way(found: Data, way: str) -> str:
    return f"{found[way]:.3f}" if found["unit"] == "ratio" else f"{found[way] / 1e6:,.2f}"


def _candidates(found: Iterable[Data]) -> Iterator[str]:
    rows = ((c["of"], c["against"], c["device"], _at(c["at"]), f"{c['gb']:.2f} GB") for c in found)
    yield markdown_table(("absorbed side", "explicit side", "device", "at", "difference"), rows)


def _at(at: Data) -> str:
    return ", ".join(f"{name.removeprefix('dims.')} {value}" for name, value in at.items() if name != "layers")


def _regression(page: Data) -> Iterator[str]:
    yield "## What the larger peak is made of"
    yield ""
    yield from _paragraph(
        "Absorbed less explicit at the allocated peak, GB (1e9 bytes), sequence 16384, SP 8, eager. The algebra is",
        "`n x d_c intermediates`, less what it replaces in `everything else`. Einsum's copy of the probabilities is",
        "saved: at the peak of one block it is already freed, and every block that waits for its backward holds one.",
        "Softmax workspace counts once.",
    )
    yield ""
    groups = list(page["regression"][0]["groups"])
    rows = (
        (share["device"], str(share["layers"]), *(_gb(share["groups"][name]) for name in groups), _gb(share["total"]))
        for share in page["regression"]
    )
    yield markdown_table(("device", "blocks", *groups, "total"), rows)


def _gb(amount: int) -> str:
    return "0" if amount == 0 else f"{amount / 1e9:+,.3f}"


def _regimes(page: Data) -> Iterator[str]:
    yield "## Where absorbed is smaller than explicit"
    yield ""
    yield from _paragraph(
        "The largest latent rank d_c for which absorbed needs no more than explicit, the other widths DeepSeek-V3's",
        "(k 128, r 64, v 128; its d_c is 512), S 16384, workspace of the 910B. The formula gives d_c at equality,",
        "solved from the polynomials of the two programs at the moments that hold there (b 1). 0: for no rank.",
        "-: no formula, because a kernel's workspace rounds or nothing crosses. Symbols: `mla-cost explain`.",
    )
    yield ""
    heads = ("kernel", "SP", "heads per rank", "quantity", "largest d_c", "d_c at equality")
    yield markdown_table(heads, _merged(page["boundaries"]))
    yield ""
    for found in page["sequence_boundaries"]:
        below = "for no S" if found["root"] <= 0 else f"for S below {found['root']:,.0f}"
        yield from _paragraph(
            f"- {found['variant']}, SP {found['sp']}, {found['heads_per_rank']} heads per rank: absorbed saves",
            f"`{found['difference']}` bytes more, negative for S below `{found['formula']}`: {below} at DeepSeek-V3.",
        )
    yield ""
    yield from _paragraph(
        "Over the catalogue's models, at S 16384 and the same degrees, absorbed is smaller here and nowhere else that",
        "was tried. In order `bsht` it is explicit whose softmax works on strided scores and needs one more S x S:",
    )
    yield ""
    yield markdown_table(("kernel", "quantity", "SP", "absorbed / explicit", "models"), _smaller(page["smaller"]))


def _merged(boundaries: Iterable[Data]) -> Iterator[tuple[str, ...]]:
    """Variants that share everything on one line."""
    variants: dict[tuple[str, ...], list[str]] = {}
    for found in boundaries:
        formula = f"`{found['formula']}`" if found["formula"] else "-"
        where = (str(found["sp"]), str(found["heads_per_rank"]), found["quantity"])
        variants.setdefault((*where, f"{found['largest']:,}", formula), []).append(found["variant"])
    for row, names in variants.items():
        yield "; ".join(names), *row


def _smaller(found: Iterable[Data]) -> Iterator[tuple[str, ...]]:
    def kind(row: Data) -> tuple[str, str, int]:
        return row["variant"], row["quantity"], row["sp"]

    for (variant, quantity, sp), rows in groupby(sorted(found, key=kind), key=kind):
        listed = list(rows)
        ratios = [row["ratio"] for row in listed]
        names = ", ".join(row["model"] for row in listed) if len(listed) <= 8 else f"{len(listed)} models"
        yield variant, quantity, str(sp), f"{min(ratios):.3f} to {max(ratios):.3f}", names


def _gather(page: Data) -> Iterator[str]:
    found = page["gather"]
    yield "## Where LAGA stops saving bytes"
    yield ""
    yield from _paragraph(
        f"Forward, LAGA sends less than explicit while heads per rank exceed `{found['formula']}`, which is",
        f"{found['root']:g} at DeepSeek-V3: from two heads per rank on. At one head per rank it sends",
        f"`{found['extra_formula']}` bytes more (b 1):",
    )
    yield ""
    rows = (
        (str(sp), str(heads), f"{ours:,}", f"{theirs:,}", f"{ours - theirs:+,}", f"{ours / theirs:.3f}")
        for sp, heads, ours, theirs in found["cells"]
    )
    yield markdown_table(("SP", "heads per rank", "LAGA sends, B", "explicit sends, B", "difference, B", "ratio"), rows)
