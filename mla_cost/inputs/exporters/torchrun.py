"""How torchrun starts a plan's ranks: nodes, and ranks of each; what they run is the trainer's."""

from __future__ import annotations

from typing import Any, Final

from mla_cost.inputs.exporters.exported import ExportedLaunch, Exporter


def _write(launch: ExportedLaunch) -> tuple[str, frozenset[str]]:
    nodes, each = launch.nodes
    endpoint = " --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT" if nodes > 1 else " --standalone"
    return f"torchrun --nnodes {nodes} --nproc-per-node {each}{endpoint} train.py\n", frozenset()


EXPORTER: Final[Any] = Exporter("torchrun", "torchrun", trains=False, write=_write)
