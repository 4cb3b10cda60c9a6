"""Real ranks: processes on this machine that exchange over gloo, at small dims.

One launch serves many specs. Each spec runs on its first ranks (sp x tp, or ep x etp if more) with the same parameters,
input, tokens and output gradient, whatever its form and degrees, so that any two runs can be compared tensor by tensor
(`Spec.alone` is the single rank that has the sequences of all data-parallel ones).
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from mla_cost.checks.reference.experts import divided_over_etp, is_expert, joined_over_etp
from mla_cost.checks.reference.forms import initialise
from mla_cost.checks.reference.layer import ONE_RANK, Embedding, Head, MtpInput, make_layer
from mla_cost.checks.reference.measure import RecordedCollective, record
from mla_cost.checks.reference.spec import DTYPES, Spec
from mla_cost.checks.reference.tp import ProcessGroups, assemble, divide, make_groups

TIMEOUT = timedelta(seconds=120)  # a rank that died leaves the others in a collective


@dataclass(frozen=True)
class RankRun:
    """One spec on its ranks: whole tensors, as a single rank would have them, in fp32.

    tensors      "output" and "input gradient" `[S b h]` of all ranks together, b that of all data-parallel ranks (the
                 head's output is its loss, the embedding has no input), and for each parameter its gradient, summed
                 over the ranks that hold a copy
    collectives  those called, in order, by each rank
    """

    spec: Spec
    tensors: dict[str, Tensor]
    collectives: tuple[tuple[RecordedCollective, ...], ...]

    def differences(self, other: RankRun) -> dict[str, float]:
        """Per tensor, the largest difference to `other` over the largest magnitude in `other`."""
        return {name: _relative(tensor, other.tensors[name]) for name, tensor in self.tensors.items()}

    def identical(self, other: RankRun) -> bool:
        """Whether every tensor agrees bit for bit."""
        return all(torch.equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items())


def run_ranks(specs: Sequence[Spec], seed: int = 0) -> list[RankRun]:
    """Run every spec on as many processes as it asks for; one launch for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = max(spec.ranks for spec in specs)
        start_ranks(_rank_main, ranks, list(specs), seed, folder)
        # Written by our own rank 0 a moment ago, and it holds our dataclasses.
        runs: list[RankRun] = torch.load(Path(folder) / "runs", weights_only=False)
    return runs


def start_ranks(main: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run `main(rank, ranks, *arguments)` in as many processes as ranks, and wait for all of them.

    They are forked from a server that has imported torch, with what its first backward under a dispatch mode imports:
    eight ranks then take one import, not eight.
    """
    multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", __name__])
    start_processes(main, (ranks, *arguments), nprocs=ranks, start_method="forkserver")


def make_step(spec: Spec, groups: ProcessGroups = ONE_RANK, rank: int = 0, seed: int = 0) -> Callable[[], None]:
    """Return a call that runs this rank's layer forward and backward once, on the same numbers each time."""
    layer = _make_layer(spec, groups, seed)
    x, gradient, _ = _data(spec, seed)
    x, gradient = (_part(tensor, spec, rank).clone() for tensor in (x, gradient))

    def step() -> None:
        layer.zero_grad()
        layer(x.detach().requires_grad_()).backward(gradient)

    return step


def _relative(tensor: Tensor, reference: Tensor) -> float:
    return float((tensor - reference).abs().max() / reference.abs().max())


def _rank_main(rank: int, ranks: int, specs: Sequence[Spec], seed: int, folder: str) -> None:
    torch.set_num_threads(1)  # ranks share the cores
    store = dist.FileStore(f"{folder}/store", ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=store, timeout=TIMEOUT)
    meshes = _make_meshes(specs)
    runs = [_run(spec, meshes[_degrees(spec)], seed) for spec in specs if rank < spec.ranks]
    if rank == 0:
        torch.save(runs, Path(folder) / "runs")
    dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True)
class _Mesh:
    """This rank's groups by axis, and all ranks of the spec together."""

    groups: ProcessGroups
    everyone: dist.ProcessGroup


def _degrees(spec: Spec) -> tuple[int, int, int, int]:
    return spec.sp, spec.tp, spec.ep, spec.etp


def _make_meshes(specs: Sequence[Spec]) -> dict[tuple[int, int, int, int], _Mesh]:
    """Every rank must take part in making every group, member or not."""
    degrees = sorted({(_degrees(spec), spec.ranks) for spec in specs})
    return {each: _Mesh(make_groups(*each), dist.new_group(range(ranks))) for each, ranks in degrees}


def _run(spec: Spec, mesh: _Mesh, seed: int) -> RankRun:
    layer = _make_layer(spec, mesh.groups, seed)
    x, gradient, tokens = _data(spec, seed)
    if isinstance(layer, Embedding | Head | MtpInput):
        layer.read(tokens.chunk(spec.sp)[mesh.groups.sp_rank])
    # The whole loss is the mean of the ranks that share a sequence.
    x, gradient = (_part(tensor, spec, mesh.everyone.rank()) for tensor in (x, gradient))
    handed = torch.tensor(1 / spec.sp) if isinstance(layer, Head) else gradient
    inputs = [] if isinstance(layer, Embedding) else [x]
    tensors = _numbers(layer, _leaves(inputs), handed, spec, mesh)
    layer.zero_grad()
    called = record(layer, _leaves(inputs)).collectives
    everyone: list[tuple[RecordedCollective, ...]] = [()] * mesh.everyone.size()
    dist.all_gather_object(everyone, called, group=mesh.everyone)
    return RankRun(spec, tensors, tuple(everyone))


def _part(whole: Tensor, spec: Spec, rank: int) -> Tensor:
    """One rank's part of `[S b h]`: ranks in order hold the positions in order, sets of sp x tp their own sequences."""
    replica, place = divmod(rank, spec.sp * spec.tp)
    return whole.chunk(spec.dp, 1)[replica].chunk(spec.sp * spec.tp)[place]


def _whole(parts: Sequence[Tensor], spec: Spec) -> Tensor:
    """The inverse of `_part`, from the parts of all ranks."""
    size = spec.sp * spec.tp
    return torch.cat([torch.cat(list(parts[first : first + size])) for first in range(0, spec.ranks, size)], 1)


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_() for x in inputs]


def _make_layer(spec: Spec, groups: ProcessGroups, seed: int) -> nn.Module:
    """Return this rank's layer: its part of the parameters that a single rank is initialised with."""
    single = make_layer(spec.alone)
    initialise(single, seed)
    layer = make_layer(spec, groups)
    whole = single.state_dict()
    layer.load_state_dict({name: _own(name, whole[name], spec, groups) for name in whole})
    return layer


def _own(name: str, whole: Tensor, spec: Spec, groups: ProcessGroups) -> Tensor:
    if is_expert(name):
        return divided_over_etp(name, whole.chunk(spec.ep)[groups.ep_rank], spec.etp, groups.etp_rank)
    return divide(name, whole, spec.tp, groups.tp_rank, sharded_down=spec.sharded_down)


def _data(spec: Spec, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The whole input and the gradient of the whole output, `[S b h]` each, and token ids `[S b]`."""
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (spec.seq_len, spec.micro_batch * spec.dp, spec.dims.hidden)
    x, gradient = (torch.randn(shape, generator=generator).to(DTYPES[spec.dtype]) for _ in range(2))
    return x, gradient, torch.randint(spec.vocab, shape[:2], generator=generator)


def _numbers(
    layer: nn.Module, inputs: Sequence[Tensor], gradient: Tensor, spec: Spec, mesh: _Mesh
) -> dict[str, Tensor]:
    """Outputs and gradients of the sharded layer, put together as a single rank has them."""
    out = layer(*inputs)
    out.backward(gradient)
    outputs = _parts(out.detach(), mesh)
    tensors = {"output": _whole(outputs, spec) if out.dim() else torch.stack(outputs).mean()}
    for x in inputs:
        assert x.grad is not None
        tensors["input gradient"] = _whole(_parts(x.grad, mesh), spec)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        tensors[name] = _whole_gradient(name, parameter.grad, spec, mesh)
    return tensors


def _whole_gradient(name: str, gradient: Tensor, spec: Spec, mesh: _Mesh) -> Tensor:
    """Sum over the ranks that hold a copy (sp and dp, or the ep groups), then put together over tp, or ep and etp."""
    parts = _parts(gradient, mesh)
    if is_expert(name):
        held = spec.ep * spec.etp
        sums = [torch.stack(parts[own::held]).sum(0) for own in range(held)]
        sets = (sums[first : first + spec.etp] for first in range(0, held, spec.etp))
        return torch.cat([joined_over_etp(name, each) for each in sets])
    over_tp = [torch.stack(parts[tp_rank :: spec.tp]).sum(0) for tp_rank in range(spec.tp)]
    return assemble(name, over_tp, sharded_down=spec.sharded_down)


def _parts(part: Tensor, mesh: _Mesh) -> list[Tensor]:
    """The tensors of all ranks, in order, in fp32."""
    parts = [torch.empty(part.shape) for _ in range(mesh.everyone.size())]
    dist.all_gather(parts, part.float().contiguous(), group=mesh.everyone)
    return parts
