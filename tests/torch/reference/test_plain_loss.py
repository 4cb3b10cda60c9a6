"""What plain torch keeps and makes in a loss: torch's own ops beside the executor's, and both beside the program.

The losses here are torch's alone, watched by the executor's recorder on fake and real tensors, and by torch's real
allocator where the vocabulary is divided (a DTensor's local ops pass by a dispatch mode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from mla_cost.checks.reference import Spec, run_fake
from mla_cost.checks.reference.allocator import record_allocator
from mla_cost.checks.reference.loss import LOSSES
from mla_cost.checks.reference.measure import record
from mla_cost.checks.validation.layers import TINY, check_layer

ROWS, WORDS = 64, 1000
FULL = ROWS * WORDS


def upcast(logits: Tensor, targets: Tensor, **how: Any) -> Tensor:
    return cross_entropy(logits.float().flatten(0, 1), targets.flatten(), **how)


def as_given(logits: Tensor, targets: Tensor, **how: Any) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), **how)


def own(name: str) -> Callable[..., Tensor]:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return LOSSES[name](logits, targets, -torch.ones(ROWS, 1), None)

    return loss


def over_the_vocabulary(sizes: list[int], full: int = FULL) -> list[float]:
    """Of signed sizes those of tensors over the vocabulary, in bytes per logit."""
    return [size / full for size in sizes if abs(size) >= full]


def events(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> list[float]:
    logits = torch.zeros(ROWS, 1, WORDS, dtype=dtype, requires_grad=True)
    targets = torch.zeros(ROWS, 1, dtype=torch.int64)
    seen = record(lambda given: loss(given, targets), [logits], tables=[targets])
    return over_the_vocabulary(seen.timeline())


# the logits and their gradient stand outside torch's loss; inside are the cast, what is kept, two gradients, the cast
STEPS = {
    ("native", torch.bfloat16): [2, 4, 4, -4, 4, 4, -4, -4, 2, -4],
    ("native", torch.float32): [4, 4, 4, 4, -4, -4],
    ("no-upcast", torch.bfloat16): [2, 2, 2, 2, -2, -2],
    ("no-upcast", torch.float32): [4, 4, 4, 4, -4, -4],
}


@pytest.fixture(params=["fake", "real"])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "real":
        yield
        return
    with FakeTensorMode():
        yield


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("name", "dtype"), STEPS, ids=str)
@pytest.mark.parametrize("how", [{}, {"ignore_index": 0}, {"reduction": "mean"}], ids=str)
def test_torchs_own_loss_step_by_step(name: str, dtype: torch.dtype, how: dict[str, Any]) -> None:
    real = upcast if name == "native" else as_given
    expected = STEPS[name, dtype]
    assert events(lambda logits, targets: real(logits, targets, **how), dtype) == expected
    assert events(own(name), dtype) == expected


@pytest.mark.parametrize("loss", ["native", "no-upcast", "in-place"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_program_makes_the_same_steps(loss: str, dtype: str, tp: int) -> None:
    spec = Spec(**TINY, layer="head", loss=loss, dtype=dtype, sp=1, tp=tp)
    rows = list(check_layer(spec))
    assert {row.check for row in rows} >= {"layer: saved storages", "layer: timeline", "layer: collectives"}
    assert {row.status for row in rows} == {"agrees"}


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["native", "no-upcast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_divided_loss_is_loss_parallel(mesh: Any, name: str, dtype: torch.dtype) -> None:
    """Every allocation over the vocabulary, of torch's real allocator, in order."""
    targets = torch.randint(WORDS, (ROWS,))
    minus = -torch.ones(ROWS)

    def theirs(logits: Tensor) -> Tensor:
        divided = DTensor.from_local(logits, mesh, [Shard(1)])
        loss: Any = cross_entropy(divided.float() if name == "native" else divided, targets)
        whole: Tensor = loss.to_local()
        return whole

    def ours(logits: Tensor) -> Tensor:
        return LOSSES[name](logits, targets, minus, mesh.get_group())

    def large(loss: Callable[[Tensor], Tensor]) -> list[float]:
        logits = torch.zeros(ROWS, WORDS, dtype=dtype, requires_grad=True)
        with loss_parallel():
            seen = record_allocator(loss, [logits])
        return over_the_vocabulary([event.bytes for event in seen.allocations])

    assert large(ours) == large(theirs)


@pytest.mark.parametrize(
    ("vocabulary", "hidden", "bytes_more"), [(163_840, 2048, 8_053_030_912), (129_280, 7168, 6_354_337_792)]
)
def test_the_plain_loss_holds_twelve_bytes_a_logit(vocabulary: int, hidden: int, bytes_more: int) -> None:
    """8,053,030,920 and 6,354,337,800 with torch's two scalars (the loss and its weight), which no figure counts."""
    spec = Spec(layer="head", seq_len=8192, sp=1, vocab=vocabulary)
    spec = replace(spec, dims=replace(spec.dims, hidden=hidden))
    plain, in_place = (run_fake(replace(spec, loss=loss)) for loss in ("native", "in-place"))
    assert max(e.live_bytes for e in plain.events) - max(e.live_bytes for e in in_place.events) == bytes_more
