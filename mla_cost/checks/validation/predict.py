"""What the model says of a cell: the executor's spec as a plan's settings, resolved as any plan is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mla_cost.checks.reference.spec import Dims, Spec
from mla_cost.errors import InputError
from mla_cost.inputs.config import AttentionDims, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE
from mla_cost.language.evaluate import Evaluation
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.evaluation import evaluation
from mla_cost.pricing.resolve import Point, resolve

# The settings that a plan and a cell both have, under the same names.
_SETTINGS = tuple(name for name in TABLE if name in Spec.__dataclass_fields__ and name not in {"form", "dims"})


@lru_cache(maxsize=1024)
def _model(dims: Dims, **facts: int) -> ModelConfig:
    widths = AttentionDims(
        hidden=dims.hidden,
        heads=dims.heads,
        q_lora_rank=dims.q_lora_rank,
        kv_lora_rank=dims.kv_lora_rank,
        qk_nope_head_dim=dims.nope,
        qk_rope_head_dim=dims.rope,
        v_head_dim=dims.value,
    )
    return ModelConfig(name="cell", title="cell", dims=widths, **facts)


def point(spec: Spec) -> Point:
    """The program and the symbol values of a cell.

    Raises:
        Illegal, InputError: as `mla_cost.pricing.resolve.resolve`.

    """
    settings = {name: getattr(spec, name) for name in _SETTINGS}
    settings |= {"cross_entropy": spec.loss, "down_projections": "sharded" if spec.sharded_down else "replicated"}
    if spec.layer == "attention":
        return asked_point(spec.form, spec.dims, **settings)
    whole = PlanSettings.model_validate({**settings, "scope": "model", "vocab_multiple": 1})
    return resolve(_model(spec.dims, **_facts(spec)), spec.form, whole, spec.layer)


def _facts(spec: Spec) -> dict[str, int]:
    """What a model says of its layers, from the widths of the cell."""
    shared, rest = divmod(spec.shared_ffn, spec.expert_ffn)
    if rest and spec.layer == "moe":
        raise InputError(
            "shared experts have the width of the routed ones",
            field="shared_ffn",
            value=spec.shared_ffn,
            allowed=f"multiples of expert_ffn {spec.expert_ffn}",
        )
    return {
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "num_routed_experts": spec.experts,
        "num_experts_per_token": spec.experts_per_token,
        "moe_intermediate_size": spec.expert_ffn,
        "num_shared_experts": shared,
    }


def asked_point(form: str, dims: Dims, **settings: Any) -> Point:
    """As `point`, of what may be no cell of the executor's."""
    return resolve(_model(dims), form, PlanSettings.model_validate({"scope": "attention", **settings}))


def predicted(spec: Spec) -> Evaluation:
    """One block of the cell, evaluated."""
    return evaluation(point(spec))


def predicted_stack(spec: Spec, family: str = "none") -> BlockFigures:
    """All the cell's blocks, with the kernel workspace of a device family."""
    return figures(point(spec), family, spec.layers)
