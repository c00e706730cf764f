"""The grammar of edits."""

import pytest

from lamina.errors import LaminaError
from lamina.models.units import check_edits, is_removal, parse_edit, parse_unit

NAMES = ["7", "7.attention", "7.mlp", "7x2", "7-9x2", "7-9x3~", "7<>8", "7=math:7", "7=a.b-2:11"]


@pytest.mark.parametrize("name", NAMES)
def test_an_edit_has_one_name(name: str) -> None:
    assert str(parse_edit(name)) == name


def test_names_are_read_as_what_they_say() -> None:
    edits = [tuple(parse_edit(name)) for name in NAMES]
    assert edits == [
        (7, "layer"),
        (7, "attention"),
        (7, "mlp"),
        (7, 7, 2, False),
        (7, 9, 2, False),
        (7, 9, 3, True),
        (7, 8),
        (7, "math", 7),
        (7, "a.b-2", 11),
    ]
    assert [is_removal(name) for name in NAMES] == [True] * 3 + [False] * 6
    assert [parse_unit(name)[0] for name in NAMES] == [7] * 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("seven", "'seven' is not an edit. Write '7'"),
        ("7.norm", "is not an edit"),
        ("7.@math", "'7=math:7' to take a layer"),
        ("-1", "is not an edit"),
        ("7x1", "at least twice: '7x2'"),
        ("7-9x1", "at least twice: '7-9x2'"),
        ("9-7x2", "'7-9x2'"),
        ("8<>7", "Write '7<>8'"),
        ("7<>7", "two different layers"),
    ],
)
def test_what_is_no_edit_is_refused_with_what_to_write(name: str, message: str) -> None:
    with pytest.raises(LaminaError, match=message):
        parse_edit(name)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (["12"], "layer 12 does not exist"),
        (["10-12x2"], "layer 12 does not exist"),
        (["3=math:12"], "layer 12 does not exist"),
        (["3", "3"], "named twice"),
        (["3-5x2", "5-6x2"], "'3-5x2' and '5-6x2' both change layer 5"),
        (["3<>5", "5"], "both change layer 5"),
    ],
)
def test_edits_that_exclude_each_other_are_refused(edits: list[str], message: str) -> None:
    with pytest.raises(LaminaError, match=message):
        check_edits(edits, 12)


def test_edits_of_different_layers_go_together() -> None:
    check_edits(["3<>5", "4", "6.mlp", "6.attention", "7-9x2~", "10=math:3"], 12)
