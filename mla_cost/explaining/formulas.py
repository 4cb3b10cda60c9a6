"""The formula tables of docs/formulas.md, read out of the programs.

`python -m mla_cost.explaining.formulas` prints the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.errors import InputError
from mla_cost.explaining.explain import Explanation, Summand, explain
from mla_cost.language.dims import product_text
from mla_cost.language.program import Kernel
from mla_cost.results import markdown

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "sp > 1, more than one head per rank": (),
    "sp = 1": ("sp",),
    "sp > 1, one head per rank": ("heads",),
}
TITLE = "Formulas"
OPENING = """
Read out of the programs by `make docs`; do not edit. A test fails when this page is stale.

Every table is for one rank and one block in bf16, in the symbols of [notation.md](notation.md); S is s\\*P and n is
l\\*P where heads are divided over the ranks, so S\\*l = s\\*n. A term is a product in bytes (or flops); the tensor it
belongs to stands beside it. `mla-cost explain` gives the same for any other variant, and the value of each term for a
model.

*Flops*: a multiply-add counts as two. Attention (the terms in S^2) is counted as the full square, which is what kernel
{kernel} runs; a model's own count takes half of these terms where attention is causal.

*Peak*: the largest of the sums that are listed. The first table holds the moments with most S x S tensors alive: the
longer the sequence, the surer that the peak is one of them. A moment is named by its op and by the tensor made last.

The tables hold for any number of sequences b. Where b = 1 some tensors bear another name (a view where a copy was)
and a few moments of the peak change; `mla-cost explain FORM --one batch` shows that variant.
"""
SHORT_NOTE = "Moments that can be the peak of a short sequence:"
FUSED_NOTE = """
What one block keeps at sp > 1 with more than one head per rank. V is padded to the width of Q and K where the
implementation takes one width only. What a kernel holds inside backward is no tensor and not in here.
"""
PADDINGS = {"none": ", V as it is", "qk": ", V padded"}


def page() -> str:
    """docs/formulas.md as text."""
    parts = [f"# {TITLE}", OPENING.strip().format(kernel=defaults.ATTENTION_KERNEL), *_contents()]
    seen: dict[tuple[str, ...], str] = {}
    for form in FORMS:
        parts += _form(form, seen)
    return "\n\n".join([*parts, *_fused()]) + "\n"


def _contents() -> Iterator[str]:
    yield "\n".join([*(f"- [{form}](#{form})" for form in FORMS), "- [Saved under fused kernels](#fused)"])


def _form(form: str, seen: dict[tuple[str, ...], str]) -> Iterator[str]:
    """The tables of a form; a variant that is another form's, term for term, is only named."""
    declared, usual = FORMS[form], explain(form, "saved")
    yield f"## {form}"
    yield f"{form}: {declared.title}. Scheme {usual.scheme}, kernel {usual.kernel}. Source: {declared.source}."
    for name, one in VARIANTS.items():
        yield f"### {form}, {name}"
        tables = tuple(_tables(form, one))
        twin = seen.setdefault(tables, f"{form}, {name}")
        if twin == f"{form}, {name}":
            yield from tables
        else:
            yield f"Term for term the same as {twin}."


def _tables(form: str, one: Sequence[str]) -> Iterator[str]:
    saved = explain(form, "saved", one=one)
    yield "**Saved**"
    yield markdown.table(("tensor", "bytes"), ((term.tensor, _code(term.text)) for term in saved.terms))
    yield f"Together: {_code(merged(saved.terms))}"
    yield "**Payload and wire**"
    yield _traffic(form, one)
    yield "**Flops**"
    yield _flops(explain(form, "flops", one=one).terms)
    yield "**Peak**"
    yield from _peak_events(explain(form, "peak", one=one))


def _traffic(form: str, one: Sequence[str]) -> str:
    payload, wire = (explain(form, quantity, one=one).terms for quantity in ("payload", "wire"))
    if not payload:
        return "Nothing moves on one rank."
    rows = ((p.tensor, p.where, _code(p.text), _code(w.text)) for p, w in zip(payload, wire, strict=True))
    return markdown.table(("tensor", "collective", "payload, bytes handed over", "wire, bytes sent"), rows)


def _flops(terms: Iterable[Summand]) -> str:
    found: dict[str, dict[str, list[Summand]]] = {}
    for term in terms:
        found.setdefault(term.tensor, {"forward": [], "backward": []})[term.where].append(term)
    rows = ((op, _code(merged(by["forward"])), _code(merged(by["backward"]))) for op, by in found.items())
    return markdown.table(("op", "forward", "backward"), rows)


def _peak_events(peak: Explanation) -> Iterator[str]:
    moments = (peak, *peak.others)
    squares = {it: sum(_squares(term) for term in it.terms) for it in moments}
    most = max(squares.values())
    yield _peak_event_table(it for it in moments if squares[it] == most)
    rest = [it for it in moments if squares[it] < most]
    if rest:
        yield SHORT_NOTE
        yield _peak_event_table(rest)


def _squares(term: Summand) -> int:
    """How many S x S a term holds for each head and sequence, in bytes."""
    positions = sum(factor.lower() == "s" for factor in term.factors)
    return int(term.factors[0]) if positions > 1 else 0


def _peak_event_table(moments: Iterable[Explanation]) -> str:
    rows = ((f"{it.moment}, at {it.terms[-1].tensor}", _code(merged(it.terms))) for it in moments)
    return markdown.table(("moment", "live bytes"), rows)


def _fused() -> Iterator[str]:
    yield '<a id="fused"></a>\n\n## Saved under fused kernels'
    yield FUSED_NOTE.strip()
    for kernel in KERNELS.values():
        if kernel.fused:
            for padding, words in PADDINGS.items() if kernel.pads(shared=False) else [("none", "")]:
                yield f"### {kernel.name}{words}"
                yield f"{kernel.name}: {kernel.title}."
                yield from (_under(form, kernel, padding) for form in FORMS)


def _under(form: str, kernel: Kernel, padding: str) -> str:
    try:
        terms = explain(form, "saved", kernel=kernel.name, value_padding=padding).terms
    except InputError as error:
        return f"{form}: {error}."
    return markdown.table((f"{form}: tensor", "bytes"), ((term.tensor, _code(term.text)) for term in terms))


# ---- text


def merged(terms: Iterable[Summand]) -> str:
    """The sum of terms as text, equal products added up, in the order in which they first appear."""
    counts: dict[tuple[str, ...], int] = {}
    for term in terms:
        number, *factors = term.factors
        counts[tuple(factors)] = counts.get(tuple(factors), 0) + int(number)
    return " + ".join(product_text((str(number), *factors)) for factors, number in counts.items())


def _code(text: str) -> str:
    return f"`{text}`" if text else "-"


if __name__ == "__main__":
    sys.stdout.write(page())
