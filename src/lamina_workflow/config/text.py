"""Read the text of configuration files, which are YAML 1.2.

Snakemake reads the configuration too, as YAML 1.1. Its values are not used, but its grammar is the
same: both use PyYAML's scanner, so one can read what the other can. Faults that PyYAML explains
badly or ignores are refused with their line.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lamina.errors import LaminaError
from lamina.store.yaml_files import compose_nodes, construct_values, read_text
from lamina_workflow.config.yaml_loader import CoreLoader

# The files that commands find by themselves: of a project, and of a folder of `lamina prune`.
DEFAULT_CONFIGURATIONS = ("config/config.yaml", "config.yaml")
# A non-breaking space that indents a line or follows a key.
_NO_BREAK_SPACE = re.compile(r"^ *\xa0|^[ -]*[\w.-]+: *\xa0", re.MULTILINE)


def read_configuration(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file.

    The file is a YAML 1.2 (or JSON) mapping whose keys are each given once.

    Raises LaminaError; its message names the file, the line, the fault and what to write.
    """
    text = read_text(path)
    no_break_space = _NO_BREAK_SPACE.search(text)
    if no_break_space:
        line_number = text[: no_break_space.end()].count("\n") + 1
        raise LaminaError(
            f"{path}, line {line_number}: YAML treats the non-breaking space there as a letter. "
            "Write an ordinary space."
        )

    try:
        root_node = compose_nodes(path, text, CoreLoader)
    except LaminaError:
        # Snakemake tries JSON first, which may be indented with tabs.
        values = _json_mapping(text)
        if values is None:
            raise
        return values

    if not isinstance(root_node, yaml.MappingNode):
        raise LaminaError(
            f"{path} holds no keys at the top level. Write `models: ...`, `studies: ...` and so on."
        )
    _check_keys(path, root_node, "", set())
    return construct_values(path, text, root_node, CoreLoader)


def check_same_study(file: Path, text: str) -> None:
    """Refuse to overwrite a configuration with a different one.

    Raises LaminaError if the file exists with another text.
    """
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise LaminaError(
            f"{file} is another study, or was edited. To run it: cd {file.parent} && lamina run. "
            f"To begin a new one: --folder NAME, or first rm -r {file.parent}"
        )


def merge_configurations(
    files: Iterable[str | Path], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of several configuration files, then of the command line; the last one counts.

    Mappings are merged key by key, as in Snakemake.

    Raises LaminaError as `read_configuration` does.
    """
    merged_values: dict[str, Any] = {}
    for file in files:
        merged_values = _merge(merged_values, read_configuration(file))
    return _merge(merged_values, overrides)


def _merge(earlier: Any, later: Mapping[str, Any]) -> dict[str, Any]:
    merged_values = dict(earlier) if isinstance(earlier, Mapping) else {}
    for key, value in later.items():
        merged_values[key] = (
            _merge(merged_values.get(key), value) if isinstance(value, Mapping) else value
        )
    return merged_values


def _check_keys(path: str | Path, node: yaml.Node, dotted_key: str, checked_ids: set[int]) -> None:
    """Refuse a key that is given twice in one mapping.

    dotted_key: The dotted key of the node.
    checked_ids: Ids of the nodes that were already checked; aliases reach them again.
    """
    if id(node) in checked_ids:
        return
    checked_ids.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            _check_keys(path, entry, f"{dotted_key}[{index}]", checked_ids)
    if not isinstance(node, yaml.MappingNode):
        return

    line_by_key: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        key_name = f"{dotted_key}.{key.value}".lstrip(".")
        key_line = key.start_mark.line + 1
        if key.value in line_by_key:
            raise LaminaError(
                f"{path}: the key '{key_name}' is given twice, on line {line_by_key[key.value]} "
                f"and on line {key_line}, and only one would count. Delete one, merge what is "
                "under both, or rename one."
            )
        line_by_key[key.value] = key_line
        _check_keys(path, value, key_name, checked_ids)


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
    """Locate the key that a message begins with, such as `selectors.mine.metric: …`.

    Returns `file, line n` of the longest part of the key that a file contains. Of equally good
    files, the last one counts. Empty if no file contains any part of the key.
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
    """How many steps of a dotted key a file contains, and the line of the last one."""
    try:
        node = compose_nodes(file, read_text(file), yaml.SafeLoader)
    except LaminaError:  # JSON that is indented with tabs, or the file that the message is about
        return 0, 0
    n_steps = 0
    line = 0
    while key:
        # A name may itself contain dots, so the longest name that fits counts.
        fitting_steps = [
            longest_step for longest_step in _steps(node) if _begins_with(key, longest_step.name)
        ]
        if not fitting_steps:
            break
        longest_step = max(fitting_steps, key=lambda longest_step: len(longest_step.name))
        key = key[len(longest_step.name) :].removeprefix(".")
        n_steps += 1
        line = longest_step.line
        node = longest_step.value
    return n_steps, line


def _steps(node: yaml.Node | None) -> list[_Step]:
    """The possible next steps of a key at a node."""
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
