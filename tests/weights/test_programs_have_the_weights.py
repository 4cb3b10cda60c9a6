"""Weights read off the programs and weights counted by hand agree, for every catalogue model that has programs."""

from __future__ import annotations

from collections import Counter

import pytest

import mla_cost
from mla_cost.inputs import catalog
from mla_cost.inputs.config import ModelConfig
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import stages
from mla_cost.pricing.stage_weights import RankWeights, WeightsAsked
from mla_cost.pricing.unpriced import refusal
from mla_cost.weights.held import Held
from mla_cost.weights.parameters import (
    Weight,
    embedding_weight,
    final_norm_weight,
    head_weight,
    layer_kinds,
    layer_weights,
    mtp_weights,
    parameters,
)

# what a user states of parts that no dims describe
STATED = {"other_layer_parameters": 11, "other_layer_bytes": 0, "indexer_layer_bytes": 0, "uncounted_parameters": 7}
ALONE = WeightsAsked("explicit", "reference", "replicated", "bf16", vocab_multiple=1, tp=1, ep=1, etp=1)


def model_of(name: str) -> ModelConfig:
    model = catalog.model(name)
    asked = {fact: value for fact, value in STATED.items() if getattr(model, fact) is None}
    if model.uncounted_parts is None:
        asked.pop("uncounted_parameters", None)
    return model.model_copy(update=asked)


PRICED = [name for name in catalog.model_names() if refusal(model_of(name)) is None]


def test_hardly_a_model_is_left_out() -> None:
    assert len(PRICED) >= 20
    assert {"deepseek-v3", "glm-5", "kimi-linear-48b-a3b", "minicpm3-4b", "a.x-k2"} <= set(PRICED)


def held(model: ModelConfig, asked: WeightsAsked = ALONE) -> list[Held]:
    alone = Parallel()
    chunks = stages(alone, model.num_layers or 0, model.num_mtp_layers or 0)[0]
    return [*RankWeights(model, asked).each(chunks, 1)]


def counted(model: ModelConfig) -> list[Weight]:
    ends = [embedding_weight(model), final_norm_weight(model)]
    ends += [] if model.tied_embeddings else [head_weight(model)]
    layers = [weight for kind in layer_kinds(model) for weight in layer_weights(model, kind)]
    modules = [weight for _ in range(model.num_mtp_layers or 0) for weight in mtp_weights(model)]
    return [*layers, *modules, *ends]


@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
@pytest.mark.parametrize("name", PRICED)
def test_programs_hold_what_is_counted_weight_by_weight(name: str, form: str) -> None:
    model = model_of(name)
    programs = Counter((found.name, found.elements, found.trained) for found in held(model, ALONE._replace(form=form)))
    assert programs == Counter((weight.name, weight.elements, weight.trained) for weight in counted(model))


@pytest.mark.parametrize("name", [name for name in PRICED if model_of(name).dims.qk_rope_head_dim])
def test_megatrons_programs_add_its_norm_of_a_query_without_a_latent(name: str) -> None:
    """docs/megatron.md: a projection of the query has a norm of its own there, and no other model of it has one."""
    model = model_of(name)
    found = held(model, ALONE._replace(profile="megatron"))
    own = Counter((each.name, each.elements) for each in found)
    own.subtract(Counter((weight.name, weight.elements) for weight in counted(model)))
    blocks = (model.num_mla_layers or 0) + (model.num_mtp_layers or 0)
    more = {} if model.dims.q_lora_rank else {("attention.q_norm", model.dims.hidden): blocks}
    assert {key: count for key, count in own.items() if count} == more


def test_the_sums_of_a_stage_are_those_of_its_weights() -> None:
    model = model_of("deepseek-v3")
    asked = ALONE._replace(tp=4, ep=8, etp=2, vocab_multiple=128)
    chunks = stages(Parallel(), 61, 1)[0]
    weights = RankWeights(model, asked)
    each, sums = [*weights.each(chunks, 2)], weights.parameters(chunks, 2)
    assert sums.elements == sum(found.elements for found in each if found.trained)
    assert sums.expert == sum(found.elements for found in each if found.holder == "expert") == 59 * 32 * 3 * 7168 * 1024
    assert sums.tp_summed == sum(found.elements for found in each if found.over_tp and found.trained)
    assert sums.shared == 129_536 // 4 * 7168  # padded to a multiple of 512
    assert sums.buffers == sum(found.elements for found in each if not found.trained) == 59 * 256


def test_a_module_apart_from_the_loss_has_a_head_of_its_own() -> None:
    """Its program runs one: NVIDIA/Megatron-LM@d98e8a64 models/gpt/gpt_model.py, `post_process or mtp_process`."""
    layout = "E" + "t" * 61 + "|m|L|"
    parallel = Parallel(pp=4, layout=layout)
    weights = RankWeights(model_of("deepseek-v3"), ALONE)
    modules, loss = ({held.name: held.elements for held in weights.each(chunks, 4) if held.part == "ends"}
                     for chunks in stages(parallel, 61, 1)[1:3])  # fmt: skip
    assert modules == {"embedding": 129_280 * 7168, "head": 129_280 * 7168}
    assert loss == {"final_norm": 7168, "head": 129_280 * 7168}


def test_a_plan_and_the_count_of_a_model_say_the_same() -> None:
    (row,) = mla_cost.plan("kimi-k2", (), form="explicit", sharding="ddp", seq_len=4096, vocab_multiple=1).results
    model = catalog.model("kimi-k2")
    assert row.memory.parameter_bytes == 2 * (parameters(model).total - 60 * 384)  # less the correction biases
