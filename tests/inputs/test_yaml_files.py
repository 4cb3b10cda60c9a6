"""Every way a file can be wrong is one InputError that names the file, and the line where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs.yaml_files import MAX_FILE_BYTES, load_mapping

BILLION_LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


def refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        load_mapping(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_plain_values_in_yaml(tmp_path: Path) -> None:
    text = "a: 1\nb: [1.5, -2, true, null, ~]\nc: {d: text, 2: '3'}\ne: 1e3\nf:\n"
    expected = {"a": 1, "b": [1.5, -2, True, None, None], "c": {"d": "text", 2: "3"}, "e": 1000.0, "f": None}
    assert load_mapping(written(tmp_path, "x.yaml", text)) == expected


def test_what_only_yaml_1_1_takes_for_a_number_or_a_switch_stays_text(tmp_path: Path) -> None:
    path = written(tmp_path, "x.yml", "a: yes\nb: 0777\nc: 1:30\nd: 1_000\ne: 2026-11-30\nf: '12'\n")
    expected = {"a": "yes", "b": "0777", "c": "1:30", "d": "1_000", "e": "2026-11-30", "f": "12"}
    assert load_mapping(path) == expected


def test_json_goes_by_its_suffix(tmp_path: Path) -> None:
    text = '{"a": [1, 2.5, true, null], "b": {"c": "d"}}'
    expected = {"a": [1, 2.5, True, None], "b": {"c": "d"}}
    for name in ("x.json", "X.JSON"):
        assert load_mapping(written(tmp_path, name, text)) == expected
    with pytest.raises(InputError, match="this is JSON under a YAML name"):
        load_mapping(written(tmp_path, "x.yaml", text))


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    assert load_mapping(written(tmp_path, "x.json", b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' is given twice"),
        ("a: {b: 1, b: 2}\n", "line 1, column 11: the key 'b' is given twice"),
        ("a:\n\tb: 1\n", "line 2: a tab; YAML is indented with spaces"),
        ("a:\t1\n", "line 1: a tab"),
        (BILLION_LAUGHS, "line 2, column 8: the alias *a; write the value out"),
        ("a: &a [*a]\n", "the alias *a"),
        (
            "x: 1\na: !!python/object/apply:os.system ['true']\n",
            "line 2, column 4: the tag 'tag:yaml.org,2002:python/object/apply",
        ),
        ("a: !!float 1\n", "the tag 'tag:yaml.org,2002:float'"),
        ("a: !mine {b: 1}\n", "the tag '!mine'"),
        ("a: .nan\n", "line 1: '.nan' is not a finite number"),
        ("a: NaN\n", "'NaN' is not a finite number"),
        ("a: -.inf\n", "'-.inf' is not a finite number"),
        ("a: 1e999\n", "'1e999' is not a finite number"),
        ("a: " + "9" * 5000 + "\n", "is too large"),
        ("a: 1\n---\nb: 2\n", "line 3, column 1: a second document in one file"),
        ("- 1\n- 2\n", "the file must hold a mapping of keys to values, not a list"),
        ("just words\n", "the file must hold a mapping of keys to values, not 'just words'"),
        ("# only a comment\n", "the file holds no value"),
        ("", "the file is empty"),
        (" \n\n", "the file is empty"),
        ("a: [1, 2\n", "not valid YAML: did not find expected ',' or ']'"),
        ("a: 'open\n", "not valid YAML: found unexpected end of stream"),
        ("a: 1\n  b: 2\n", "line 2, column 4: not valid YAML: mapping values are not allowed"),
        ("? [1, 2]\n: 3\n", "line 1, column 3: a key must be a word, not a list"),
        ("true: 3\n", "a key must be a word, not true"),
        ("a: \x00\n", "not valid YAML: control characters are not allowed"),
        ("a: " + "[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ("a: " + "[" * 5000, "nested"),
        ("- " * 100_000, "nested"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, "bad.yaml", text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"a": 1,\n "b": {"c": 3', "line 2, column 14: the JSON is cut off before it is complete"),
        ('{"a": "cut o', "the JSON is cut off before it is complete"),
        ("a: 1\nb: 2\n", "line 1, column 1: not JSON; a YAML file is named .yaml"),
        ('{"a": 1,\n}', "line 2, column 1: not valid JSON: "),
        ('{"a": 1} {"b": 2}', "line 1, column 10: not valid JSON: Extra data"),
        ("{'a': 1}", "line 1, column 2: not valid JSON: "),
        ('{"a": NaN}', "'NaN' is not a finite number"),
        ('{"a": -Infinity}', "'-Infinity' is not a finite number"),
        ('{"a": 1e999}', "'1e999' is not a finite number"),
        ('{"a": ' + "9" * 5000 + "}", "is too large"),
        ("[1]", "the file must hold a mapping of keys to values, not a list"),
        ("null", "the file holds no value; allowed: one mapping"),
        ("[" * 100_000, "nested too deeply"),
        ("", "the file is empty"),
    ],
)
def test_bad_json(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, "bad.json", text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert words in message


def test_not_utf8(tmp_path: Path) -> None:
    assert "line 2: not UTF-8 text: byte 0xff" in refusal(written(tmp_path, "x.yaml", b"a: 1\nb: \xff\n"))
    assert "not UTF-8 text" in refusal(written(tmp_path, "x.json", '{"a": "b"}'.encode("utf-16")))


def test_missing_directory_and_nameless_kind(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.yaml")
    assert "this is a directory; name the file in it" in refusal(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    assert "this is a directory" in refusal(tmp_path / "folder.yaml")
    message = refusal(written(tmp_path, "x.toml", "a = 1"))
    assert "allowed: names ending in .yaml, .yml or .json" in message


def test_a_path_that_no_system_takes(tmp_path: Path) -> None:
    assert "cannot be read (embedded null byte)" in refusal("a\x00b.yaml")
    assert "cannot be read (File name too long)" in refusal("a" * 5000 + ".yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert "cannot be read" in refusal(tmp_path / "loop.yaml")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in refusal(tmp_path / "pipe.yaml")


def test_a_huge_file_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 10**6)  # sparse: reading it would cost memory, making it costs nothing
    assert f"the file has 100,000,000 bytes; allowed: at most {MAX_FILE_BYTES:,}" in refusal(path)


def test_an_unreadable_name_cannot_break_the_line() -> None:
    assert refusal("two\nlines.yaml").startswith("two\\nlines.yaml: no such file")


def test_the_parts_of_an_error_are_kept() -> None:
    error = InputError("bad", file="f.yaml", line=3, field="a.b", value=[1], allowed="a word", nearest=["x", "y"])
    assert str(error) == "f.yaml: line 3: a.b: bad, not a list; allowed: a word; did you mean x or y?"
    assert (error.file, error.line, error.field, error.value) == ("f.yaml", 3, "a.b", [1])
    assert (error.message, error.allowed, error.nearest) == ("bad", "a word", ("x", "y"))


def test_values_are_shown_on_one_short_line() -> None:
    values: tuple[object, ...] = (None, True, 3, "a\nb", {}, ())
    expected = ["null", "true", "3", "'a\\nb'", "a mapping", "a list"]
    assert [shown(value) for value in values] == expected
    assert len(shown("x" * 10**6)) < 100


def test_nearest_names() -> None:
    assert nearest("deepsek-v3", ["deepseek-v3", "kimi-k2"]) == ("deepseek-v3",)
    assert nearest("zzz", ["deepseek-v3", "kimi-k2"]) == ()
