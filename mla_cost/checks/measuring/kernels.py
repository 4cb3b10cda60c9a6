"""Micro-benchmarks of every class of work that one device does: what each call moves and multiplies, and how long.

Shapes are none that `validate --time` runs. Bytes are counted as programs count them: each operand and result once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mla_cost.checks.measuring.clock import Clock, Run


class Sample(NamedTuple):
    """One kernel, or a few of a class, and the seconds that they took.

    shape: batch, m, n, k of a product; of attention sequences and heads, queries, keys, both widths together.
    """

    work: str
    what: str
    seconds: float
    bytes: float
    flops: float = 0.0
    shape: tuple[int, int, int, int] | None = None
    launches: int = 1
    backward: bool = False
    of_weight: bool = False


class Bench(NamedTuple):
    """Where and in what precision benchmarks run. quick: fewer shapes. known: the shortest time of each so far."""

    clock: Clock
    dtype: torch.dtype
    quick: bool
    known: dict[str, float]

    def best(self, what: str, run: Run) -> float:
        """The shortest time of a call, over all passes: with cold caches, as a step leaves them."""
        found = min(self.clock.cold(run), self.known.get(what, float("inf")))
        self.known[what] = found
        return found

    def hot(self, what: str, run: Run) -> float:
        """The same of many calls in a row."""
        found = min(self.clock.hot(run), self.known.get(what, float("inf")))
        self.known[what] = found
        return found

    def tensor(self, *shape: int, grad: bool = False) -> Tensor:
        """Random numbers of that shape."""
        return torch.randn(shape, device=self.clock.device).to(self.dtype).requires_grad_(grad)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize


# rows, outputs, contracted width
LINEAR = ((384, 192, 384), (768, 640, 320), (1536, 384, 640), (384, 896, 448), (768, 160, 768), (640, 1280, 192))
# products of their own, rows, columns, contracted width
BATCHED = ((6, 384, 384, 80), (6, 640, 640, 112), (6, 384, 80, 384), (4, 768, 48, 768), (6, 80, 640, 640))
ELEMENTS = (2**16, 3 * 2**17, 5 * 2**19, 2**22)
TINY = 64


def samples(bench: Bench) -> Iterator[Sample]:
    """Every class, one after another. A further pass over the same bench keeps what was shorter before."""
    for each in (launches, products, batched, grouped, attention, elementwise, copies, rotations, norms, softmaxes):
        yield from each(bench)
    yield from permutations(bench)
    yield from losses(bench)


def _taken(bench: Bench, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return shapes[::2] if bench.quick else shapes


def launches(bench: Bench) -> Iterator[Sample]:
    """A chain of tiny kernels forward, and its backward."""
    x = bench.tensor(4, grad=True)

    def forward() -> Tensor:
        y = x
        for _ in range(TINY):
            y = y * 1.5
        return y

    seconds = bench.hot("launch", forward)
    yield Sample("launch", "forward", seconds, 0, launches=TINY)
    both = bench.hot("launch and backward", lambda: torch.autograd.grad(forward(), x, torch.ones_like(x)))
    yield Sample("launch", "backward", both - seconds, 0, launches=TINY, backward=True)


def products(bench: Bench) -> Iterator[Sample]:
    """Linears forward, and the gradients of their inputs and weights."""
    for m, n, k in _taken(bench, LINEAR):
        x, w, g = bench.tensor(m, k), bench.tensor(n, k), bench.tensor(m, n)
        passed = bench.size * (m * n + n * k + m * k)

        def timed(run: Run, shape: tuple[int, int, int, int], what: str, passed: int = passed) -> Sample:
            _, rows, columns, depth = shape
            return Sample("gemm", what, bench.best(what, run), passed, 2.0 * rows * columns * depth, shape)

        yield timed(lambda x=x, w=w: functional.linear(x, w), (1, m, n, k), f"linear, {m} x {k} to {n}")  # type: ignore[misc]
        yield timed(lambda g=g, w=w: g @ w, (1, m, k, n), f"gradient of its input, {m} x {n} to {k}")  # type: ignore[misc]
        yield timed(lambda g=g, x=x: g.t() @ x, (1, n, k, m), f"gradient of its weight, {n} x {k} over {m}")  # type: ignore[misc]


def batched(bench: Bench) -> Iterator[Sample]:
    """Products head by head, their operands views of tensors in which heads lie inside, as in op-by-op attention."""
    for heads, m, n, k in _taken(bench, BATCHED):
        a = bench.tensor(m, heads, k).transpose(0, 1)
        b = bench.tensor(n, heads, k).permute(1, 2, 0)
        what = f"{heads} of {m} x {k} x {n}"
        seconds = bench.best(what, lambda a=a, b=b: torch.bmm(a, b))  # type: ignore[misc]
        passed = bench.size * heads * (m * k + k * n + m * n)
        yield Sample("gemm", what, seconds, passed, 2.0 * heads * m * n * k, (heads, m, n, k))


def grouped(bench: Bench) -> Iterator[Sample]:
    """Experts one after another, by rows of each."""
    experts, n, k = 4, 448, 384
    for rows in _taken_rows(bench):
        x, w, g = bench.tensor(experts, rows, k), bench.tensor(experts, n, k), bench.tensor(experts, rows, n)
        shape, flops = (experts, experts * rows, n, k), 2.0 * experts * rows * n * k
        passed = bench.size * experts * (rows * k + n * k + rows * n)
        ways: tuple[tuple[str, Run, bool, bool], ...] = (
            ("forward", lambda x=x, w=w: [a @ b.t() for a, b in zip(x, w, strict=True)], False, False),  # type: ignore[misc]
            ("input", lambda g=g, w=w: [a @ b for a, b in zip(g, w, strict=True)], True, False),  # type: ignore[misc]
            ("weight", lambda g=g, x=x: [a.t() @ b for a, b in zip(g, x, strict=True)], True, True),  # type: ignore[misc]
        )
        for what, run, backward, of_weight in ways:
            told = f"{experts} experts of {rows} rows, {what}"
            yield Sample("grouped_gemm", told, bench.best(told, run), passed, flops, shape, 1, backward, of_weight)


def _taken_rows(bench: Bench) -> tuple[int, ...]:
    return (32, 256) if bench.quick else (16, 64, 160, 448)


def attention(bench: Bench) -> Iterator[Sample]:
    """Torch's fused attention, causal, of equal widths: any other takes the unfused path on a CPU."""
    heads, width = 6, 64
    for length in (256, 640) if bench.quick else (192, 448, 896):
        q, k, v = (bench.tensor(1, heads, length, width, grad=True) for _ in range(3))

        def forward(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        flops, passed = 2.0 * heads * length * length * width, 4 * bench.size * heads * length * width
        shape = (heads, length, length, 2 * width)
        seconds = bench.best(f"attention {length}", forward)
        yield Sample("attention", f"{length} positions", seconds, passed, flops, shape)
        g = bench.tensor(1, heads, length, width)
        told = f"{length} positions, backward"
        both = bench.best(told, lambda g=g, forward=forward: forward().backward(g))  # type: ignore[misc]
        yield Sample("attention", told, both - seconds, 2 * passed, 2.5 * flops, shape, backward=True)


def elementwise(bench: Bench) -> Iterator[Sample]:
    """Sums, products, scalings and a gate."""
    for n in ELEMENTS:
        a, b = bench.tensor(n), bench.tensor(n)
        runs: tuple[tuple[str, Run, int], ...] = (
            ("sum", lambda a=a, b=b: a + b, 3),  # type: ignore[misc]
            ("scaling", lambda a=a: a * 0.125, 2),  # type: ignore[misc]
            ("product", lambda a=a, b=b: a * b, 3),  # type: ignore[misc]
        )
        for what, run, tensors in runs:
            told = f"{what} of {n}"
            yield Sample("elementwise", told, bench.best(told, run), bench.size * n * tensors)


def copies(bench: Bench) -> Iterator[Sample]:
    """Halves put together, heads and positions exchanged, and a sum over heads."""
    for rows in (384, 1536):
        a, b = bench.tensor(rows, 6, 48), bench.tensor(rows, 6, 80)
        n = rows * 6
        runs: tuple[tuple[str, Run, float], ...] = (
            ("joining", lambda a=a, b=b: torch.cat((a, b), -1), 2 * 128 * n),  # type: ignore[misc]
            ("turning", lambda b=b: b.transpose(0, 1).contiguous(), 2 * 80 * n),  # type: ignore[misc]
            ("padding", lambda b=b: functional.pad(b, (48, 0)), (80 + 128) * n),  # type: ignore[misc]
        )
        for what, run, elements in runs:
            told = f"{what} {rows} rows"
            yield Sample("copy", told, bench.best(told, run), bench.size * elements)


def rotations(bench: Bench) -> Iterator[Sample]:
    """Rotary embedding by halves, op by op: five kernels."""
    width = 48
    for rows in (320, 1280):
        wide = bench.tensor(rows, 1, 6, 112)
        x, cos, sin = wide[..., 64:], bench.tensor(rows, 1, 1, width), bench.tensor(rows, 1, 1, width)

        def run(x: Tensor = x, cos: Tensor = cos, sin: Tensor = sin) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin

        # halves negated; halves put together; two products; their sum
        elements = rows * 6 * width * (1 + 2 + 2 + 2 + 3) + 2 * rows * width
        yield Sample("rope", f"{rows} rows", bench.best(f"rope {rows}", run), bench.size * elements, launches=5)


def norms(bench: Bench) -> Iterator[Sample]:
    """RMSNorm as torch writes it op by op, forward and backward: five kernels each."""
    for rows, width in ((320, 384), (1280, 320), (768, 768)):
        x, w, g = bench.tensor(rows, width, grad=True), bench.tensor(width, grad=True), bench.tensor(rows, width)

        def forward(x: Tensor = x, w: Tensor = w, width: int = width) -> Tensor:
            return functional.rms_norm(x, (width,), w, 1e-6)

        n = rows * width
        seconds = bench.best(f"norm {rows} x {width}", forward)
        yield Sample("norm", f"{rows} x {width}", seconds, 7 * bench.size * n, launches=5)
        told = f"{rows} x {width}, backward"
        both = bench.best(f"norm {told}", lambda g=g, forward=forward: forward().backward(g))  # type: ignore[misc]
        yield Sample("norm", told, both - seconds, 14 * bench.size * n, launches=5, backward=True)


def softmaxes(bench: Bench) -> Iterator[Sample]:
    """Softmax of scores, forward and backward."""
    for heads, length in ((6, 192), (6, 448), (4, 896)):
        x, g = bench.tensor(heads, length, length, grad=True), bench.tensor(heads, length, length)
        n = heads * length * length
        told = f"softmax {heads} x {length} x {length}"
        seconds = bench.best(told, lambda x=x: functional.softmax(x, -1))  # type: ignore[misc]
        yield Sample("softmax", told, seconds, 2 * bench.size * n)
        y = functional.softmax(x, -1)
        told = f"{told}, backward"
        back = bench.best(told, lambda y=y, g=g, x=x: torch.autograd.grad(y, x, g, retain_graph=True))  # type: ignore[misc]
        yield Sample("softmax", told, back, 3 * bench.size * n, backward=True)


def permutations(bench: Bench) -> Iterator[Sample]:
    """Rows gathered by index."""
    for rows, width in ((384, 448), (1280, 768)):
        x = bench.tensor(rows, width)
        index = torch.randperm(rows, device=bench.clock.device).repeat(2)
        told = f"{2 * rows} of {rows} rows"
        seconds = bench.best(told, lambda x=x, index=index: x[index])  # type: ignore[misc]
        yield Sample("permutation", told, seconds, bench.size * 4 * rows * width)


def losses(bench: Bench) -> Iterator[Sample]:
    """Cross entropy of logits, forward and backward."""
    rows, words = 256, 4096
    x, target = bench.tensor(rows, words, grad=True), torch.randint(words, (rows,), device=bench.clock.device)
    n = rows * words

    def forward() -> Tensor:
        return functional.cross_entropy(x, target)

    seconds = bench.best("loss", forward)
    yield Sample("loss", f"{rows} x {words}", seconds, 3 * bench.size * n, launches=2)
    both = bench.best("loss and backward", lambda: torch.autograd.grad(forward(), x))
    yield Sample("loss", f"{rows} x {words}, backward", both - seconds, 4 * bench.size * n, launches=2, backward=True)
