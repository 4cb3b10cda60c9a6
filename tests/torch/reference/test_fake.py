"""Real dims on fake tensors: what is kept, what the windows of the design say, and where copies come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference import DIMS, Recording, Spec, count_flops, run_fake

V3 = DIMS["deepseek-v3"]
CELL = Spec(dims=V3, seq_len=16384, sp=8)
SQUARE = V3.heads // 8 * 16384**2 * 2  # bytes of one S x S tensor of a rank's heads
PAIRS = [("explicit", None), ("explicit", "kv-gather"), ("laga", None), ("absorbed", None)]


def squares(recording: Recording) -> int:
    return sum(storage.bytes == SQUARE for storage in recording.saved)


@pytest.mark.parametrize(
    ("form", "kernel", "saved", "peak"),
    [
        ("explicit", "eager", (8.94e9, 9.01e9), (25.9e9, 26.5e9)),
        ("absorbed", "eager", (17.94e9, 18.02e9), (26.5e9, 27.2e9)),
        ("laga", "eager", (9.02e9, 9.09e9), (25.9e9, 26.5e9)),
        ("absorbed", "eager-bmm", (9.36e9, 9.43e9), (26.1e9, 26.5e9)),
        ("explicit", "flash", (0.44e9, 0.48e9), (0.70e9, 0.81e9)),
        ("laga", "flash", (0.52e9, 0.56e9), (0.79e9, 0.89e9)),
    ],
)
def test_windows(form: str, kernel: str, saved: tuple[float, float], peak: tuple[float, float]) -> None:
    """Windows around a count made independently of this package, which kept composite norms."""
    recording = run_fake(replace(CELL, form=form, kernel=kernel))
    assert saved[0] < recording.saved_bytes < saved[1]
    assert peak[0] < recording.peak_bytes < peak[1]


@pytest.mark.parametrize(("v_layout", "expected"), [("contiguous", 765_984_768), ("view", 900_202_496)])
def test_flash_layer_to_the_byte(v_layout: str, expected: int) -> None:
    recording = run_fake(Spec(kernel="flash", seq_len=4096, sp=1, v_layout=v_layout))
    assert recording.saved_bytes == expected + 2 * 4096 * 4  # and one fp32 root per row of two norms


def test_the_copy_of_the_probabilities_comes_and_goes_with_order_and_heads() -> None:
    absorbed = replace(CELL, form="absorbed")
    assert squares(run_fake(absorbed)) == 2
    assert squares(run_fake(replace(absorbed, attention_layout="bnsd"))) == 1
    assert squares(run_fake(replace(absorbed, kernel="eager-bmm"))) == 1
    one_head = run_fake(replace(absorbed, sp=128))
    assert sum(storage.bytes == 16384**2 * 2 for storage in one_head.saved) == 1
    assert squares(run_fake(CELL)) == 1


@pytest.mark.parametrize(("form", "scheme"), PAIRS)
@pytest.mark.parametrize("change", ["none", "no query latent", "no rope", "sp 1", "sp 64", "batch 2"])
def test_only_saved_tensors_outlive_forward_and_only_gradients_backward(
    form: str, scheme: str | None, change: str
) -> None:
    spec = {
        "none": CELL,
        "no query latent": replace(CELL, dims=replace(V3, q_lora_rank=None)),
        "no rope": replace(CELL, dims=replace(V3, rope=0)),
        "sp 1": replace(CELL, sp=1),
        "sp 64": replace(CELL, sp=64, seq_len=131072),
        "batch 2": replace(CELL, micro_batch=2),
    }[change]
    recording = run_fake(replace(spec, form=form, scheme=scheme))
    assert set(recording.kept) == set(recording.saved)
    at_end = [storage for storage in recording.alive_at_end if storage.role != "parameter_gradient"]
    x = recording.storages[0]
    assert [(storage.bytes, storage.phase) for storage in at_end] == [(x.bytes, "forward"), (x.bytes, "backward")]


def test_collectives_and_their_payload() -> None:
    called = {
        form: [(c.kind, c.phase, c.payload_bytes) for c in run_fake(replace(CELL, form=form)).collectives]
        for form in ("explicit", "absorbed", "laga")
    }
    wide, value, latent = 2048 * 128 * 192 * 2, 2048 * 128 * 128 * 2, 2048 * 576 * 2
    out = [("all_to_all", "forward", size) for size in (wide, wide, value, value)]
    back = [("all_to_all", "backward", size) for size in (value, value, wide, wide)]
    assert called["explicit"] == out + back
    assert called["absorbed"] == called["laga"]
    assert called["laga"] == [
        ("all_to_all", "forward", wide),
        ("all_gather", "forward", latent),
        ("all_to_all", "forward", value),
        ("all_to_all", "backward", value),
        ("reduce_scatter", "backward", 8 * latent),
        ("all_to_all", "backward", wide),
    ]
    assert run_fake(replace(CELL, sp=1)).collectives == ()


def test_a_stack_saves_as_many_times_what_one_block_saves() -> None:
    one, three = (run_fake(replace(CELL, form="laga", layers=layers)) for layers in (1, 3))
    assert three.saved_bytes == 3 * one.saved_bytes


def test_padding_defaults_to_the_kernels_own() -> None:
    flash, padded = (run_fake(replace(CELL, kernel="flash", value_padding=how)) for how in (None, "qk"))
    npu, unpadded = (run_fake(replace(CELL, kernel="npu-fusion", value_padding=how)) for how in (None, "none"))
    extra = 16384 * 16 * 64 * 2  # S, heads of a rank, the pad
    assert padded.saved_bytes - flash.saved_bytes == 2 * extra  # value and output
    assert npu.saved_bytes - unpadded.saved_bytes == 2 * extra
    assert unpadded.saved_bytes - flash.saved_bytes == 16 * 16384 * 4 * 15  # two statistics of 8 lanes for one of 1


def test_flops_are_those_of_the_matrix_products() -> None:
    flops = count_flops(CELL)
    assert flops["forward"]["bmm"] == 2 * 16 * 16384**2 * (192 + 128)
    assert flops["backward"]["bmm"] == 2 * flops["forward"]["bmm"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "latent"}, "form 'latent' is not one of explicit, absorbed, laga"),
        ({"kernel": "fast"}, "kernel 'fast' is not one of"),
        ({"form": "absorbed", "scheme": "ulysses"}, "does not fit form absorbed: latent-gather do"),
        ({"form": "absorbed", "kernel": "flash"}, "shared key"),
        ({"sp": 3}, "sp 3 does not divide seq_len"),
        ({"sp": 256}, "sp 256 does not divide 128 heads"),
        ({"kernel": "npu-fusion", "fused_attention": "sdpa"}, "does not run kernel npu-fusion"),
    ],
)
def test_what_has_no_program_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CELL, **change)  # type: ignore[arg-type]
