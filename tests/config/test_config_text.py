"""Text of a configuration: read as YAML 1.2 says, refused with its line where it is broken."""

from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

import snakemake_logger_plugin_lamina  # noqa: F401, what Snakemake imports whenever it starts
from lamina.errors import LaminaError
from lamina_workflow.config import text
from tests import ROOT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where each test writes its configuration."""
    return tmp_path / "mine.yaml"


def refusal(file: Path) -> str:
    with pytest.raises(LaminaError) as caught:
        text.read_configuration(file)
    return str(caught.value)


# The text, its broken line, and words of the fault and the remedy.
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


@pytest.mark.parametrize(("content", "line", "fault", "remedy"), BROKEN)
def test_broken_yaml_is_refused_with_its_line(
    file: Path, content: str, line: int, fault: str, remedy: str
) -> None:
    file.write_text(content)

    message = refusal(file)

    assert f"mine.yaml, line {line}" in message
    assert fault in message
    assert remedy in message


def test_a_byte_that_is_not_utf8_is_refused_with_its_line(file: Path) -> None:
    file.write_bytes("a: 1\n# für\n".encode("latin1"))

    message = refusal(file)

    assert "mine.yaml, line 2: byte 0xfc is not UTF-8" in message
    assert "iconv -f latin1" in message


def test_a_file_in_utf16_is_refused_with_its_encoding(file: Path) -> None:
    file.write_text("a: 1\n", encoding="utf-16")

    assert "iconv -f utf-16" in refusal(file)


@pytest.mark.parametrize(
    ("content", "key", "first_line", "second_line"),
    [
        ("models: {}\nseed: 1\nseed: 2\n", "seed", 2, 3),
        ("models:\n  a: {source: x}\n  b: {source: y}\n\n  a: {source: z}\n", "models.a", 2, 5),
        ("a:\n  - {b: 1,\n     b: 2}\n", "a[0].b", 2, 3),
        ('{"a": 1,\n "a": 2}', "a", 1, 2),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    file: Path, content: str, key: str, first_line: int, second_line: int
) -> None:
    file.write_text(content)

    fault = f"key '{key}' is given twice, on line {first_line} and on line {second_line}"
    assert fault in refusal(file)


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "some text\n"])
def test_a_file_without_keys_is_refused(file: Path, content: str) -> None:
    file.write_text(content)

    assert "no keys at the top level" in refusal(file)


def test_json_with_tabs_is_read(file: Path) -> None:
    file.write_text('{\n\t"a": 1,\n\t"b": {"a": 2}}')

    assert text.read_configuration(file) == {"a": 1, "b": {"a": 2}}


def test_aliases_and_merged_keys_are_read(file: Path) -> None:
    file.write_text("a: &x {k: 1}\nb: *x\nc: {<<: *x, k: 2}\n")

    assert text.read_configuration(file) == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 2}}


def test_the_shipped_configurations_are_read_as_pyyaml_reads_them() -> None:
    files = sorted((ROOT / "config").glob("*.yaml"))

    assert files
    for shipped in files:
        assert text.read_configuration(shipped).keys() == yaml.safe_load(shipped.read_text()).keys()


# By https://yaml.org/spec/1.2.2/#1032-tag-resolution. PyYAML reads those with a comment otherwise.
CORE_SCHEMA = [
    ("010", 10),  # as 8
    ("10:50", "10:50"),  # as 650
    ("2024-01-01", "2024-01-01"),  # as a date
    ("0o17", 15),  # as a text
    ("0x1F", 31),
    ("-7", -7),
    ("3e-4", 0.0003),  # as a text
    (".5", 0.5),
    ("-.INF", float("-inf")),
    ("on", "on"),  # as true
    ("No", "No"),  # as false
    ("True", True),
    ("~", None),
    ("", None),
    ("'010'", "010"),
    ('"true"', "true"),
    ("25 %", "25 %"),
]


@pytest.mark.parametrize(("written", "value"), CORE_SCHEMA)
def test_a_value_is_what_yaml_1_2_says(file: Path, written: str, value: object) -> None:
    file.write_text(f"a: {written}\nb: [x, {written}]\n")

    expected_list = ["x", value] if written else ["x"]
    assert text.read_configuration(file) == {"a": value, "b": expected_list}


def test_a_key_is_the_text_that_was_written(file: Path) -> None:
    file.write_text("models: {on: &it {1: x}, 010: y, 1.50: z}\nseed: {<<: *it, No: w}\n")

    configuration = text.read_configuration(file)

    assert configuration["models"] == {"on": {"1": "x"}, "010": "y", "1.50": "z"}
    assert configuration["seed"] == {"1": "x", "No": "w"}


@pytest.mark.parametrize("start", ["\ufeff", "%YAML 1.1\n---\n", "# für\r\n\r\n"])
def test_how_an_editor_saves_a_file_changes_nothing(file: Path, start: str) -> None:
    body = "a: [1,\r\n  2] # a\ttab\r\nb: |\r\n  c\r\n"
    file.write_bytes(f"{start}{body}".encode())

    assert text.read_configuration(file) == {"a": [1, 2], "b": "c\n"}


def test_files_and_command_line_are_merged_as_snakemake_merges_them(tmp_path: Path) -> None:
    first_file = tmp_path / "first.yaml"
    first_file.write_text("a: {x: 1, y: {z: 2}}\nb: [1, 2]\nc: 5\n")
    second_file = tmp_path / "second.yaml"
    second_file.write_text("a: {y: {w: 3}}\nb: [3]\nc: {d: 6}\n")
    command_line = {"a": {"x": 7}, "e": 8}
    merged_by_snakemake: dict[str, object] = {}
    update_config(merged_by_snakemake, yaml.safe_load(first_file.read_text()))
    update_config(merged_by_snakemake, yaml.safe_load(second_file.read_text()))
    update_config(merged_by_snakemake, command_line)

    merged = text.merge_configurations([first_file, second_file], command_line)

    assert merged == merged_by_snakemake


FIRST_FILE = """\
studies:
  x:
    {removed: [1,
     12]}
models:
  v1.5: {source: x}
  v1: {}
"""
SECOND_FILE = """\
models:
  a:
    b: 1
"""


@pytest.mark.parametrize(
    ("message", "location"),
    [
        ("models.a.b: is no key", "second.yaml, line 3"),
        ("models.a: is no key", "second.yaml, line 2"),
        ("studies.x.removed[1]: 12 is too many", "first.yaml, line 4"),
        ("studies.x.selectors: is missing", "first.yaml, line 2"),
        ("models.v1.5.source: no such folder", "first.yaml, line 6"),
    ],
)
def test_a_refusal_names_the_line_of_its_key(tmp_path: Path, message: str, location: str) -> None:
    files = [tmp_path / "first.yaml", tmp_path / "second.yaml"]
    files[0].write_text(FIRST_FILE)
    files[1].write_text(SECOND_FILE)

    assert text.locate_key(files, message) == f"{tmp_path}/{location}"


@pytest.mark.parametrize(
    "message", ["calibrations: is missing", "the variant a/b: '1' is not defined"]
)
def test_a_refusal_of_no_key_in_a_file_names_no_line(file: Path, message: str) -> None:
    file.write_text(FIRST_FILE)

    assert text.locate_key([file], message) == ""


@pytest.mark.parametrize("content", ['{\n\t"models": {}}', "a: " + "[" * 9999])
def test_a_file_that_yaml_cannot_read_locates_no_key(file: Path, content: str) -> None:
    file.write_text(content)

    assert text.locate_key([file], "models.v1: no such folder") == ""
