"""Every form under every offered scheme and kernel, with its stored figures or refusal (tests/data/grid.json).

The other schemes have figures typed from their sources in tests/declared/test_schemes.py.

A stored value changes only in a commit that names the rule that changed and shows the executor's figure for a cell
that moved (`mla_cost.checks.reference.fake.run_fake`). `python tests/declared/test_grid.py` writes the file anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mla_cost
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import offered

STORED = Path(__file__).parents[1] / "data" / "grid.json"
TINY = {
    "hidden": 32,
    "heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
MODELS: dict[str, tuple[int, dict[str, Any], tuple[int, ...]]] = {  # name: sequence length, dims, degrees
    "tiny": (64, TINY, (1, 2, 8, 16)),
    "deepseek-v3": (16384, {}, (1, 8, 128)),
}
FIELDS = (
    "saved",
    "peak",
    "allocated peak on ascend",
    "allocated peak on cuda",
    "payload",
    "wire forward",
    "wire backward",
)


def cells() -> Iterator[tuple[str, str, str, str, int]]:
    for name, (_, _, degrees) in MODELS.items():
        yield from product([name], FORMS, offered(), KERNELS, degrees)


def computed(name: str, form: str, scheme: str, kernel: str, sp: int) -> list[int | None] | str:
    """The integers named by FIELDS, or the refusal."""
    seq_len, dims, _ = MODELS[name]
    found = mla_cost.plan(
        device=("910b-64gb", "a100-80gb"),
        form=form,
        scheme=scheme,
        kernel=kernel,
        seq_len=seq_len,
        sp=sp,
        dims=dims,
        scope="attention",
    )
    ascend, cuda = found.results
    memory, sent = ascend.memory, ascend.communication
    if memory.saved_bytes is None:
        assert ascend.verdict is not None
        return ascend.verdict.reason
    peaks = (memory.peak_bytes, memory.allocated_peak_bytes, cuda.memory.allocated_peak_bytes)
    wire = (sent.forward.payload_bytes, sent.forward.wire_bytes, sent.backward.wire_bytes)
    return [memory.saved_bytes, *peaks, *wire]


def key(cell: tuple[str, str, str, str, int]) -> str:
    *names, sp = cell
    return " ".join([*names, f"sp={sp}"])


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def test_the_grid_covers_every_declaration(stored):
    assert stored["fields"] == list(FIELDS)
    assert set(stored["cells"]) == {key(cell) for cell in cells()}


@pytest.mark.parametrize("model", MODELS)
def test_figures_and_refusals_are_as_stored(stored, model):
    moved = {
        key(cell): (stored["cells"].get(key(cell)), now)
        for cell in cells()
        if cell[0] == model and (now := computed(*cell)) != stored["cells"].get(key(cell))
    }
    assert moved == {}


def test_every_refusal_names_what_is_wrong(stored):
    for name, value in stored["cells"].items():
        if isinstance(value, str):
            _, form, scheme, kernel, _ = name.split()
            assert any(word in value for word in (form, scheme, kernel, "sp")), name


def test_one_rank_sends_nothing(stored):
    for name, value in stored["cells"].items():
        if name.endswith("sp=1") and isinstance(value, list):
            assert value[FIELDS.index("payload") :] == [0, 0, 0]


def write() -> None:
    """Write the stored file anew."""
    about = " ".join((__doc__ or "").split())
    lines = ",\n".join(f"  {json.dumps(key(cell))}: {json.dumps(computed(*cell))}" for cell in cells())
    head = f'"about": {json.dumps(about)},\n"fields": {json.dumps(list(FIELDS))}'
    STORED.parent.mkdir(exist_ok=True)
    STORED.write_text("{" + head + ',\n"cells": {\n' + lines + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
