"""Bytes of caches typed from published totals or worked out by hand; nothing here is copied from the tool."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from mla_cost.cli import main
from mla_cost.declared.decoding import FFD, LAUNCHES
from mla_cost.errors import InputError
from mla_cost.studies.cache import cache
from mla_cost.studies.decode import decode

BF16 = {
    "deepseek-v3": 70272,  # 61 x 576 x 2
    "deepseek-r1": 70272,
    "deepseek-v3.1": 70272,
    "kimi-k2": 70272,
    "deepseek-v2": 69120,  # 60 layers
    "deepseek-v2-lite": 31104,  # 27
    "moonlight-16b-a3b": 31104,
    "deepseek-v3.2": 85888,  # and 61 index keys of 128
    "glm-5": 109824,  # 78 of both
    "glm-5.2": 95232,  # 21 index keys
    "kimi-k3": 27648,  # 24 MLA blocks of 93
    "kimi-linear-48b-a3b": 8064,  # 7 of 27
    "glm-5.3-flash": 11264,  # 11 latents of 512
    "minicpm3-4b": 35712,  # 62 x (256 + 32) x 2
    "glm-4.7-flash": 54144,  # 47
    "llama-3-8b": 131072,  # 32 x 8 x 128 x 2 x 2
    "llama-3-70b": 327680,
    "llama-3-405b": 516096,
    "qwen3-8b": 147456,
    "qwen3-235b-a22b": 192512,
    "llama-2-7b": 524288,
    "deepseek-v1": 389120,  # published
    "deepseek-v4-flash": Fraction("3514.25"),  # 3,514 published
    "deepseek-v4-pro": Fraction("5031.4375"),
    "deepseek-v4.1-flash": 890,  # published
}
FP8 = {"deepseek-v3.2": 48068, "glm-5": 61464}  # 656 + 132 a layer; 48,068 is published


def test_bytes_of_a_token():
    rows = {row.cache.name: row.bytes_per_token for row in cache()}
    assert {name: rows[name] for name in BF16} == BF16
    fp8 = {row.cache.name: row.bytes_per_token for row in cache(list(FP8), dtype="fp8")}
    assert fp8 == FP8


def test_a_sequence_and_a_batch():
    (v41,) = cache("deepseek-v4.1-flash", context=1024, batch=2)
    stored, window, compressor = 911360, 2703360, 24576  # 3 x 512 and 1024 entries of 356
    assert v41.sequence_bytes == stored + window + compressor
    assert v41.batch_bytes == 2 * v41.sequence_bytes
    (v3,) = cache("deepseek-v3", context="128k", batch=64)
    assert v3.batch_bytes == 70272 * 131072 * 64


def test_index_scan_of_v41():
    """68 of 356 bytes of an entry are its index key: 174,080 bytes of 1024 tokens."""
    (v41,) = cache("deepseek-v4.1-flash", context=1024)
    stored = v41.sequence_bytes - v41.cache.per_sequence
    assert stored * 68 // 356 == 174080


def test_what_is_kept_for_good():
    """V4 keeps its cache and snapshots of about the same size, V4.1 a quarter of that cache: an eighth, or 12.66 %."""
    old, new = (cache(name)[0].bytes_per_token for name in ("deepseek-v4-flash", "deepseek-v4.1-flash"))
    assert Fraction(1, 4) / 2 == Fraction(1, 8)
    assert round(float(Fraction(int(new), 2 * int(old))), 6) == 0.126636


def test_keys_and_values_of_every_head():
    (row,) = cache("deepseek-v3", form="explicit", context=1024, tp=8)
    assert row.bytes_per_token == 61 * 128 * 320 * 2
    assert row.sequence_bytes == 61 * 16 * 320 * 2 * 1024
    (latent,) = cache("deepseek-v3", context=1024, tp=8)
    assert latent.sequence_bytes == 70272 * 1024  # whole on every rank


def test_how_many_fit():
    (row,) = cache("deepseek-v2-lite", context="32k", device="h100-80gb")
    fits = row.fits
    assert fits is not None
    assert fits.weight_bytes is not None
    assert fits.sequences is not None
    assert fits.weight_bytes == 2 * 15706484224  # the published checkpoint's elements
    left = fits.usable_bytes - fits.weight_bytes
    assert fits.sequences * row.sequence_bytes <= left < (fits.sequences + 1) * row.sequence_bytes


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "llama-3-8"}, "did you mean llama-3-8b"),
        ({"context": "many"}, "context: must be a whole number"),
        ({"dtype": "fp4"}, "bf16, fp8"),
        ({"form": "laga"}, "allowed: explicit, absorbed"),
    ],
)
def test_refusals(asked, said):
    with pytest.raises(InputError) as refused:
        cache(**asked)
    assert said in str(refused.value)


def test_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["cache", "--model", "deepseek-v3", "--context", "128k", "--batch", "64", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["caches"][0]["bytes_per_token"] == 70272
    with pytest.raises(SystemExit):
        main(["decode", "--scan", "ffd", "--launch", "mpk"])
    reported = capsys.readouterr().out
    assert "inferred" in reported
    assert "left out" in reported


# ---- decoding


def test_ffd_by_its_published_settings():
    """Eight heads of 128: 272 bytes scanned, 425.6 read, 4096 without; fp32 scales 288, and a scan alone 272."""
    dense = 8 * 4 * 128
    assert (float(8 * FFD.scanned(128)), float(8 * FFD.read(128, 256))) == (272, 425.6)
    assert round(float(dense / (8 * FFD.read(128, 256))), 4) == 9.6241
    wide = FFD._replace(scale_bytes=4)
    assert (float(8 * wide.scanned(128)), round(float(dense / (8 * wide.read(128, 256))), 4)) == (288, 9.2754)
    none = FFD._replace(kept=Fraction(0))
    assert (float(8 * none.read(128, 256)), round(float(dense / (8 * none.read(128, 256))), 4)) == (272, 15.0588)


def test_mpk_removes_44_percent_of_what_is_above_the_floor():
    """14.5 to 12.5 ms above 10: 4.5 and 2.5 ms, 1.16 times."""
    before, floor = Fraction("14.5"), Fraction(10)
    after = floor + (before - floor) * LAUNCHES["mpk"].share
    assert after == Fraction("12.5")
    assert round(float(1 - LAUNCHES["mpk"].share), 4) == 0.4444
    assert round(float(before / after), 2) == 1.16


def test_a_step_reads_weights_and_every_sequence():
    explicit, absorbed = decode("deepseek-v2-lite", context=4096, batch=1, tp=1, weights="bf16", overhead_us=0)
    assert absorbed.cache_bytes == 31104 * 4096
    assert explicit.cache_bytes == 27 * 16 * 320 * 2 * 4096
    met = 2 * (2663442944 - 102400 * 2048)  # active elements less the table of embeddings, 6 of 64 experts met
    assert absorbed.weight_bytes == pytest.approx(met, rel=0.01)
    assert absorbed.step_us == absorbed.floor_us == max(absorbed.read_us, absorbed.compute_us)
    assert absorbed.read_us == Fraction(absorbed.weight_bytes + absorbed.cache_bytes, 3350 * 1000)
