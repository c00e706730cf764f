"""The text of YAML files: the configuration by YAML 1.2, and task files by YAML 1.1 as in lm-eval.

Snakemake reads the configuration too, by YAML 1.1. Its values are not taken, only its grammar: both
use the scanner of PyYAML, so what one can read the other can. Faults that PyYAML explains badly or
ignores are refused with their line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lamina.config.yaml_errors import describe_yaml_error
from lamina.config.yaml_loader import CoreLoader
from lamina.errors import LaminaError

# A non-breaking space that indents a line or follows a key.
_NO_BREAK_SPACE = re.compile(r"^ *\xa0|^[ -]*[\w.-]+: *\xa0", re.MULTILINE)

# Values in a file; an alias counts as the values that it stands for.
_MAX_VALUES = 100_000


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises LaminaError if it is no plain file, or not UTF-8; the message names the line.
    """
    if not Path(path).is_file():
        raise LaminaError(f"{path}: there is no such file.")
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        encoding = "latin1"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            encoding = "utf-16"
        raise LaminaError(
            f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8. Save the file as "
            f"UTF-8 in your editor, or convert it: iconv -f {encoding} -t utf-8 {path}"
        ) from None


def read_configuration(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file.

    The file is a YAML 1.2 (or JSON) mapping whose keys are each given once.

    Raises LaminaError, which names the file, the line, what is wrong there and what to write.
    """
    text = read_text(path)
    no_break_space = _NO_BREAK_SPACE.search(text)
    if no_break_space:
        line = text[: no_break_space.end()].count("\n") + 1
        raise LaminaError(
            f"{path}, line {line}: YAML takes the non-breaking space there for a letter. Write an "
            "ordinary space."
        )

    try:
        root = _compose(path, text, CoreLoader)
    except LaminaError:
        # Snakemake tries JSON first, which may be indented with tabs.
        values = _json_mapping(text)
        if values is None:
            raise
        return values

    if not isinstance(root, yaml.MappingNode):
        raise LaminaError(
            f"{path} holds no keys at the top level. Write `models: ...`, `studies: ...` and so on."
        )
    _check_keys(path, root, "", set())
    return _construct(path, text, root, CoreLoader)


def merge_configurations(
    files: Iterable[str | Path], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of several configuration files, then of the command line; later values count.

    Mappings are merged key by key, as in Snakemake.

    Raises LaminaError as `read_configuration` does.
    """
    merged: dict[str, Any] = {}
    for file in files:
        merged = _merge(merged, read_configuration(file))
    return _merge(merged, overrides)


def _merge(earlier: Any, later: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(earlier) if isinstance(earlier, Mapping) else {}
    for key, value in later.items():
        merged[key] = _merge(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def read_task_file(
    path: str | Path, constructors: Mapping[str, Callable[[yaml.Loader, yaml.Node], Any]]
) -> dict[str, Any]:
    """The values of a YAML 1.1 file whose keys are those of lm-eval.

    constructors: For tags that are not YAML's own, such as `!function`.

    Raises LaminaError if it is no mapping; the message names the file, the line, what is wrong
    there and what to write.
    """
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    for tag, constructor in constructors.items():
        loader.add_constructor(tag, constructor)

    text = read_text(path)
    root = _compose(path, text, loader)
    if not isinstance(root, yaml.MappingNode):
        raise LaminaError(f"{path} holds no keys at the top level. Write `key: value` lines.")
    return _construct(path, text, root, loader)


def _construct(path: str | Path, text: str, root: yaml.MappingNode, loader: Any) -> dict[str, Any]:
    """The values of a tree of nodes."""
    try:
        return dict(loader("").construct_document(root))
    except yaml.MarkedYAMLError as error:
        raise LaminaError(f"{path}, {describe_yaml_error(error, text.splitlines())}") from None
    except ValueError as error:  # `!!int twelve`
        raise LaminaError(f"{path}: a value does not fit its tag: {error}.") from None


def _compose(path: str | Path, text: str, loader: Any) -> yaml.Node | None:
    """The tree of nodes of a YAML text; None of an empty one.

    Raises LaminaError if it is no YAML, or its aliases make it larger than a person would write it.
    """
    try:
        root: yaml.Node | None = yaml.compose(text, loader)
        if root is not None:
            _check_size(path, root)
    except yaml.MarkedYAMLError as error:
        raise LaminaError(f"{path}, {describe_yaml_error(error, text.splitlines())}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise LaminaError(
            f"{path}, line {line}: character {error.character:#x} is not allowed in YAML. Delete "
            "it."
        ) from None
    except RecursionError:
        raise LaminaError(
            f"{path}: its lists or mappings are nested too deep to be read. Write it flatter."
        ) from None
    return root


def _check_size(path: str | Path, root: yaml.Node) -> None:
    if _count_values(path, root, {}) > _MAX_VALUES:
        raise LaminaError(
            f"{path} holds more than {_MAX_VALUES} values, each alias (*name) counted as what it "
            "stands for. Write it without the aliases, or as several files."
        )


def _count_values(path: str | Path, node: yaml.Node, counts: dict[int, int]) -> int:
    """The number of values in a node.

    counts: By the id of a node; 0 for nodes that are being counted.
    """
    if id(node) not in counts:
        counts[id(node)] = 0
        n_inside = sum(_count_values(path, child, counts) for child in _children(node))
        counts[id(node)] = 1 + n_inside
    elif counts[id(node)] == 0:
        raise LaminaError(
            f"{path}, line {node.start_mark.line + 1}: an alias (*name) stands inside what it "
            "refers to, so its value never ends. Write the value itself."
        )
    return counts[id(node)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    """The entries of a sequence, or the keys and values of a mapping."""
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            children += [key, value]
    return children


def _check_keys(path: str | Path, node: yaml.Node, where: str, checked_ids: set[int]) -> None:
    """Refuse a key that is given twice in one mapping.

    where: The dotted key of the node.
    checked_ids: Ids of the nodes that were checked, which aliases reach again.
    """
    if id(node) in checked_ids:
        return
    checked_ids.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            _check_keys(path, entry, f"{where}[{index}]", checked_ids)
    if not isinstance(node, yaml.MappingNode):
        return

    line_by_key: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = f"{where}.{key.value}".lstrip(".")
        line = key.start_mark.line + 1
        if key.value in line_by_key:
            raise LaminaError(
                f"{path}: the key '{name}' is given twice, on line {line_by_key[key.value]} and on "
                f"line {line}, and only one would count. Delete one, merge what is under both, or "
                "rename one."
            )
        line_by_key[key.value] = line
        _check_keys(path, value, name, checked_ids)


def _json_mapping(text: str) -> dict[str, Any] | None:
    """The values of a JSON object; None for any other text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


class _Step(NamedTuple):
    """One step of a dotted key in a tree of nodes."""

    name: str
    line: int
    value: yaml.Node


def locate_key(files: Iterable[str | Path], message: str) -> str:
    """Where the key stands that a message begins with, such as `selectors.mine.metric: …`.

    Returns `file, line n` of the longest part of the key that a file holds, in the last file that
    holds so much; empty if no file holds a part of it.
    """
    match = re.match(r"\S+(?=: )", message)
    if match is None:
        return ""
    most_steps = 0
    location = ""
    for file in files:
        n_steps, line = _find_key(file, match[0])
        if n_steps > 0 and n_steps >= most_steps:
            most_steps = n_steps
            location = f"{file}, line {line}"
    return location


def _find_key(file: str | Path, key: str) -> tuple[int, int]:
    """How many steps of a dotted key a file holds, and the line of the last one."""
    try:
        node = _compose(file, read_text(file), yaml.SafeLoader)
    except LaminaError:  # JSON that is indented with tabs, or the file that the message is about
        return 0, 0
    n_steps = 0
    line = 0
    while key:
        # A name may hold dots itself, so the longest one that fits counts.
        fitting = [step for step in _steps(node) if _begins_with(key, step.name)]
        if not fitting:
            break
        step = max(fitting, key=lambda step: len(step.name))
        key = key[len(step.name) :].removeprefix(".")
        n_steps += 1
        line = step.line
        node = step.value
    return n_steps, line


def _steps(node: yaml.Node | None) -> list[_Step]:
    """The steps that a key can go on with from a node."""
    if isinstance(node, yaml.MappingNode):
        return [_Step(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [
            _Step(f"[{index}]", entry.start_mark.line + 1, entry)
            for index, entry in enumerate(node.value)
        ]
    return []


def _begins_with(key: str, name: str) -> bool:
    return re.match(re.escape(name) + r"(?=[.\[]|$)", key) is not None
