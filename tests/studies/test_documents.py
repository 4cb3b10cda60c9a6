"""Packs as people state them, and the table of ways; tests/mesh/test_packing.py has who holds and sends what."""

from __future__ import annotations

import json

import pytest

from mla_cost.cli import main
from mla_cost.errors import InputError
from mla_cost.studies.documents import documents, lengths_of


def test_lengths(tmp_path):
    assert lengths_of("32k,16k,8k*2") == (32768, 16384, 8192, 8192)
    file = tmp_path / "lengths.yaml"
    file.write_text("8192: 3\n1024: 2\n")
    assert lengths_of(str(file)) == (8192, 8192, 8192, 1024, 1024)
    drawn = lengths_of("lognormal:4k*64@7")
    assert drawn == lengths_of("lognormal:4k*64@7")
    assert len(drawn) == 64
    assert lengths_of("lognormal:4k*64@8") != drawn


@pytest.mark.parametrize("text", ["8q", "8k*0", "", "lognormal:4k*2", "0"])
def test_no_lengths(text):
    with pytest.raises(InputError, match="documents"):
        lengths_of(text)


def test_attention_by_document():
    """Two documents of 4 are 20 pairs, one of 8 is 36; DeepSeek-V3's 128 heads of 192 and 128, 2 a multiply-add."""
    pack = documents([4, 4], sp=2)
    assert (pack.flops, pack.as_one_flops) == (2 * 128 * 320 * 20, 2 * 128 * 320 * 36)


def test_what_travels_in_bytes():
    rows = {row.name: row for row in documents([10, 3, 3], sp=2).rows}
    flashcp = rows["flashcp"]
    assert flashcp.sent_tokens == 2
    assert (flashcp.expanded_bytes, flashcp.latent_bytes) == (2 * 2 * 40960, 2 * 2 * 576)
    assert rows["per-document"].padding == 2 + 1 + 1
    assert "dynamic-groups" not in rows  # inferred
    asked = documents([10, 3, 3], sp=2, inferred=True, limit=4).rows[-1]
    assert (asked.name, asked.basis, asked.groups) == ("dynamic-groups", "inferred", (2, 1, 1))


def test_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["documents", "32k,16k,8k*2", "--sp", "4", "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["lengths"] == [32768, 16384, 8192, 8192]
    with pytest.raises(SystemExit):
        main(["documents", "4k*8", "--sp", "4", "--limit", "2k", "--inferred"])
    assert "dynamic-groups: ranks by document 2, 2, 2" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main(["documents", "10,3", "--sp", "4", "--way", "flashcpp"])
    assert refused.value.code == 2
    assert "did you mean flashcp" in capsys.readouterr().err


def test_between_nodes_and_by_count():
    """HSAP: two nodes of two ranks, 8 of 12 tokens cross, half the heads a rank; BASP: a group for each of two."""
    (hsap,) = documents([12, 4], sp=4, node=2, ways=("hsap",)).rows
    assert (hsap.sent_tokens, hsap.expanded_bytes, hsap.basis) == (8, 8 * 40960 * 2 // 2, "inferred")
    (basp,) = documents([16384] * 2, sp=8, ways=("basp",)).rows
    assert (basp.tokens, basp.sent_tokens, basp.groups) == (4096, 12288, (4, 4))
    assert documents([16384, 8192], sp=8, ways=("basp",)).rows[0].why


def test_time_falls_with_attention():
    """A document of twice the length attends to four times as much: more than twice the time, not quite four times."""
    long, short = documents("64k,32k", sp=8, device="h100-80gb").by_length
    assert long.seconds is not None
    assert short.seconds is not None
    assert 2 < long.seconds / short.seconds < 4
    assert round(long.share + short.share) == 100


def test_a_plan_of_a_pack(capsys):
    line = "plan --scope attention --form explicit --sp 8 --documents 32k,16k,8k*2"
    with pytest.raises(SystemExit):
        main([*line.split(), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["inputs"]["seq_len"] == 65536
    assert answer["documents"]["lengths"] == [32768, 16384, 8192, 8192]
    with pytest.raises(SystemExit):
        main([*line.split(), "--seq-len", "4k"])
    assert "no seq_len, or 65536" in capsys.readouterr().err
