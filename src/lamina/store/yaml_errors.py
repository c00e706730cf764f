"""Rewrite PyYAML's error messages so that they say what to write instead."""

import re
from dataclasses import dataclass

import yaml


@dataclass(frozen=True)
class _Meaning:
    """What a message of PyYAML means, and what to write; {0} is the text that PyYAML quotes."""

    fault: str
    remedy: str


_MEANINGS = {
    r"found character '\\t'.*": _Meaning(
        "a tab begins the line or a value",
        "Indent with spaces",
    ),
    r"found character '(.)'.*": _Meaning(
        "a value begins with '{0}'",
        'Put it in quotes, such as "{0}…"',
    ),
    r"mapping values are not allowed here": _Meaning(
        "there is a colon where no key can be",
        "Write one `key: value` per line, the key indented like its neighbours, and put a text "
        "with colons in quotes",
    ),
    r"expected ',' or '([]}])', but got.*": _Meaning(
        "a comma or the closing '{0}' of a list or mapping is missing",
        "Write [a, b] or {{a: 1, b: 2}}, closed by '{0}'",
    ),
    r"expected <block end>, but found.*": _Meaning(
        "the line does not belong to what is above it",
        "Indent it like its neighbours: keys under keys, `- ` under `- `",
    ),
    r"could not find expected ':'": _Meaning(
        "a key has no colon",
        "Write `key: value`",
    ),
    r"found unexpected end of stream": _Meaning(
        "a quote is never closed",
        "Close it on its line",
    ),
    r"found unknown escape character '(.)'": _Meaning(
        r"'\{0}' has no meaning in double quotes",
        "Use single quotes",
    ),
    r"found undefined alias '(.*)'": _Meaning(
        "*{0} refers to an anchor that is not defined above it",
        'Define &{0} there, or put the text in quotes: "*{0}"',
    ),
    r"expected the node content, but found '(.*)'": _Meaning(
        "'{0}' is where a value should be",
        "Write a value, or null",
    ),
    r"but found another document": _Meaning(
        "a second document begins",
        "Delete the line `---`",
    ),
}


def describe_yaml_error(error: yaml.MarkedYAMLError, lines: list[str]) -> str:
    """`line 3, at `b: [`: what is wrong. What to write.`

    lines: The lines of the file.
    """
    problem = str(error.problem)
    line_index = error.problem_mark.line if error.problem_mark else 0

    opening = ""
    if error.context_mark and error.context_mark.line != line_index:
        # An unclosed bracket or quote is corrected where it was opened.
        if "end of stream" in problem:
            line_index = error.context_mark.line
        elif problem.startswith("expected ','"):
            opening = f" It was opened on line {error.context_mark.line + 1}."

    fault = problem
    remedy = "See https://yaml.org/spec/1.2 or put texts in quotes"
    for pattern, meaning in _MEANINGS.items():
        match = re.fullmatch(pattern, problem)
        if match:
            fault = meaning.fault.format(*match.groups())
            remedy = meaning.remedy.format(*match.groups())
            break

    shown = "the end of the file"
    if line_index < len(lines):
        shown = lines[line_index].strip()
    return f"line {line_index + 1}, at `{shown}`: {fault}.{opening} {remedy}."
