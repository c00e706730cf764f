"""Read YAML files as trees of nodes. Faults that PyYAML ignores or explains badly are refused.

The message names the line.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lamina.errors import LaminaError
from lamina.store.yaml_errors import describe_yaml_error

# An alias counts as the values that it stands for.
_MAX_VALUES = 100_000


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises LaminaError if it is not a regular file, or not UTF-8; the message names the line.
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


def read_task_file(
    path: str | Path, constructors: Mapping[str, Callable[[yaml.Loader, yaml.Node], Any]]
) -> dict[str, Any]:
    """The values of a YAML 1.1 file whose keys are those of lm-eval.

    constructors: For tags that YAML does not define, such as `!function`.

    Raises LaminaError if it is not a mapping; the message names the file, the line, the fault and
    what to write.
    """
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    for tag, constructor in constructors.items():
        loader.add_constructor(tag, constructor)

    text = read_text(path)
    root = compose_nodes(path, text, loader)
    if not isinstance(root, yaml.MappingNode):
        raise LaminaError(f"{path} holds no keys at the top level. Write `key: value` lines.")
    return construct_values(path, text, root, loader)


def construct_values(
    path: str | Path, text: str, root: yaml.MappingNode, loader: Any
) -> dict[str, Any]:
    """The values of a tree of nodes."""
    try:
        return dict(loader("").construct_document(root))
    except yaml.MarkedYAMLError as error:
        raise LaminaError(f"{path}, {describe_yaml_error(error, text.splitlines())}") from None
    except ValueError as error:  # `!!int twelve`
        raise LaminaError(f"{path}: a value does not fit its tag: {error}.") from None


def compose_nodes(path: str | Path, text: str, loader: Any) -> yaml.Node | None:
    """The tree of nodes of a YAML text; None for an empty one.

    Raises LaminaError if it is not YAML, or aliases make it larger than a person would write it.
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
            f"{path}: its lists or mappings are nested too deeply to be read. Use fewer levels."
        ) from None
    return root


def _check_size(path: str | Path, root: yaml.Node) -> None:
    if _count_values(path, root, {}) > _MAX_VALUES:
        raise LaminaError(
            f"{path} holds more than {_MAX_VALUES} values, counting each alias (*name) as what it "
            "stands for. Write it without aliases, or as several files."
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
            f"{path}, line {node.start_mark.line + 1}: an alias (*name) is inside the value that "
            "it refers to, so that value would never end. Write the value itself."
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
