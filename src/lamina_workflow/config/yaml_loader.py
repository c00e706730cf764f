"""A YAML loader that reads unquoted values by the core schema of YAML 1.2.

PyYAML's own loaders follow YAML 1.1, where `010` is 8, `0_64` is 52, `10:50` is 650 and `on` is
true.
"""

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
# The type of an unquoted value, by its form and its possible first characters.
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
    """A whole number that remembers how it was written, for keys whose values are text.

    An example is `revision: 0012345`.
    """

    written: str


class WrittenFloat(float):
    """A number that remembers how it was written, for keys whose values are text.

    An example is `revision: 1.10`.
    """

    written: str


class CoreLoader(yaml.SafeLoader):
    """Reads values by the core schema of YAML 1.2, and every key of a mapping as text."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Make a mapping; what is merged into it (`<<`) counts as its own."""
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = f"{_TAG}str"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_whole_number(self, node: Any) -> WrittenInt:
        """Make a whole number: decimal with or without leading zeros, `0o17` or `0x1f`."""
        number_digits = node.value.lower()
        number_base = {"0o": 8, "0x": 16}.get(number_digits[:2], 10)
        number = WrittenInt(number_digits, number_base)
        number.written = node.value
        return number

    def construct_number(self, node: Any) -> WrittenFloat:
        """Make a number with a point or an exponent, `.inf` or `.nan`."""
        number_digits = node.value.lower()
        if number_digits.endswith((".inf", ".nan")):
            number_digits = number_digits.replace(".", "")
        number = WrittenFloat(number_digits)
        number.written = node.value
        return number


for _type, _form, _first_characters in _CORE_SCHEMA:
    CoreLoader.add_implicit_resolver(
        f"{_TAG}{_type}", re.compile(f"(?:{_form})$"), _first_characters
    )
CoreLoader.add_constructor(f"{_TAG}int", CoreLoader.construct_whole_number)
CoreLoader.add_constructor(f"{_TAG}float", CoreLoader.construct_number)
