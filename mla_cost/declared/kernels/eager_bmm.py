"""Eager attention without an avoidable copy: with a shared key, all heads of one position lie together."""

from mla_cost.declared.kernels.eager import PER_HEAD, TEXT
from mla_cost.language.program import Kernel

_TOGETHER = {"scores": "sbnd,tbd->bsnt", "output": "bsnt,tbd->sbnd", "order": "sbnd"}

KERNEL = Kernel(
    name="eager-bmm",
    title="eager, with operands ordered so that no batched product copies the probabilities",
    text=TEXT,
    shared_text=TEXT,
    fused=False,
    limits=(),
    source="docs/decisions/0001",
    layouts=dict.fromkeys(PER_HEAD, PER_HEAD["sbnd"]),
    shared_layouts=dict.fromkeys(PER_HEAD, _TOGETHER),
)
