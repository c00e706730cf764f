"""The names of units and edits, and what an edited model runs at each depth.

A unit is what can be removed: `"7"` is a layer, `"7.attention"` and `"7.mlp"` are its sub-layers.
An edit changes which layers run, and in which order:

    7, 7.mlp     layer 7 is removed, or its MLP
    7x2, 7-9x2   layer 7 runs twice; layers 7 to 9 run, then the three of them once more
    7-9x2~       the same, damped: h <- h + (B(h) - h) / 2, twice, where B is the block 7 to 9
    7<>8         layers 7 and 8 exchange their places
    7=math:7     layer 7 of the model `math` runs instead of layer 7

Layers are numbered as in the base model, also in a model with other edits. Only one edit may change
a layer, but two may remove its two sub-layers.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from lamina.errors import LaminaError

COMPONENTS = ("layer", "attention", "mlp")
SUBLAYERS = frozenset({"attention", "mlp"})

_GRAMMAR = re.compile(
    r"(?P<layer>\d+)"
    r"((\.(?P<component>layer|attention|mlp))?"
    r"|(-(?P<last>\d+))?x(?P<times>\d+)(?P<damped>~?)"
    r"|<>(?P<other>\d+)"
    r"|=(?P<donor>.+):(?P<source>\d+))"
)


class Removal(NamedTuple):
    """A layer or sub-layer that does not run."""

    layer: int
    component: str = "layer"

    @property
    def layers(self) -> range:
        """The layers that are changed."""
        return range(self.layer, self.layer + 1)

    def __str__(self) -> str:
        return f"{self.layer}" if self.component == "layer" else f"{self.layer}.{self.component}"


class Repetition(NamedTuple):
    """A block of layers that runs several times."""

    first: int
    last: int
    times: int = 2
    is_damped: bool = False

    @property
    def layers(self) -> range:
        """The layers that are changed."""
        return range(self.first, self.last + 1)

    @property
    def n_extra(self) -> int:
        """How many more layers run."""
        return (self.times - 1) * len(self.layers)

    def __str__(self) -> str:
        last = "" if self.last == self.first else f"-{self.last}"
        return f"{self.first}{last}x{self.times}{'~' if self.is_damped else ''}"


class Exchange(NamedTuple):
    """Two layers, each of which runs at the depth of the other."""

    layer: int
    other: int

    @property
    def layers(self) -> tuple[int, int]:
        """The layers that are changed."""
        return self.layer, self.other

    def __str__(self) -> str:
        return f"{self.layer}<>{self.other}"


class Replacement(NamedTuple):
    """A layer that is replaced by a layer of another model."""

    layer: int
    donor: str
    source: int
    """Index of the other model's layer."""

    @property
    def layers(self) -> range:
        """The layers that are changed."""
        return range(self.layer, self.layer + 1)

    def __str__(self) -> str:
        return f"{self.layer}={self.donor}:{self.source}"


Edit = Removal | Repetition | Exchange | Replacement


@lru_cache(maxsize=1 << 16)
def parse_edit(text: str) -> Edit:
    """Parse the name of an edit; `str` gives the name back.

    >>> parse_edit("7.mlp"), parse_edit("7-9x2")
    (Removal(layer=7, component='mlp'), Repetition(first=7, last=9, times=2, is_damped=False))

    Raises LaminaError if the text is not an edit; it says how edits are written.
    """
    match = _GRAMMAR.fullmatch(str(text))
    if match is None:
        raise LaminaError(
            f"'{text}' is not an edit. Write '7', '7.attention' or '7.mlp' to remove a layer or a "
            "sub-layer, '7x2' or '7-9x2' to run layers twice ('7-9x2~' with damping), '7<>8' to "
            "exchange two layers, '7=math:7' to take a layer of the model 'math'."
        )
    layer = int(match["layer"])
    if match["times"]:
        last = int(match["last"] or layer)
        if last < layer or int(match["times"]) < 2:
            shortest = Repetition(min(layer, last), max(layer, last))
            raise LaminaError(
                f"'{text}' repeats nothing. Write the first layer before the last one, and how "
                f"often the block runs, at least twice: '{shortest}'."
            )
        return Repetition(layer, last, int(match["times"]), bool(match["damped"]))
    if match["other"]:
        other = int(match["other"])
        if other == layer:
            raise LaminaError(f"'{text}' does not name two different layers, as in '7<>8'.")
        if other < layer:
            raise LaminaError(f"'{text}' names the deeper layer first. Write '{other}<>{layer}'.")
        return Exchange(layer, other)
    if match["donor"]:
        return Replacement(layer, match["donor"], int(match["source"]))
    return Removal(layer, match["component"] or "layer")


def parse_unit(unit: str) -> tuple[int, str]:
    """Layer index and component of a unit, by which units are sorted.

    For an edit that removes nothing, these are the first layer and the rest of its name.

    >>> parse_unit("7"), parse_unit("7.mlp"), parse_unit("7-9x2")
    ((7, 'layer'), (7, 'mlp'), (7, '-9x2'))

    Raises LaminaError if the text is not an edit.
    """
    edit = parse_edit(unit)
    if isinstance(edit, Removal):
        return edit.layer, edit.component
    return edit.layers[0], str(edit).removeprefix(str(edit.layers[0]))


def is_removal(edit: str) -> bool:
    """Whether an edit removes a unit."""
    return isinstance(parse_edit(edit), Removal)


def removals_among(edits: Iterable[str]) -> list[str]:
    """The edits that remove a unit."""
    return [edit for edit in edits if is_removal(edit)]


def describe_moves(edits: Iterable[str]) -> str:
    """Describe the edits that remove nothing, in words; empty if there are none.

    >>> describe_moves(["3", "7-9x2", "12x3~"])
    'runs layers 7 to 9 twice, runs layer 12 3 times (damped)'
    """
    phrases: list[str] = []
    for edit in map(parse_edit, edits):
        if isinstance(edit, Repetition):
            is_single = edit.first == edit.last
            layers = f"layer {edit.first}" if is_single else f"layers {edit.first} to {edit.last}"
            times = "twice" if edit.times == 2 else f"{edit.times} times"
            phrases.append(f"runs {layers} {times}{' (damped)' if edit.is_damped else ''}")
        elif isinstance(edit, Exchange):
            phrases.append(f"exchanges layers {edit.layer} and {edit.other}")
        elif isinstance(edit, Replacement):
            phrases.append(f"runs layer {edit.source} of {edit.donor} instead of {edit.layer}")
    return ", ".join(phrases)


def list_replacements(units: Iterable[str], donors: Sequence[str]) -> list[str]:
    """The edits that replace a layer by a donor's layer of the same index."""
    layers = [int(unit) for unit in units]
    return [str(Replacement(layer, donor, layer)) for layer in layers for donor in donors]


def list_blocks(layers: Iterable[int], length: int) -> list[range]:
    """All blocks of `length` consecutive layers, from the first one on.

    >>> list_blocks([0, 1, 2, 5, 6], 2)
    [range(0, 2), range(1, 3), range(5, 7)]
    """
    available_layers = set(layers)
    blocks = [range(first, first + length) for first in sorted(available_layers)]
    return [block for block in blocks if available_layers.issuperset(block)]


def all_units(n_layers: int, kind: str, removed: Sequence[str] = ()) -> list[str]:
    """The units of one kind that are not removed, from the first layer on.

    kind: `layer`, `attention`, `mlp`, or `both` for the two sub-layers of each layer.
    """
    units = units_of_layers(range(n_layers), n_layers, kind)
    return [unit for unit in units if unit not in removed]


def units_of_layers(layers: Iterable[int], n_layers: int, kind: str) -> list[str]:
    """The units of one kind in these layers, in their order.

    layers: Negative ones are counted from the end.

    >>> units_of_layers([4, -1], 6, "both")
    ['4.attention', '4.mlp', '5.attention', '5.mlp']
    """
    suffixes = {"layer": ("",), "both": (".attention", ".mlp")}.get(kind, (f".{kind}",))
    return [f"{layer % n_layers}{suffix}" for layer in layers for suffix in suffixes]


class Visit(NamedTuple):
    """One run of a layer."""

    layer: int
    without: frozenset[str] = frozenset()
    """Sub-layers that add nothing to the stream."""
    donor: str = ""
    """The model that has the layer; empty for the base model."""


class Step(NamedTuple):
    """What runs at one depth: layers that run again, and then one layer or none."""

    visit: Visit | None
    again: tuple[Visit, ...] = ()
    """Layers of lower depths that run again, before `visit`."""
    damping: int = 1
    """r: the repeated block B does h <- h + (B(h) - h) / r, and does so r times."""


def list_steps(edits: Iterable[str], depth: int, empty_is_identity: bool = True) -> list[Step]:
    """What a model of `depth` layers runs at each depth, and after its last layer.

    A damped block runs at the depth after it, and nothing runs at its own depths.

    edits: Edits that `check_edits` accepts.
    empty_is_identity: Whether a layer that has lost both sub-layers is the identity, and is
        skipped.
    """
    visits: list[Visit | None] = [*map(Visit, range(depth)), None]
    again: dict[int, tuple[tuple[Visit, ...], int]] = {}
    for edit in map(parse_edit, edits):
        if isinstance(edit, Removal):
            visits[edit.layer] = _remove(visits[edit.layer], edit.component, empty_is_identity)
        elif isinstance(edit, Repetition):
            block = tuple(map(Visit, edit.layers))
            if edit.is_damped:
                again[edit.last + 1] = block, edit.times
                visits[edit.first : edit.last + 1] = [None] * len(block)
            else:
                again[edit.last + 1] = block * (edit.times - 1), 1
        elif isinstance(edit, Exchange):
            visits[edit.layer] = Visit(edit.other)
            visits[edit.other] = Visit(edit.layer)
        else:
            visits[edit.layer] = Visit(edit.source, donor=edit.donor)
    return [Step(visit, *again.get(index, ())) for index, visit in enumerate(visits)]


def _remove(visit: Visit | None, component: str, empty_is_identity: bool) -> Visit | None:
    """The visit with one more component removed; None if nothing of it is left."""
    if visit is None or component == "layer":
        return None
    without = visit.without | {component}
    is_empty = without == SUBLAYERS and empty_is_identity
    return None if is_empty else visit._replace(without=without)


def list_visits(steps: Iterable[Step]) -> list[Visit]:
    """All visits of layers, in their order."""
    visits: list[Visit] = []
    for step in steps:
        visits += step.again * step.damping
        if step.visit is not None:
            visits.append(step.visit)
    return visits


def check_edits(edits: Iterable[str], depth: int) -> None:
    """Refuse edits that a model of `depth` layers cannot have together.

    Raises LaminaError if a layer does not exist, or if two edits change a layer and do not both
    remove a unit.
    """
    parsed: set[Edit] = set()
    edit_by_layer: dict[int, Edit] = {}
    for edit in map(parse_edit, edits):
        if edit in parsed:
            raise LaminaError(f"unit '{edit}' is named twice.")
        parsed.add(edit)
        for layer in edit.layers:
            _check_exists(layer, depth)
            earlier = edit_by_layer.setdefault(layer, edit)
            is_only_removed = isinstance(earlier, Removal) and isinstance(edit, Removal)
            if earlier is not edit and not is_only_removed:
                raise LaminaError(
                    f"'{earlier}' and '{edit}' both change layer {layer}. Write one edit for it."
                )
        if isinstance(edit, Replacement):
            _check_exists(edit.source, depth)


def _check_exists(layer: int, depth: int) -> None:
    if layer >= depth:
        raise LaminaError(f"layer {layer} does not exist: the model has layers 0 … {depth - 1}.")
