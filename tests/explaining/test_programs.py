"""`mla-cost explain FORM --program`: the program as it runs, every rewrite in its place, with shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mla_cost import InputError, api
from mla_cost.cli import main
from mla_cost.results import ProgramListing
from mla_cost.views.program import text

SCREEN = 45  # lines of a usual terminal


def lines(listing: ProgramListing) -> dict[str, str]:
    """The note and dims of every line, by its text."""
    found = {}
    for line in listing.lines:
        dims = " ".join(f"[{' '.join(each)}]" if each else "absent" for each in line.dims)
        found[line.text] = f"{dims} # {line.note}" if line.note else dims
    return found


@pytest.mark.parametrize("form", ["explicit", "absorbed", "laga"])
def test_a_form_stands_on_one_screen(form):
    printed = text(api.program_of_variant(form, {})).splitlines()
    assert len(printed) <= SCREEN
    assert max(map(len, printed)) <= 120


def test_a_scheme_stands_where_it_moves_with_the_shapes_before_and_after():
    found = lines(api.program_of_variant("laga", {}))
    assert found["q = sequence_to_heads q"] == "[S b l k+r] # exchange query"
    assert found["latent_and_k_rope = gather latent_and_k_rope"] == "[S b d_c+r] # exchange latent"
    assert found["w = own_heads w"] == "[l k+v d_c] # exchange weights"
    assert found["kv = linear latent, w"] == "[S b l k+v]"
    assert found["o = heads_to_sequence o"] == "[s b n v] # exchange output"
    assert "w = own_heads w" not in lines(api.program_of_variant("explicit", {}))


def test_one_rank_moves_nothing():
    assert not any("exchange" in line.note for line in api.program_of_variant("laga", {}, one=["sp"]).lines)


def test_a_kernel_and_a_policy_stand_at_their_call():
    found = lines(api.program_of_variant("explicit", {"kernel": "flash", "remat": "core_attn"}))
    assert found["o = attend q, key, value"] == "[S b l v] # kernel flash, run again in backward"
    assert found['o = fused "keep log-sum-exp: fp32 bns" q, key, value'] == "[S b l v]"


def test_an_absent_part_is_shown_as_such_and_conditions_are_decided():
    found = lines(api.program_of_variant("explicit", {}, without=["rope", "query-latent"]))
    assert found["q_up = linear x, W_q[n k+r h]"] == "[s b n k]"
    assert found["q_rotated = rope q_rope"] == "absent"
    assert found["q = concat q_nope, q_rotated"] == "[s b n k]"
    assert not any(line.startswith("if ") for line in found)


def test_divided_down_projections_are_a_rewrite():
    plan = {"tp": 4, "sp": 1, "down_projections": "sharded"}
    found = lines(api.program_of_plan("explicit", "dense", {}, plan))
    assert found["q_latent = linear x, W_q_down[d_q_part h]"] == "[s b d_q_part]"
    assert found["q_latent = join_columns q_latent"] == "[s b d_q]"
    assert found["kv_latent = join_columns kv_latent"] == "[s b d_c+r]"


def test_a_profile_has_its_own_program_of_a_layer():
    settings: dict[str, Any] = {"profile": "megatron", "tp": 4, "kernel": "flash", "remat": "layernorm"}
    found = lines(api.program_of_plan("explicit", "moe", {}, settings))
    assert found['y = linear "row" o, W_o[h n v]'] == "[u b h]"
    assert found["hidden = pre_mlp_norm residual"] == "[u b h] # run again in backward, its result too"


@pytest.mark.parametrize(
    ("form", "layer", "settings", "words"),
    [
        ("explicit", "mo", {}, "unknown layer 'mo'; allowed: "),
        ("explicit", "moe", {"model": "minicpm3-4b"}, "minicpm3-4b has no experts"),
        (
            "explicit",
            "attention",
            {"profile": "megatron"},
            "no program of its own for this: 'attention'; allowed: ",
        ),
        ("absorbed", "dense", {"kernel": "flash"}, "kernel flash has no program for a shared key"),
    ],
)
def test_what_has_no_program_is_refused(form, layer, settings, words):
    with pytest.raises(InputError, match=words):
        api.program_of_plan(form, layer, {}, settings)


def test_the_command_prints_text_and_json(capsys):
    for arguments in (["--program"], ["--program", "--format", "json"]):
        with pytest.raises(SystemExit) as left:
            main(["explain", "laga", *arguments])
        assert left.value.code == 0
    printed, _, rest = capsys.readouterr().out.partition("\n{")
    assert printed.startswith(
        "laga: scheme latent-gather, kernel eager, profile reference, remat none\nHolds for: sp > 1"
    )
    answer = json.loads("{" + rest)
    assert answer["schema"] == "mla-cost/program/1"
    assert {
        "depth": 1,
        "text": "q = sequence_to_heads q",
        "dims": [["S", "b", "l", "k+r"]],
        "note": "exchange query",
    } in (answer["lines"])


def test_options_of_a_program_are_refused_without_it(capsys):
    with pytest.raises(SystemExit):
        main(["explain", "laga", "--layer", "moe"])
    assert "ask for it with --program" in capsys.readouterr().err
