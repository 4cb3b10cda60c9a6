"""A pipeline on real ranks: one process per stage, hidden states and their gradients sent over gloo, at small dims.

Every stage starts from the parameters that one process with all parts is initialised with, and reads the same tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mla_cost.checks.reference.forms import initialise
from mla_cost.checks.reference.pipeline import MTP, ChunkModule, PipelineSpec, StageModule, stand_gradients
from mla_cost.checks.reference.ranks import TIMEOUT, start_ranks
from mla_cost.checks.reference.tp import make_groups


@dataclass(frozen=True)
class PipelineRun:
    """One optimizer step: the loss of each micro-batch, and every parameter's gradient by part and name, in fp32."""

    losses: tuple[Tensor, ...]
    gradients: dict[str, Tensor]


def run_alone(pipeline: PipelineSpec, seed: int = 0) -> PipelineRun:
    """All parts in this process: each micro-batch forward and backward through the whole model, one after the other."""
    model, losses = _model(pipeline, seed), []
    buffers = stand_gradients(model.parameters())
    for ids in _tokens(pipeline, seed):
        x = None
        for part in model:
            assert isinstance(part, ChunkModule)
            part.read(ids)
            x = part(x)
        assert x is not None
        loss = x / pipeline.num_micro_batches
        loss.backward()
        losses.append(loss.detach())
    names = [name for name, _ in model.named_parameters()]
    return PipelineRun(tuple(losses), dict(zip(names, buffers, strict=True)))


def run_pipelines(pipelines: Sequence[PipelineSpec], seed: int = 0) -> list[PipelineRun]:
    """Run each pipeline on as many processes as it has stages; one launch for all of them."""
    for pipeline in pipelines:
        if pipeline.layers.ranks != 1:
            raise ValueError("here a stage is one rank: sp, tp and ep of its layers are 1")
    with tempfile.TemporaryDirectory() as folder:
        ranks = max(pipeline.stages for pipeline in pipelines)
        start_ranks(_rank_main, ranks, list(pipelines), seed, folder)
        # Written by our own rank 0 a moment ago, and it holds our dataclasses.
        runs: list[PipelineRun] = torch.load(Path(folder) / "runs", weights_only=False)
    return runs


def _rank_main(rank: int, ranks: int, pipelines: Sequence[PipelineSpec], seed: int, folder: str) -> None:
    torch.set_num_threads(1)  # ranks share the cores
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=TIMEOUT)
    runs = [_run(pipeline, rank, seed) for pipeline in pipelines]
    if rank == 0:
        torch.save(runs, Path(folder) / "runs")
    dist.barrier()
    dist.destroy_process_group()


def _run(pipeline: PipelineSpec, rank: int, seed: int) -> PipelineRun:
    """One step on this rank's stage, put together with what the other stages found; ranks beyond the stages look on."""
    groups = make_groups(1, pp=pipeline.stages)
    own: tuple[list[Tensor], dict[str, Tensor]] = ([], {})
    if rank < pipeline.stages:
        stage = StageModule(pipeline, rank, groups, _tokens(pipeline, seed))
        own = stage.losses, _step(stage, _model(pipeline, seed))
    everyone: list[tuple[list[Tensor], dict[str, Tensor]]] = [([], {})] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    losses = next(losses for losses, _ in everyone if losses)
    return PipelineRun(tuple(losses), {name: found for _, part in everyone for name, found in part.items()})


def _step(stage: StageModule, model: nn.ModuleList) -> dict[str, Tensor]:
    """The gradients of the stage's parameters, under the names that they have in the whole model."""
    pipeline, names = stage.pipeline, []
    for chunk, module in enumerate(stage.chunks):
        part = pipeline.part(stage.stage, chunk)
        module.load_state_dict(model[part].state_dict())
        names += [f"{part}.{name}" for name, _ in module.named_parameters()]
    for step in stage.steps():
        step()
    return dict(zip(names, stage.gradients, strict=True))


def _model(pipeline: PipelineSpec, seed: int) -> nn.ModuleList:
    """All parts, initialised."""
    model = nn.ModuleList(ChunkModule(pipeline.layers, part) for part in pipeline.parts)
    with torch.no_grad():
        initialise(model, seed)
    return model


def _tokens(pipeline: PipelineSpec, seed: int) -> list[list[Tensor]]:
    """For each micro-batch the tokens `[s b]` 0, 1, .. positions ahead, as far as the furthest loss looks."""
    spec, generator = pipeline.layers, torch.Generator().manual_seed(seed + 1)
    ahead = 1 + sum(name.startswith(MTP) for part in pipeline.parts for name in part)
    shape = (spec.seq_len + ahead, spec.micro_batch)
    found = (torch.randint(spec.vocab, shape, generator=generator) for _ in range(pipeline.num_micro_batches))
    return [[ids[k : k + spec.seq_len] for k in range(ahead + 1)] for ids in found]
