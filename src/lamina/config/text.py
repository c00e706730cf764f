"""The text of YAML files: the configuration by YAML 1.2, and task files as lm-eval reads them, by YAML 1.1.

Snakemake reads the configuration too, by YAML 1.1, where `010` is 8, `0_64` is 52, `10:50` is 650 and `on` is true. Its
values are not taken, only its grammar: both use the scanner of PyYAML, so what one can read the other can. Faults that
PyYAML explains badly or ignores are refused by their line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lamina.errors import LaminaError

# Messages of PyYAML, what they mean and what to write; {0} is the text that PyYAML quotes.
_WORDS = {
    r"found character '\\t'.*": ("a tab begins the line or a value", "Indent with blanks"),
    r"found character '(.)'.*": ("a value begins with '{0}'", 'Put it in quotes, such as "{0}…"'),
    r"mapping values are not allowed here": (
        "a colon stands where no key can be",
        "Write `key: value` with one colon, the key as deep as its neighbours, and a text with colons in quotes",
    ),
    r"expected ',' or '([]}])', but got.*": (
        "a list or mapping in brackets goes on without a comma or its '{0}'",
        "Write [a, b] or {{a: 1, b: 2}}, closed by '{0}'",
    ),
    r"expected <block end>, but found.*": (
        "the line is no part of what stands above it",
        "Indent it as deep as its neighbours: keys under keys, `- ` under `- `",
    ),
    r"could not find expected ':'": ("a key has no colon", "Write `key: value`"),
    r"found unexpected end of stream": ("a quote is never closed", "Close it on its line"),
    r"found unknown escape character '(.)'": (
        r"'\{0}' in double quotes has no meaning",
        "Use single quotes",
    ),
    r"found undefined alias '(.*)'": (
        "*{0} refers to an anchor that is not above it",
        'Write &{0} there, or put the text in quotes: "*{0}"',
    ),
    r"expected the node content, but found '(.*)'": (
        "'{0}' stands where a value should",
        "Write a value, or null",
    ),
    r"but found another document": ("a second document begins", "Delete the line `---`"),
}


_NO_BREAK = re.compile(
    r"^ *\xa0|^[ -]*[\w.-]+: *\xa0", re.MULTILINE
)  # where a blank indents or follows a key
_MOST = 100_000  # values in a file; an alias counts as the values that it stands for

_TAG = "tag:yaml.org,2002:"
# The core schema of YAML 1.2: what a value without quotes is, by its form and its possible first characters.
_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    (
        "float",
        r"[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?[.](inf|Inf|INF)|[.](nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
    ("merge", r"<<", ["<"]),
)


class WrittenInt(int):
    """A whole number that remembers how it was written, for where a text is meant: `revision: 0012345`."""

    written: str


class WrittenFloat(float):
    """A number that remembers how it was written, for where a text is meant: `revision: 1.10`."""

    written: str


class _CoreLoader(yaml.SafeLoader):
    """Values by the core schema of YAML 1.2, and every key of a mapping as the text that it is."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping; what is merged into it (`<<`) counts as its own."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = f"{_TAG}str"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_whole_number(self, node: Any) -> WrittenInt:
        """A whole number: decimal with or without leading zeros, `0o17` or `0x1f`."""
        digits = node.value.lower()
        base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
        number = WrittenInt(digits, base)
        number.written = node.value
        return number

    def construct_number(self, node: Any) -> WrittenFloat:
        """A number with a point or an exponent, `.inf` or `.nan`."""
        digits = node.value.lower()
        if digits.endswith((".inf", ".nan")):
            digits = digits.replace(".", "")
        number = WrittenFloat(digits)
        number.written = node.value
        return number


for _name, _form, _first_characters in _CORE_SCHEMA:
    _CoreLoader.add_implicit_resolver(
        f"{_TAG}{_name}", re.compile(f"(?:{_form})$"), _first_characters
    )
_CoreLoader.add_constructor(f"{_TAG}int", _CoreLoader.construct_whole_number)
_CoreLoader.add_constructor(f"{_TAG}float", _CoreLoader.construct_number)


def read(path: str | Path) -> str:
    """The text of a file. Raises LaminaError if it is no plain file, or not UTF-8; the message names the line."""
    if not Path(path).is_file():
        raise LaminaError(f"{path}: there is no such file.")
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        coding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
        raise LaminaError(
            f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8. Save the file as UTF-8 in your editor, "
            f"or convert it: iconv -f {coding} -t utf-8 {path}"
        ) from None


def read_configuration(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file, a YAML 1.2 (or JSON) mapping whose keys are each given once.

    Raises LaminaError, which names the file, the line, what is wrong there and what to write.
    """
    text = read(path)
    if odd := _NO_BREAK.search(text):
        line = text[: odd.end()].count("\n") + 1
        raise LaminaError(
            f"{path}, line {line}: YAML takes the non-breaking space there for a letter. Write a blank."
        )
    try:
        root = _composed(path, text, _CoreLoader)
    except LaminaError:
        # Snakemake tries JSON first, which may be indented with tabs.
        if (values := _json_mapping(text)) is not None:
            return values
        raise
    if not isinstance(root, yaml.MappingNode):
        raise LaminaError(
            f"{path} holds no keys at the top level. Write `models: ...`, `studies: ...` and so on."
        )
    _check_keys(path, root, "", set())
    return _constructed(path, text, root, _CoreLoader)


def merge_configurations(
    files: Iterable[str | Path], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of several configuration files, then of the command line; a later value counts.

    Mappings are merged key by key, as Snakemake does it. Raises LaminaError as `read_configuration` does.
    """
    merged: dict[str, Any] = {}
    for values in [*map(read_configuration, files), overrides]:
        merged = _merge(merged, values)
    return merged


def _merge(earlier: Any, later: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(earlier) if isinstance(earlier, Mapping) else {}
    for key, value in later.items():
        merged[key] = _merge(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def load(
    path: str | Path, constructors: Mapping[str, Callable[[yaml.Loader, yaml.Node], Any]]
) -> dict[str, Any]:
    """A mapping from a YAML 1.1 file, with `constructors` for tags that are not YAML's own.

    Raises LaminaError if it is no mapping; the message names the file, the line, what is wrong there and what to write.
    """
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    for tag, constructor in constructors.items():
        loader.add_constructor(tag, constructor)
    text = read(path)
    root = _composed(path, text, loader)
    if not isinstance(root, yaml.MappingNode):
        raise LaminaError(f"{path} holds no keys at the top level. Write `key: value` lines.")
    return _constructed(path, text, root, loader)


def _constructed(
    path: str | Path, text: str, root: yaml.MappingNode, loader: Any
) -> dict[str, Any]:
    """The values of a tree."""
    try:
        return dict(loader("").construct_document(root))
    except yaml.MarkedYAMLError as error:
        raise LaminaError(f"{path}, {_explained(error, text.splitlines())}") from None
    except ValueError as error:  # `!!int twelve`
        raise LaminaError(
            f"{path}: a value is not of the type that its tag says: {error}."
        ) from None


def _composed(path: str | Path, text: str, loader: Any) -> yaml.Node | None:
    """The tree of a YAML text; it is refused if its aliases make it larger than a person would write it."""
    try:
        root: yaml.Node | None = yaml.compose(text, loader)
        if root is not None and _size(path, root, {}) > _MOST:
            raise LaminaError(
                f"{path} holds more than {_MOST} values, each alias (*name) counted as what it stands for. Write it "
                "without the aliases, or as several files."
            )
    except yaml.MarkedYAMLError as error:
        raise LaminaError(f"{path}, {_explained(error, text.splitlines())}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise LaminaError(
            f"{path}, line {line}: character {error.character:#x} cannot stand in YAML. Delete it."
        ) from None
    except RecursionError:
        raise LaminaError(
            f"{path}: its lists or mappings are nested too deep to be read. Write it flatter."
        ) from None
    return root


def _size(path: str | Path, node: yaml.Node, known: dict[int, int]) -> int:
    """The number of values in a node. `known` holds the numbers of counted nodes, and 0 for nodes being counted."""
    if id(node) not in known:
        known[id(node)] = 0
        inside: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [
            part for entry in inside for part in (entry if isinstance(entry, tuple) else (entry,))
        ]
        known[id(node)] = 1 + sum(_size(path, part, known) for part in parts)
    elif known[id(node)] == 0:
        raise LaminaError(
            f"{path}, line {node.start_mark.line + 1}: an alias (*name) stands inside what it refers to, which has no "
            "end. Write the value itself."
        )
    return known[id(node)]


def place(files: Iterable[str | Path], message: str) -> str:
    """The place of the key at the start of a refusal such as `selectors.mine.metric: …`, or of its longest known part.

    Returns `file, line n`, in the last file that holds most of the key; empty if no file holds a part of it.
    """
    key = re.match(r"\S+(?=: )", message)
    places = [(*_line(file, key[0] if key else ""), file) for file in files]
    deepest = max(places, key=lambda spot: spot[0], default=(0, 0, ""))[0]
    return next(
        (f"{file}, line {line}" for depth, line, file in places[::-1] if depth == deepest > 0), ""
    )


def _line(file: str | Path, key: str) -> tuple[int, int]:
    """How many steps of a dotted key a file holds, and the line of the last."""
    node, depth, line = yaml.compose(read(file), yaml.SafeLoader), 0, 0
    while key:
        if isinstance(node, yaml.MappingNode):
            # A name may hold dots itself, so the longest one that fits counts.
            steps = [(str(name.value), name, value) for name, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            steps = [(f"[{number}]", value, value) for number, value in enumerate(node.value)]
        else:
            break
        fitting = [step for step in steps if re.match(re.escape(step[0]) + r"(?=[.\[]|$)", key)]
        if not fitting:
            break
        name, at, node = max(fitting, key=lambda step: len(step[0]))
        key, depth, line = key[len(name) :].removeprefix("."), depth + 1, at.start_mark.line + 1
    return depth, line


def _check_keys(path: str | Path, node: yaml.Node, where: str, seen: set[int]) -> None:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, entry in enumerate(node.value):
            _check_keys(path, entry, f"{where}[{number}]", seen)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name, line = f"{where}.{key.value}".lstrip("."), key.start_mark.line + 1
        if key.value in lines:
            raise LaminaError(
                f"{path}: the key '{name}' stands twice, in line {lines[key.value]} and in line {line}, and only one "
                "would count. Delete one, put what is under both under one, or rename one."
            )
        lines[key.value] = line
        _check_keys(path, value, name, seen)


def _json_mapping(text: str) -> dict[str, Any] | None:
    """The values of a JSON object; None for any other text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _explained(error: yaml.MarkedYAMLError, lines: list[str]) -> str:
    problem, opening = str(error.problem), ""
    place = error.problem_mark.line if error.problem_mark else 0
    if error.context_mark and error.context_mark.line != place:
        # An unclosed bracket or quote is corrected where it was opened.
        if "end of stream" in problem:
            place = error.context_mark.line
        elif problem.startswith("expected ','"):
            opening = f" It begins in line {error.context_mark.line + 1}."
    wrong, remedy = problem, "See https://yaml.org/spec/1.2 or put texts in quotes"
    for pattern, (meant, advice) in _WORDS.items():
        if match := re.fullmatch(pattern, problem):
            wrong, remedy = meant.format(*match.groups()), advice.format(*match.groups())
            break
    shown = lines[place].strip() if place < len(lines) else "the end of the file"
    return f"line {place + 1}, at `{shown}`: {wrong}.{opening} {remedy}."
