"""Advice is a claim: what a refusal tells a user to do is done here, word for word, and has to work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import mla_cost
from mla_cost.inputs import catalog
from mla_cost.mesh.placement import even_layout
from mla_cost.results import Result

PLAN: dict[str, Any] = {"model": "moonlight-16b-a3b", "device": "h100-80gb", "form": "explicit", "seq_len": 4096}
STEPS = 4  # a way out may lead to the next refusal, a few times

Change = dict[str, Any]


def refusal(asked: Change) -> str:
    """Why a plan has no numbers; empty where it has."""
    try:
        (row,) = mla_cost.plan(**asked).results
    except mla_cost.InputError as error:
        return str(error)
    return row.verdict.reason if row.verdict is not None and row.verdict.status == "illegal" else ""


def number(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


# a field and its value, or values joined by `or`, as messages write them
ADVICE = (
    r"\b(?:change|set) (\w+)(?: from \d+)? to (-?\w+)",
    r", or (\w+) to (-?\w+)",
    r"the nearest (\w+) (?:below|above) is (\d+)",
    (
        r"\b(?:use|or) (profile|form|scheme|kernel|dtype|dispatcher|value_padding|shared_overlap|etp|scope|remat) "
        r"([\w-]+(?: or (?!profile)[\w-]+)*)"
    ),
    r"\b(?:ask for|its) (form|scheme) (?:is )?([\w-]+)",
    r"(?:belongs to|only) (profile) (\w+)",
)


def ways_out(message: str, asked: Change) -> Iterator[Change]:
    """Everything that the message tells to do, as changes of the plan."""
    for pattern in ADVICE:
        for field, values in re.findall(pattern, message):
            yield from ({field: number(value)} for value in values.split(" or "))
    yield from facts(message, asked)
    yield from layouts(message, asked)
    if "--scope attention" in message:
        profile = re.search(r"--scope attention --profile (\w+)", message)
        kept = {name: asked[name] for name in PLAN}
        yield {"only": {**kept, "scope": "attention", **({"profile": profile[1]} if profile else {})}}


def facts(message: str, asked: Change) -> Iterator[Change]:
    stated = re.search(r"; state (.*?), with --set facts", message)
    if stated:
        names = re.findall(r"\b[a-z_]+_[a-z_]+\b", re.sub(r"\([^)]*\)", "", stated[1]))
        yield {"facts": {**asked.get("facts", {}), **dict.fromkeys(names, 0)}}


def layouts(message: str, asked: Change) -> Iterator[Change]:
    for count, letter in re.findall(r"\bwrite (\d+) ([tm])\b", message):
        yield {"pipeline_layout": written(asked["pipeline_layout"], int(count), letter)}
    if "state first_layers, last_layers or a pipeline_layout" in message:
        model, parts = catalog.model(asked["model"]), asked["pp"] * asked.get("virtual_stages", 1)
        yield {"pipeline_layout": even_layout(model.num_layers or 0, model.num_mtp_layers or 0, parts)}


def written(layout: str, count: int, letter: str) -> str:
    """The layout with so many of a letter: the last part has what is missing, before the loss."""
    bare = layout.replace(letter, "")
    if letter == "m":
        return bare.replace("L", "m" * count + "L")
    first, *others = bare.split("|")
    each, more = divmod(count, len(others) + 1)
    rest = "|".join(part.replace("m", "").replace("L", "") + "t" * each for part in others)
    return f"{first}{'t' * (each + more)}|{rest}{'m' * bare.count('m')}{'L' * bare.count('L')}"


def after(asked: Change, change: Change) -> Change:
    if "only" in change:
        return dict(change["only"])
    return {**asked, **change}


def followed(asked: Change, steps: int = STEPS) -> list[Change]:
    """The changes that lead to an answer, each of them what the message before it says; empty where none does."""
    message = refusal(asked)
    for change in ways_out(message, asked):
        then = after(asked, change)
        if not refusal(then):
            return [change]
        more = followed(then, steps - 1) if steps > 1 else []
        if more:
            return [change, *more]
    return []


V3: Change = {"model": "deepseek-v3"}
REFUSED: list[Change] = [
    {"tp": 3},
    {"tp": 32},
    {"sp": 3},
    {"ep": 7, "dp": 7},
    {"ep": 3},
    {"pp": 64},
    {"dp": 2, "ep": 4},
    {"pp": 2, "first_layers": 4, "last_layers": 4},
    {"pp": 3, "last_layers": 4},
    {"virtual_stages": 2},
    {"etp": 3},
    V3 | {"pp": 2, "pipeline_layout": "Et*31|t*30L"},
    V3 | {"pp": 2, "pipeline_layout": "Et*31|t*30mmL"},
    V3 | {"pp": 2, "pipeline_layout": "Ett|tL", "mtp": 0},
    {"pp": 3, "pipeline_layout": "Et*13|t*14L"},
    {"form": "absorbed", "profile": "megatron"},
    {"form": "laga", "profile": "megatron"},
    {"profile": "megatron", "kernel": "eager"},
    {"profile": "megatron", "dtype": "fp32"},
    {"profile": "megatron", "dispatcher": "deepep"},
    {"profile": "megatron", "dispatcher": "deepep", "ep": 4, "dp": 4, "etp": 2, "tp": 2},
    {"dispatcher": "deepep"},
    {"shared_overlap": "on"},
    {"rope_fusion": "off"},
    {"cross_entropy": "te-fp32"},
    {"cross_entropy": "native-fused"},
    {"remat": "mla_up_proj"},
    {"remat": "moe_act"},
    {"main_weights": "remainders", "dtype": "fp32"},
    {"profile": "megatron", "shared_overlap": "on", "remat": "shared_experts"},
    {"form": "laga", "scheme": "ulysses"},
    {"form": "absorbed", "scheme": "ulysses"},
    {"value_padding": "qk", "scope": "attention", "dims": {"v_head_dim": 256}, "kernel": "flash"},
    {"scheme": "ring", "sp": 2},
    {"scheme": "latent-gather", "sp": 2, "profile": "megatron"},
    {"scope": "attention", "sp": 3},
    {"scope": "attention", "sp": 32, "model": "deepseek-v2-lite"},
    {"scope": "attention", "profile": "megatron"},
    {"scope": "attention", "tp": 2},
    {"model": "kimi-linear-48b-a3b", "profile": "megatron"},
    {"model": "glm-5.2", "profile": "megatron", "form": "absorbed"},
    {"model": "glm-5.2", "profile": "megatron", "form": "laga"},
    {"model": "deepseek-v3.2", "profile": "megatron"},
]


@pytest.mark.parametrize("changes", REFUSED, ids=lambda change: ", ".join(f"{k} {v}" for k, v in change.items()))
def test_a_refusal_tells_what_works(changes: Change) -> None:
    asked = PLAN | changes
    message = refusal(asked)
    assert message, "nothing is refused here"
    assert followed(asked), message


@pytest.mark.parametrize("profile", ["reference", "megatron"])
@pytest.mark.parametrize("model", catalog.model_names())
def test_a_model_that_is_not_priced_asks_for_all_at_once(model: str, profile: str) -> None:
    """One step is enough: the facts that are asked for, or one block alone. Models that are priced ask for nothing."""
    asked = PLAN | {"model": model, "profile": profile}
    message = refusal(asked)
    if profile == "megatron" and message and not refusal(PLAN | {"model": model}):
        return  # what Megatron alone refuses is followed above
    if not message:
        return
    offered = list(ways_out(message, asked))
    facts = [change for change in offered if "facts" in change]
    alone = [change for change in offered if "only" in change]
    assert [refusal(after(asked, change)) for change in alone] == [""], message
    if "whatever is stated" in message:
        assert not facts, message
        return
    (stated,) = facts
    then = refusal(after(asked, stated))
    assert not then or profile == "megatron", f"{message}\n{then}"


@pytest.mark.parametrize("form", ["absorbed", "laga"])
@pytest.mark.parametrize("model", ["glm-5.2", "deepseek-v3.2"])
def test_megatron_trains_sparse_models_absorbed_and_says_so(model: str, form: str) -> None:
    asked = PLAN | {"model": model, "profile": "megatron", "form": form}
    message = refusal(asked)
    assert "Megatron-Core trains models with an indexer in the absorbed form, with its sparse attention" in message
    assert "that is not priced yet; use profile reference" in message
    assert "explicit" not in message
    (reported,) = mla_cost.plan(**asked | {"form": "explicit", "facts": {"indexer_layer_bytes": 0}}).results
    assert any("absorbed form" in note for note in reported.notes)


def test_a_form_that_is_never_priced_asks_for_nothing() -> None:
    """Facts first and a refusal after was a walk in a circle."""
    assert "indexer_layer_bytes" not in refusal(PLAN | {"model": "glm-5.2", "profile": "megatron", "form": "absorbed"})
    never = refusal(PLAN | {"model": "longcat-flash-lite-sparse"})
    assert never.startswith("a layer of longcat-flash-lite-sparse holds 2 MLA blocks, and such layers are not priced")
    assert "state" not in never.replace("stated", "")


class TestModulesThatPredictFurther:
    """`mtp` says how many there are, whatever the model's file says."""

    def row(self, **changes: Any) -> Result:
        (found,) = mla_cost.plan(**PLAN | V3 | changes).results
        return found

    def test_left_out_or_another_number(self) -> None:
        own, none, two = self.row(), self.row(mtp=0), self.row(mtp=2)
        assert self.row(mtp=1).memory == own.memory
        assert none.memory == self.row(facts={"num_mtp_layers": 0}).memory
        modules = [(row.memory.stages or ())[0].mtp_modules for row in (none, own, two)]
        assert modules == [0, 1, 2]
        peaks = [row.memory.allocated_peak_bytes or 0 for row in (none, own, two)]
        assert peaks == sorted(set(peaks))

    def test_a_recipe_without_it(self) -> None:
        """DeepSeek-V3 over 2 stages without MTP, by the layout that a recipe writes."""
        row = self.row(mtp=0, pp=2, pipeline_layout="Et*31|t*30L")
        assert [(stage.layers, stage.mtp_modules) for stage in row.memory.stages or ()] == [(31, 0), (30, 0)]

    def test_of_a_sweep_and_a_search(self) -> None:
        study = mla_cost.sweep(**PLAN | V3, over={"mtp": [0, 1]})
        found = [row["required_bytes"] for row in study]  # type: ignore[attr-defined]
        assert found == [self.row(mtp=count).verdict.required_bytes for count in (0, 1)]  # type: ignore[union-attr]
        asked: Change = {
            "model": "deepseek-v3",
            "device": "h100-80gb",
            "devices": 512,
            "global_batch": 512,
            "seq_len": 4096,
        }
        best = mla_cost.search(**asked, mtp=0, tp=8, remat="full", sharding="distributed", form="explicit", sp=1).best
        assert best is None or "m" not in (best.pipeline_layout or "")
