"""What every op reads, writes, launches and multiplies, against arithmetic typed by hand."""

from __future__ import annotations

import pytest

from mla_cost.declared.forms import FORMS
from mla_cost.inputs.catalog import model
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.evaluate import executed_flops
from mla_cost.language.polynomial import total
from mla_cost.language.timeline import KernelRun, Timeline
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.resolve import Point, resolve

S, P, h, n, k, r, v, d_q, d_c = 4096, 8, 7168, 128, 128, 64, 128, 1536, 512
s, lo = S // P, n // P


def program(form: str, kernel: str, layer: str = "attention", **asked: object) -> tuple[Point, Timeline]:
    given = PlanSettings.model_validate({"seq_len": S, "sp": P, "scope": "attention", "kernel": kernel, **asked})
    point = resolve(model("deepseek-v3"), form, given, layer)
    return point, timeline(point.key)


def calls(found: tuple[Point, Timeline], phase: str, op: str, work: str) -> list[tuple[int, int, list[int]]]:
    """Bytes read, bytes written and the shape of every call of an op."""
    point, run = found
    values = {**point.values, "fused_workspace": 0}
    chosen: list[KernelRun] = [it for it in run.kernels if (it.phase, it.op, it.work) == (phase, op, work)]
    return [
        (
            total(it.reads).at(values),
            total(it.writes).at(values),
            [side.at(values) for side in it.product] if it.product else [],
        )
        for it in chosen
    ]


@pytest.fixture(scope="module")
def eager() -> tuple[Point, Timeline]:
    return program("explicit", "eager")


def test_a_linear_reads_both_operands_once_and_writes_its_result(eager: tuple[Point, Timeline]) -> None:
    assert calls(eager, "forward", "q latent", "gemm") == [
        (2 * (s * h + d_q * h), 2 * s * d_q, [1, s, d_q, h]),
    ]
    of_input, of_weight = calls(eager, "backward", "q latent", "gemm")
    assert of_input == (2 * (s * d_q + d_q * h), 2 * s * h, [1, s, h, d_q])
    assert of_weight == (2 * (s * d_q + s * h), 2 * d_q * h, [1, d_q, h, s])


def test_scores_pass_through_memory_as_often_as_torch_touches_them(eager: tuple[Point, Timeline]) -> None:
    square = 2 * lo * S * S
    assert calls(eager, "forward", "raw scores", "gemm") == [
        (2 * lo * 2 * S * (k + r), square, [lo, S, S, k + r]),
    ]
    assert calls(eager, "forward", "scores", "elementwise") == [(square, square, [])]
    assert calls(eager, "forward", "probabilities", "softmax") == [(square, square, [])]
    assert calls(eager, "backward", "probabilities", "softmax") == [(2 * square, square, [])]
    assert calls(eager, "forward", "o", "gemm") == [(square + 2 * S * lo * v, 2 * S * lo * v, [lo, S, v, S])]


def test_a_norm_reads_its_input_and_weight_and_writes_result_and_roots(eager: tuple[Point, Timeline]) -> None:
    assert calls(eager, "forward", "q normed", "norm") == [(2 * s * d_q + 2 * d_q, 2 * s * d_q + 4 * s, [])]


def test_a_fused_kernel_touches_no_square() -> None:
    found = program("laga", "flash")
    (reads, writes, shape), *_ = calls(found, "forward", "o", "attention")
    assert reads == 2 * S * lo * (2 * (k + r) + v)
    assert writes == 2 * S * lo * v + 4 * S * lo  # and the log-sum-exp
    assert shape == [lo, S, S, k + r + v]


def test_reading_a_key_that_is_shown_to_every_head_reads_it_once(eager: tuple[Point, Timeline]) -> None:
    joined, *_ = calls(eager, "forward", "key", "copy")
    assert joined == (2 * s * (n * k + r), 2 * s * n * (k + r), [])


def test_megatron_turns_the_rope_in_one_kernel_and_plain_torch_in_five() -> None:
    _, plain = program("explicit", "flash")
    point, fused = program("explicit", "flash", "moe", profile="megatron", scope="model", ep=8, dp=8)
    assert sum(it.work == "rope" and it.phase == "forward" for it in plain.kernels) == 10  # of query and key
    assert sum(it.work == "rope" and it.phase == "forward" for it in fused.kernels) == 2
    rows = point.values["R"]
    assert calls((point, fused), "forward", "gate up", "grouped_gemm") == [
        (2 * (rows * h + 32 * 4096 * h), 2 * rows * 4096, [32, rows, 4096, h]),
    ]
    of_rows, of_weight = calls((point, fused), "backward", "gate up", "grouped_gemm")
    assert of_rows == (2 * (rows * 4096 + 32 * 4096 * h), 2 * rows * h, [32, rows, h, 4096])
    assert of_weight == (2 * (rows * 4096 + rows * h), 2 * 32 * 4096 * h, [32, rows, h, 4096])


CASES = (
    *((form, kernel, "attention", {}) for form in FORMS for kernel in ("eager", "eager-bmm", "mem-efficient")),
    *(("explicit", "eager", layer, {"scope": "model"}) for layer in ("dense", "moe", "head", "embedding", "mtp_moe")),
    *(
        ("explicit", "flash", layer, {"scope": "model", "profile": "megatron", "tp": 2, "remat": remat})
        for layer, remat in (("dense", "full"), ("moe", "moe+mla_up_proj"), ("head", "none"), ("mtp_input", "none"))
    ),
    ("explicit", "flash", "moe", {"scope": "model", "profile": "megatron", "scheme": "ring", "sp": 2}),
    ("explicit", "flash", "moe", {"scope": "model", "profile": "megatron", "scheme": "kv-all-gather", "sp": 2}),
    ("explicit", "flash", "moe", {"scope": "model", "profile": "megatron", "dispatcher": "deepep", "ep": 8, "dp": 8}),
)


@pytest.mark.parametrize(("form", "kernel", "layer", "asked"), CASES)
def test_calls_multiply_what_the_fold_of_flops_counts(
    form: str, kernel: str, layer: str, asked: dict[str, object]
) -> None:
    _, run = program(form, kernel, layer, **asked)
    for phase, phases in (("forward", {"forward"}), ("backward", {"backward", "recompute"})):
        counted = total(it.flops for it in run.kernels if it.flops and it.phase in phases)
        assert counted == executed_flops(run, phase, causal=False)
    sent = [it.collective for it in run.kernels if it.collective is not None]
    assert sent == list(range(len(run.collectives)))
