"""Degrees of parallelism, the groups of ranks they make, and whom a rank of each sends to.

Source: Megatron-Core at d98e8a64, parallel_state.py (expert groups).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mla_cost.language.numbers import minimum, where
from mla_cost.language.schedule import Schedule
from mla_cost.mesh.layout_string import parse_layout


class Parallel(NamedTuple):
    """Degrees of parallelism, and how a pipeline runs.

    etp: tensor parallel degree of routed experts (Megatron's default is tp). num_micro_batches: per optimizer step and
    data rank. virtual_stages: chunks of layers that a stage holds. group_size: micro-batches that visit a chunk before
    the next one's turn (default pp). layout: Megatron's layout string; first_layers, last_layers: layers of the first
    and last stage where they differ from the others. schedule: the order of passes, None for the usual one.
    """

    tp: int = 1
    sp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    num_micro_batches: int = 1
    virtual_stages: int = 1
    group_size: int | None = None
    layout: str | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    schedule: Schedule | None = None

    @property
    def world(self) -> int:
        """Ranks in all: pp tp sp dp."""
        return self.pp * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage: tp sp dp."""
        return self.tp * self.sp * self.dp

    @property
    def dense_dp(self) -> int:
        """Ranks that hold the same dense weights: weights are replicated over sp, so dp sp."""
        return self.dp * self.sp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts: tp sp dp / (ep etp)."""
        return self.stage_ranks // (self.ep * self.etp)

    def communicators(self, *, experts: bool) -> dict[str, int]:
        """Ranks of each group that a rank exchanges with, by axis; experts: whether the model has any to share."""
        groups = {"tp": self.tp, "sp": self.sp, "pp": self.pp, "dp x sp": self.dense_dp}
        own = {"ep": self.ep, "etp": self.etp, "expert_dp": self.expert_dp} if experts else {}
        return {**groups, **own}

    def further_communicators(self, *, experts: bool) -> dict[str, int]:
        """Ranks of each group that a step's large exchanges do not need, and that Megatron makes and uses beside.

        Of everything (barriers, start-up), of the model's ranks (the gradients' norm, and once more for experts'
        gradients), of the first and last stage (tied embeddings), of ranks without sp. Source: Megatron-Core at
        d98e8a64, parallel_state.py initialize_model_parallel (:1054, :1148, :1270), optimizer/__init__.py:682.
        """
        every = self.stage_ranks * self.pp
        groups = {"world": every, "model": self.tp * self.pp, "embedding": minimum(self.pp, 2)}
        without = {"dp": where(self.sp > 1, self.dp, 1)}  # the group over dp x sp is needed already
        return {**groups, **without, **({"expert model": self.ep * self.etp * self.pp} if experts else {})}

    @property
    def chunks(self) -> int:
        """Chunks per stage: those of the layout string where one is given."""
        return self.virtual_stages if self.layout is None else max(1, len(parse_layout(self.layout)) // self.pp)

    @property
    def group(self) -> int:
        """Micro-batches that visit a chunk before the next chunk's turn."""
        return self.pp if self.group_size is None else self.group_size


def sends_to(axis: str, ranks: Any) -> Any:
    """To how many others of a group a rank sends apart from reductions and gathers: neighbours over pp, or all."""
    if axis == "pp":
        return minimum(2, ranks - 1)
    return ranks - 1 if axis in ("ep", "sp") else 0
