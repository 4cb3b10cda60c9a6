"""`mla-cost plan`: the verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from mla_cost.cli.flags import Given, command


@command
def plan(given: Given) -> None:
    """Price a rank of a whole model, or one MLA block, in every form on devices and say whether it fits."""
    from mla_cost.errors import InputError

    settings = given.settings()
    if given["rank"] is not None:
        from mla_cost.pricing.whole_model import with_rank

        settings = with_rank(settings, given["rank"])
    settings, pack = _packed(settings, given["documents"])
    if given["require_fit"] and not settings.device:
        raise InputError("a fit needs a device to fit on; name one with --device", field="--require-fit")
    if given["explain_term"] is not None:
        _explain(settings, given["explain_term"], given["output"])
        raise typer.Exit
    if given["plot"] is not None:
        _check_picture(given["plot"])
    elif given["picture"] != "memory":
        raise InputError("says which picture; name its file with --plot", field="--picture", value=given["picture"])
    answer = _answer(settings, given)
    refused = why_refused(answer)
    _print(answer, given, pack(answer.inputs["sp"]) if pack else None, refused=bool(refused))
    if refused:
        raise InputError(refused)
    if given["plot"] is not None:
        _draw(settings, answer, given["plot"], given["picture"])
    if given["trace"] is not None:
        _trace(settings, given["trace"])
    if given["snapshot_out"] is not None:
        from mla_cost.studies.snapshot import write_timeline

        write_timeline(settings, given["snapshot_out"])
    raise typer.Exit(1 if given["require_fit"] and not _fits(answer) else 0)


def _packed(settings: Any, lengths: str | None) -> tuple[Any, Callable[[int], Mapping[str, Any]] | None]:
    """The plan of a pack of documents, and what is told of them over so many ranks; nothing where there are none."""
    if lengths is None:
        return settings, None
    from mla_cost.studies import documents

    settings, found = documents.packed(settings, lengths)
    return settings, lambda sp: documents.of_plan(settings, found, sp).to_dict()


def _answer(settings: Any, given: Given) -> Any:
    """What is priced, with levers where they are asked for."""
    from mla_cost import api
    from mla_cost.cli import progress
    from mla_cost.errors import InputError

    levers, refused, output = given["levers"], given["refused_levers"], given["output"]
    if (levers or refused) and output not in {"table", "json"}:
        raise InputError("levers print as a table or as JSON", field="--format", value=output, allowed="table, json")
    with progress.shown("plan"):
        return api.with_levers(settings, refused=refused) if levers or refused else api.answer(settings)


def _print(answer: Any, given: Given, pack: Mapping[str, Any] | None, *, refused: bool) -> None:
    """The answer in the format asked for. pack: its documents. refused: no row has numbers, so a table is empty."""
    output = given["output"]
    if given["quiet"]:
        return
    if output == "json":
        text: str = answer.to_json()
        sys.stdout.write((_with(text, pack) if pack else text) + "\n")
    elif output in {"csv", "markdown"}:
        sys.stdout.write(_rows(answer, output))
    elif not refused:
        from mla_cost.views import table

        beside = _beside(answer.inputs["published"])  # before anything is printed: it refuses what is not there
        table.show(answer, bars=given["bars"], notes=not given["no_notes"])
        if pack:
            from mla_cost.views import documents_table

            documents_table.show(pack)
        if beside:
            from mla_cost.views import evidence

            evidence.show_beside(answer.inputs["published"], beside)


def _with(text: str, pack: Mapping[str, Any]) -> str:
    import json

    return json.dumps({**json.loads(text), "documents": pack}, indent=2)


def _beside(published: str | None) -> list[dict[str, Any]]:
    """The published figures that the plan names, each beside what is predicted for it."""
    if published is None:
        return []
    from mla_cost.checks.evidence import beside

    return [row._asdict() for row in beside(published)]


def _check_picture(plot: Path) -> None:
    from mla_cost.cli import plotting

    plotting.check(plot)


def _draw(settings: Any, answer: Any, plot: Path, what: str) -> None:
    from mla_cost.cli import plotting

    plotting.draw_plan(settings, answer, plot, what)


def _trace(settings: Any, path: Path) -> None:
    """The first form on the first device, as a file for a trace viewer."""
    from mla_cost import api
    from mla_cost.errors import InputError
    from mla_cost.views.trace import trace_json

    text = trace_json(api.trace(settings))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--trace", value=str(path)) from None


def _explain(settings: Any, term: str, output: str) -> None:
    from mla_cost import api
    from mla_cost.errors import InputError

    if output not in {"table", "json"}:
        raise InputError("terms print as a table or as JSON", field="--format", value=output, allowed="table, json")
    terms = api.terms(settings, term)
    if output == "json":
        from mla_cost.results import terms_json

        sys.stdout.write(terms_json(terms) + "\n")
    else:
        from mla_cost.views.terms import show

        show(terms)


def _rows(answer: Any, output: str) -> str:
    """The row model of sweeps, for one plan."""
    from mla_cost.results.columns import plan_columns, plan_rows
    from mla_cost.views import rows

    write = rows.csv_text if output == "csv" else rows.markdown_text
    return write(plan_columns(answer.inputs["scope"]), plan_rows(answer))


def why_refused(answer: Any) -> str:
    """Why no row has an answer; empty where one has. A reason that several forms share is reported once."""
    reasons: dict[str, list[str]] = {}
    for row in answer.results:
        if row.verdict is None or row.verdict.status != "illegal":
            return ""
        forms = reasons.setdefault(row.verdict.reason, [])
        if row.form not in forms:
            forms.append(row.form)
    return "; ".join(f"{', '.join(forms)}: {reason}" for reason, forms in reasons.items())


def _fits(answer: Any) -> bool:
    """Whether a form fits on every stage, also where one of them was asked for."""
    fitting = (row for row in answer.results if row.verdict.status in {"fits", "tight"})
    return any(_worst(row) + answer.inputs["other_memory"] <= row.verdict.usable_bytes for row in fitting)


def _worst(row: Any) -> Any:
    """The allocated peak of the stage that needs most. Bytes."""
    return max(stage.allocated_peak_bytes for stage in row.memory.stages or (row.memory,))
