"""Mixed calls in one process, and what it keeps: `python -m tests.benchmarks.mixed 10000`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_MB = 300

_ANY: dict[str, list[Any]] = {
    "model": ["deepseek-v3", "deepseek-v2-lite", "moonlight-16b-a3b", "kimi-k2"],
    "device": ["h100-80gb", "910b-64gb", "a100-80gb"],
    "form": ["explicit", "absorbed", "laga"],
    "seq_len": [4096, 8192, 16384],
    "kernel": ["eager", "flash", "mem-efficient", "eager-bmm"],
    "dtype": ["bf16", "fp16", "fp32"],
    "norm": ["fused", "composite"],
    "softmax_dtype": ["activation", "fp32"],
    "mask": ["none", "tensor"],
    "v_layout": ["view", "contiguous"],
    "sp": [1, 2, 8],
}
_BLOCK: dict[str, list[Any]] = {"scope": ["attention"], "remat": ["none", "full"]}
_WHOLE: dict[str, list[Any]] = {
    "scope": ["model"],
    "remat": ["none", "full", "core_attn", "mlp+moe", "core_attn+shared_experts", "core_attn+mlp+shared_experts"],
    "tp": [1, 2, 4],
    "ep": [1, 2, 8],
    "dp": [8],
    "pp": [1, 3],
}


def call(draw: random.Random) -> None:
    """Mostly plans, now and then another command; a refusal is an answer too."""
    import mla_cost

    asked = {name: draw.choice(values) for name, values in (_ANY | draw.choice([_BLOCK, _WHOLE])).items()}
    calls: list[Callable[..., object]] = [mla_cost.plan, _swept, _fitted, _explained, _searched]
    (other,) = draw.choices(calls, [87, 9, 2, 1, 1])
    try:
        other(**asked)
    except mla_cost.InputError:
        return


def _swept(**asked: Any) -> None:
    import mla_cost

    del asked["seq_len"]
    mla_cost.sweep(over={"seq_len": [4096, 8192, 65536]}, **asked).to_numpy(workers=1)


def _fitted(**asked: Any) -> None:
    import mla_cost

    del asked["seq_len"]
    mla_cost.longest(**asked, max_seq_len=65536)


def _explained(**asked: Any) -> None:
    import mla_cost

    mla_cost.formula(asked["form"], kernel=asked["kernel"], remat=asked["remat"])


def _searched(**asked: Any) -> None:
    """A search over few devices, of the plan's own form and kernel."""
    import mla_cost

    kept = {name: asked[name] for name in ("model", "device", "form", "seq_len", "kernel")}
    mla_cost.search(**kept, devices=64, global_batch=64, remat="none", tp=2, micro_batch=1)


def resident_mb() -> int:
    """Memory of this process now."""
    (kb,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(kb) // 1024


def main() -> None:
    draw, times = random.Random(0), int(sys.argv[1])  # noqa: S311  (the same calls each time, no secret)
    for at in range(times):
        call(draw)
        if (at + 1) % 100 == 0 or at + 1 == times:
            print(at + 1, "calls", resident_mb(), "MB", flush=True)
    sys.exit(resident_mb() > LIMIT_MB)


if __name__ == "__main__":
    main()
