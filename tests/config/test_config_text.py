"""A configuration file that cannot be read, or says one thing twice, is refused with its line and the remedy."""

from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

import snakemake_logger_plugin_lamina  # noqa: F401, what Snakemake imports whenever it starts
from lamina.errors import LaminaError
from lamina_workflow.config import text

BROKEN = [
    ("a: 1\nb: {c: x\nd: [1\n", 3, "comma", "line 2"),
    ("a: 1\nb: text: more\n", 2, "colon", "quotes"),
    ("a:\n\t- 1\n", 2, "tab", "spaces"),
    ("a:\n  b: 1\n c: 2\n", 3, "does not belong", "neighbours"),
    ("a: 1\nb: 'x\nc: 2\n", 2, "never closed", "Close it"),
    ('a: 1\nb: "x\\q"\n', 2, "no meaning", "single quotes"),
    ("a: *x\n", 1, "anchor", "quotes"),
    ("a: 1\nb: @x\n", 2, "begins with '@'", '"@'),
    ("a: {b: 1}\nb: }\n", 2, "where a value should", "null"),
    ("a: 1\n---\nb: 2\n", 2, "second document", "Delete"),
    ("a: 1\nb: \x01\n", 2, "0x1", "Delete"),
    ("models: {}\nseed:\xa01\n", 2, "non-breaking space", "ordinary space"),
]


@pytest.mark.parametrize(("content", "line", "wrong", "remedy"), BROKEN)
def test_broken_yaml_is_told_by_its_line_in_our_words(
    tmp_path: Path, content: str, line: int, wrong: str, remedy: str
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(LaminaError) as refused:
        text.read_configuration(tmp_path / "mine.yaml")
    said = str(refused.value)
    assert f"mine.yaml, line {line}" in said and wrong in said and remedy in said


def test_what_is_not_utf8_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes("a: 1\n# für\n".encode("latin1"))
    with pytest.raises(
        LaminaError, match=r"mine.yaml, line 2: byte 0xfc is not UTF-8.*iconv -f latin1"
    ):
        text.read_configuration(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("a: 1\n", encoding="utf-16")
    with pytest.raises(LaminaError, match="iconv -f utf-16"):
        text.read_configuration(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("content", "key", "lines"),
    [
        ("models: {}\nseed: 1\nseed: 2\n", "seed", (2, 3)),
        ("models:\n  a: {source: x}\n  b: {source: y}\n\n  a: {source: z}\n", "models.a", (2, 5)),
        ("a:\n  - {b: 1,\n     b: 2}\n", "a[0].b", (2, 3)),
        ('{"a": 1,\n "a": 2}', "a", (1, 2)),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    tmp_path: Path, content: str, key: str, lines: tuple[int, int]
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(LaminaError) as refused:
        text.read_configuration(tmp_path / "mine.yaml")
    assert f"key '{key}' is given twice, on line {lines[0]} and on line {lines[1]}" in str(
        refused.value
    )


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "some text\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(LaminaError, match="no keys at the top level"):
        text.read_configuration(tmp_path / "mine.yaml")


def test_what_is_in_order_passes(tmp_path: Path) -> None:
    (tmp_path / "tabs.json").write_text('{\n\t"a": 1,\n\t"b": {"a": 2}}')
    (tmp_path / "alias.yaml").write_text("a: &x {k: 1}\nb: *x\nc: {<<: *x, k: 2}\n")
    files = [tmp_path / "tabs.json", tmp_path / "alias.yaml", *Path("config").glob("*.yaml")]
    for file in files:
        text.read_configuration(file)


# By https://yaml.org/spec/1.2.2/#1032-tag-resolution. Beside each, what PyYAML and so Snakemake make of it.
CORE_SCHEMA = [
    ("010", 10),  # 8
    ("10:50", "10:50"),  # 650
    ("2024-01-01", "2024-01-01"),  # a date
    ("0o17", 15),  # a text
    ("0x1F", 31),
    ("-7", -7),
    ("3e-4", 0.0003),  # a text
    (".5", 0.5),
    ("-.INF", float("-inf")),
    ("on", "on"),  # true
    ("No", "No"),  # false
    ("True", True),
    ("~", None),
    ("", None),
    ("'010'", "010"),
    ('"true"', "true"),
    ("25 %", "25 %"),
]


@pytest.mark.parametrize(("written", "value"), CORE_SCHEMA)
def test_a_value_is_what_yaml_1_2_says(tmp_path: Path, written: str, value: object) -> None:
    (tmp_path / "mine.yaml").write_text(f"a: {written}\nb: [{written}]\n")
    found = text.read_configuration(tmp_path / "mine.yaml")
    assert found == {"a": value, "b": [value] if written else []}


def test_a_key_is_the_text_that_was_written(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "models: {on: &it {1: x}, 010: y, 1.50: z}\nseed: {<<: *it, No: w}\n"
    )
    found = text.read_configuration(tmp_path / "mine.yaml")
    assert found["models"] == {"on": {"1": "x"}, "010": "y", "1.50": "z"}
    assert found["seed"] == {"1": "x", "No": "w"}


@pytest.mark.parametrize("start", ["\ufeff", "%YAML 1.1\n---\n", "# für\r\n\r\n"])
def test_how_an_editor_saves_a_file_changes_nothing(tmp_path: Path, start: str) -> None:
    body = "a: [1,\r\n  2] # a\ttab\r\nb: |\r\n  c\r\n"
    (tmp_path / "mine.yaml").write_bytes(f"{start}{body}".encode())
    assert text.read_configuration(tmp_path / "mine.yaml") == {"a": [1, 2], "b": "c\n"}


def test_files_and_command_line_are_merged_as_snakemake_merges_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("a: {x: 1, y: {z: 2}}\nb: [1, 2]\nc: 5\n")
    second.write_text("a: {y: {w: 3}}\nb: [3]\nc: {d: 6}\n")
    overrides = {"a": {"x": 7}, "e": 8}
    expected: dict[str, object] = {}
    for values in (yaml.safe_load(first.read_text()), yaml.safe_load(second.read_text())):
        update_config(expected, values)
    update_config(expected, overrides)
    assert text.merge_configurations([first, second], overrides) == expected


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("models.a.b: is no key", "second.yaml, line 3"),
        ("models.a: is no key", "second.yaml, line 2"),
        ("studies.x.removed[1]: 12 is too many", "first.yaml, line 4"),
        ("studies.x.selectors: is missing", "first.yaml, line 2"),
        ("models.v1.5.source: no such folder", "first.yaml, line 6"),
        ("calibrations: is missing", ""),
        ("the variant a/b: '1' is not defined", ""),
    ],
)
def test_a_refusal_is_placed_where_its_key_stands(tmp_path: Path, message: str, said: str) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "studies:\n  x:\n    {removed: [1,\n     12]}\nmodels:\n  v1.5: {source: x}\n  v1: {}\n"
    )
    second.write_text("models:\n  a:\n    b: 1\n")
    assert text.locate_key([first, second], message) == (f"{tmp_path}/{said}" if said else "")


@pytest.mark.parametrize("content", ['{\n\t"models": {}}', "a: " + "[" * 9999])
def test_a_file_that_yaml_cannot_read_places_no_refusal(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.json").write_text(content)
    assert text.locate_key([tmp_path / "mine.json"], "models.v1: no such folder") == ""
