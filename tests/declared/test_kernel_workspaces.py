"""What each fused kernel holds inside its backward, worked out by hand from the sources that they name."""

from __future__ import annotations

import pytest

from mla_cost.declared.kernels import KERNELS
from mla_cost.language.fused_workspace import CALL

# batch, heads, key heads, queries, keys, width of Q and K, of V
EXPLICIT = (1, 16, 16, 16384, 16384, 192, 128)
NARROW = (2, 16, 16, 4096, 4096, 128, 128)
ODD = (1, 3, 3, 1000, 2000, 192, 128)
SHARED = (1, 16, 1, 4096, 32768, 576, 512)


@pytest.mark.parametrize(
    ("kernel", "call", "wanted"),
    [
        # fp32 for 16 heads x 16384 rows of 192 sums and one log-sum-exp
        ("flash", EXPLICIT, 4 * 16 * 16384 * 193),
        ("flash", NARROW, 4 * 2 * 16 * 4096 * 129),
        ("flash", ODD, 4 * 3 * 1024 * 193),  # 1000 rows are 1024
        ("mem-efficient", NARROW, 4 * 2 * 16 * 4096),
        # keys in min(256 tiles, 200 / 16 heads) = 12 parts; Q and K to 256, V is 128; 128 x 3 tiles of 32784
        ("mem-efficient", EXPLICIT, 4 * 16 * 16384 + 16 * (256 * 12 * (256 + 128) + 128 * 3 * 32784)),
        # 32 tiles of keys in min(32, 66) parts; 8 x 3 tiles
        ("mem-efficient", ODD, 4 * 3 * 1000 + 3 * (256 * 32 * (256 + 128) + 8 * 3 * 32784)),
        ("npu-fusion", EXPLICIT, 65536 + 16 * 16384 * (32 + 4 * (192 + 192 + 128))),
        # one key head: sums of the query's gradient for 16 heads, of the key's and the value's for one
        ("npu-fusion", SHARED, 65536 + 16 * 4096 * (32 + 4 * 576) + 32768 * 4 * (576 + 512)),
        ("eager", EXPLICIT, 0),
    ],
)
def test_a_workspace_is_what_its_source_allocates(kernel, call, wanted):
    assert KERNELS[kernel].workspace.at(dict(zip(CALL, call, strict=True))) == wanted
