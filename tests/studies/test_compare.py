"""Which form and scheme wins, and where: figures worked out by hand."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from typing import Any

import pytest

from mla_cost import api
from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.inputs.settings import PlanSettings
from mla_cost.studies.compare import Comparison, compare
from mla_cost.studies.crossover import crossover


def compared(*schemes: str, **asked: Any) -> Comparison:
    settings = {"seq_len": 16384, "sp": 8, "device": ("h100-80gb",), **asked}
    return compare(PlanSettings(**settings), schemes)


def test_every_scheme_in_under_a_second():
    compared()
    began = time.process_time()
    found = compared()
    assert time.process_time() - began < 1
    assert {row.scheme for row in found.rows} >= {"ring", "ring-own", "a2a-p2p", "usp", "latent-ring", "latent-gather"}
    assert all(row.why for row in found.refused)
    marked = {(row.form, row.scheme) for row in found.rows if row.best}
    assert ("explicit", "latent-ring") in marked  # none keeps less
    assert ("explicit", "ulysses-padded") not in marked  # Ulysses keeps, peaks and sends less


def test_inside_and_between_nodes():
    """Of 16 ranks over nodes of 8 an all-to-all reaches 7 inside and 8 beyond; a ring's neighbour is beyond."""
    (row,) = compared("ulysses", sp=16).rows
    assert row.forward is not None
    assert row.forward.inside * 8 == row.forward.between * 7
    (ring,) = compared("ring-own", sp=16).rows
    assert ring.forward is not None
    assert (ring.forward.inside, ring.forward.between) == (0, 2 * 15 * 1024 * 40960)
    (nested,) = compared("usp", sp=16, sp_inside=8).rows
    assert nested.forward is not None
    assert nested.forward.between == 2 * 1024 * 40960  # one hop of a rank's share between two groups
    assert nested.forward.inside == 2 * 7 * 1024 * 640 * 128 // 8


def test_a_gather_crosses_to_each_other_node_once_as_plan_says():
    """Of 16 ranks over nodes of 8 each sends its share to 15: once to the other node, on its own rail."""
    (row,) = compared("kv-gather", sp=16, form=("explicit",)).rows
    assert row.forward is not None
    assert row.backward is not None
    assert row.forward.between * 15 == row.forward.both
    settings = PlanSettings(
        seq_len=16384, sp=16, device=("h100-80gb",), scope="attention", form=("explicit",), scheme="kv-gather",
        kernel=row.kernel,
    )  # fmt: skip
    (planned,) = api.answer(settings).results
    assert planned.time is not None
    assert planned.time.between_bytes == row.forward.between + row.backward.between
    assert planned.time.inside_bytes == row.forward.inside + row.backward.inside


def test_balance_of_neighbouring_positions():
    """Four ranks of neighbouring positions: the last has 1.75 of the mean; zig-zag and whole sequences are even."""
    found = {row.scheme: row.balance for row in compared(sp=4).rows}
    assert found["kv-gather"] == Fraction(7, 4)
    assert found["ring-own"] == found["ulysses"] == Fraction(1)


def test_where_gathering_the_latent_stops_sending_less():
    """320 l = 576: at 128 heads it sends less while a rank has two of them, so up to 64 ranks."""
    found = crossover("laga", "ulysses", PlanSettings(seq_len=16384), {})
    assert found.inequality == "320*l - 576 > 0"
    assert found.root == "l > 9/5 = 1.8"
    (turn,) = found.turns
    assert (turn.last, turn.first, turn.before, turn.after) == (64, 128, "laga", "ulysses")


def test_a_turn_for_every_length():
    found = crossover("laga", "ulysses", PlanSettings(), {"sp": [32, 64, 128], "seq_len": [16384, 32768]})
    assert [dict(turn.at) for turn in found.turns] == [{"seq_len": 16384}, {"seq_len": 32768}]


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("lagga", "ulysses"), "did you mean laga"),
        (("laga", "explicit/ulises"), "did you mean ulysses"),
    ],
)
def test_refusals(sides, said):
    first, second = sides
    with pytest.raises(InputError) as refused:
        crossover(first, second, PlanSettings(), {})
    assert said in str(refused.value)


def test_the_command_lines(capsys):
    for line in ("compare --sp 4 --format json", "crossover laga ulysses --over sp=32..128*2 --format json"):
        with pytest.raises(SystemExit) as left:
            main(line.split())
        assert left.value.code == 0
        assert json.loads(capsys.readouterr().out)["schema"].startswith("mla-cost/c")
    with pytest.raises(SystemExit):
        main(["compare", "--sp", "8", "--refused"])
    assert "its scheme is latent-gather" in capsys.readouterr().out.replace("\n", " ")
