"""Which program runs: every form with each of its schemes and the kernel that trains it, and where it can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mla_cost.declared.layers import named as declared_as
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.inputs.settings import PlanSettings
from mla_cost.mesh.degrees import Parallel
from mla_cost.pricing.automatic import with_kernel
from mla_cost.pricing.resolve import Illegal, named, resolve, scheme_of
from mla_cost.pricing.whole_model import state_settings
from mla_cost.studies.longest.needs import smallest
from mla_cost.studies.search.options import SearchQuestion
from mla_cost.weights.states import sharding_problem


class ProgramChoice(NamedTuple):
    """One form with one scheme; the settings name its kernel and value padding. usual: the scheme is its own."""

    form: str
    scheme: str
    settings: PlanSettings
    usual: bool


def programs(question: SearchQuestion) -> tuple[list[ProgramChoice], dict[str, str]]:
    """Every form with the schemes that it can have, and why a scheme that the user named makes no program.

    A scheme of an attention call that the profile has not is no candidate unless it is named.
    """
    found, refused = [], {}
    profile = named("profile", question.settings.profile, PROFILES)
    possible = tuple(
        name
        for name, scheme in SCHEMES.items()
        if scheme.offered and (not scheme.attends or profile.name in scheme.profiles)
    )
    for form in question.settings.form:
        base, _ = with_kernel(question.model, question.device, form, _bare(question))
        for scheme in question.axes.get("scheme", possible):
            try:
                scheme_of(form, scheme)
            except Illegal as error:
                if "scheme" in question.axes:
                    refused[f"{form} with {scheme}"] = str(error)
                continue
            usual = scheme == scheme_of(form, None).name
            found.append(
                ProgramChoice(form, scheme, base.model_copy(update={"form": (form,), "scheme": scheme}), usual)
            )
    return found, refused


def _bare(question: SearchQuestion) -> PlanSettings:
    """The plan without the degrees and the scheme that it came with: they are searched."""
    update: dict[str, Any] = {
        "tp": 1,
        "sp": 1,
        "pp": 1,
        "ep": 1,
        "etp": 1,
        "dp": 1,
        "micro_batches": 1,
        "virtual_stages": 1,
    }
    update |= {"scheme": None, "pipeline_layout": None, "first_layers": None, "last_layers": None}
    return question.settings.model_copy(update=update)


def one_rank_twins(found: Sequence[ProgramChoice]) -> set[int]:
    """The programs, by config, that on one rank of a sequence are another one of the same form: nothing moves there."""
    first: dict[str, int] = {}
    for at, program in sorted(enumerate(found), key=lambda item: not item[1].usual):
        first.setdefault(program.form, at)
    return set(range(len(found))) - set(first.values())


def refused_degrees(
    question: SearchQuestion, program: ProgramChoice, pairs: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Of these tp and sp, those at which the form or its scheme has no program, with the reason."""
    asked = {(tp, sp): program.settings.model_copy(update={"tp": tp, "sp": sp}) for tp, sp in pairs}
    found = {pair: _refusal(question, program, settings) for pair, settings in asked.items()}
    return {pair: reason for pair, reason in found.items() if reason}


def refused_policies(question: SearchQuestion, program: ProgramChoice) -> dict[str, str]:
    """Of the recomputation policies that are searched, those that the program cannot have, with the reason."""
    few = smallest(program.settings)
    asked = {policy: few.model_copy(update={"remat": policy}) for policy in question.values("remat")}
    found = {policy: _refusal(question, program, settings) for policy, settings in asked.items()}
    return {policy: reason for policy, reason in found.items() if reason}


def _refusal(question: SearchQuestion, program: ProgramChoice, settings: PlanSettings) -> str:
    layer = declared_as("layer")  # every model's layers and every profile have one; degrees are refused alike in all
    try:
        resolve(question.model, program.form, settings, layer)
    except Illegal as error:
        return str(error)
    return ""


def refused_in_pipelines(question: SearchQuestion) -> dict[str, str]:
    """Of the ways to shard that are searched, those that no pipeline has, with the reason."""
    asked = {name: question.settings.model_copy(update={"sharding": name}) for name in question.values("sharding")}
    found = {name: sharding_problem(Parallel(pp=2), state_settings(settings)) for name, settings in asked.items()}
    return {name: reason for name, reason in found.items() if reason}
