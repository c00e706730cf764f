"""Candidates: models to be evaluated without building them, and the tree of streams that evaluates many in one pass.

Layer by layer a candidate is a sequence of operations. Removing layer l changes nothing before l, so streams start as
one and split at the first layer where their candidates' operations differ: the streams of a pass are a prefix tree.
Nothing here computes with tensors or imports torch. A tree says what a pass will do, and so what it will cost:
`lamina.cost.work` asks it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from lamina.models.units import parse, replacement

if TYPE_CHECKING:
    from lamina.models.boundary import Boundary, Patch

# The name of the model before a removal, in scores and tables.
CURRENT = "none"
HALVES = frozenset({"attention", "mlp"})


class Operation(NamedTuple):
    """What a stream does at one layer: it is repaired, then it runs through the layer or passes it by.

    It may run `without` some parts of the layer, or through the layer of the model `other` instead of its own.
    """

    patch: "Patch | None" = None
    runs: bool = True
    without: frozenset[str] = frozenset()
    other: str = ""


@dataclass(frozen=True)
class Candidate:
    """The base model without its `removed` units, repaired by `patches` at the boundaries of its removed runs.

    A unit such as `7.@math` takes nothing away: layer 7 of that model is in the place of the model's own.

    `until` is the boundary behind which its stream is not needed (2: behind layer 1); None for a model to be scored.
    Two candidates are equal if they remove the same units and hold the same patches; equal copies do not count.
    """

    removed: frozenset[str] = frozenset()
    patches: "Mapping[Boundary, Patch]" = field(default_factory=dict, hash=False)
    until: int | None = None

    def without(self, *units: str) -> "Candidate":
        return replace(self, removed=self.removed.union(units))

    def changed(self, unit: str) -> "Candidate":
        """This candidate with one layer dropped or replaced, whatever was done to that layer before."""
        layer, _ = parse(unit)
        return replace(
            self,
            removed=frozenset(
                {unit, *(other for other in self.removed if parse(other)[0] != layer)}
            ),
        )

    def operations(self, depth: int, halves_are_all: bool) -> list[Operation]:
        """One operation per layer, and at the end one that runs nothing, for a patch behind the last layer.

        `halves_are_all` says whether a layer without both halves does nothing, so that it is passed by.
        """
        parts: dict[int, set[str]] = {}
        others = {parse(unit)[0]: other for unit in self.removed if (other := replacement(unit))}
        for layer, part in (parse(unit) for unit in self.removed if not replacement(unit)):
            parts.setdefault(layer, set()).add(part)
        repairs = {int(end): patch for (_, end), patch in self.patches.items()}
        operations = []
        for layer in range(depth + 1):
            here = parts.get(layer, set())
            without = frozenset(here)
            runs = (
                layer < depth
                and "layer" not in without
                and not (halves_are_all and without == HALVES)
            )
            operations.append(
                Operation(
                    repairs.get(layer), runs, *((without, others.get(layer, "")) if runs else ())
                )
            )
        return operations


@dataclass(frozen=True)
class Observation:
    """What a unit in `layer` does to the stream of `model`: the candidates whose streams are compared behind the layer.

    `before` is None where the unit reads what enters the layer.
    """

    model: Candidate
    layer: int
    before: Candidate | None
    after: Candidate


def observation(model: Candidate, unit: str, parallel: bool) -> Observation:
    """The streams that show what a unit does: a half's contribution is read off the stream without the other half.

    `parallel` says that both halves read the layer's input; else the MLP reads the output of attention.
    """
    layer, part = parse(unit)
    whole = replace(model, until=layer + 1)
    without_attention, without_mlp = (
        whole.without(f"{layer}.{half}") for half in ("attention", "mlp")
    )
    if part == "attention":
        return Observation(model, layer, None, without_mlp)
    if part == "mlp":
        return Observation(
            model, layer, *((None, without_attention) if parallel else (without_mlp, whole))
        )
    return Observation(model, layer, None, whole)


def swept(
    current: Candidate, units: Sequence[str], parallel: Collection[int] = (), removing: bool = True
) -> tuple[dict[str, Candidate], dict[str, Observation]]:
    """What a sweep measures: `current`, `current` after each removal, and what each unit does to the stream.

    Gives the candidates by unit, `current` by the name CURRENT, and the observations by unit. A unit may be a layer of
    another model, which takes the place of a layer and is not observed. `parallel` are numbers of the layers whose
    halves both read the layer's input. Without `removing`, `current` is the only candidate.

    Raises LaminaError if one of `units` is not the name of a unit.
    """
    wanted, observed = {CURRENT: current}, {}
    for unit in units:
        layer, part = parse(unit)
        if removing:
            wanted[unit] = current.without(unit) if part in HALVES else current.changed(unit)
        if not replacement(unit):
            observed[unit] = observation(current, unit, layer in parallel)
    return wanted, observed


def carried(wanted: Iterable[Candidate], outputs: bool) -> list[Candidate]:
    """The models of a pass: those `wanted`, then the unpruned model if `outputs` are compared with its own."""
    return [*wanted, *([Candidate()] if outputs else [])]


class Branch(NamedTuple):
    """A stream at one layer: the number of the stream it comes from, and its operation."""

    source: int
    operation: Operation


class View(NamedTuple):
    """Where an observation is made: its number, the branches to compare; `entering` if `before` entered the layer."""

    number: int
    before: int
    entering: bool
    after: int


@dataclass(frozen=True)
class Level:
    """One layer of a tree. `branches` are the streams behind it, the first `running` of them run through the layer.

    `kept` are the branches that are needed further on. They are the streams of the next level, in this order.
    """

    branches: tuple[Branch, ...]
    running: int
    views: tuple[View, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """The streams of a pass: `levels[l]` for each layer l, one more for the boundary behind the last layer.

    `leaves[i]` is the stream in which the i-th candidate arrives.
    """

    levels: tuple[Level, ...]
    leaves: tuple[int, ...]

    @property
    def width(self) -> int:
        """The most streams that there are at a time."""
        return max(max(level.running, len(level.kept)) for level in self.levels)

    @property
    def layers(self) -> int:
        """Layers run, over all streams: the cost of one token."""
        return sum(level.running for level in self.levels)


def grow(
    candidates: Sequence[Candidate],
    observations: Sequence[Observation],
    depth: int,
    halves_are_all: bool,
) -> Tree:
    """The tree that takes `candidates` to the end, and makes the observations on the way."""
    watched = [c for o in observations for c in (o.before, o.after) if c is not None]
    everything = list(dict.fromkeys([*candidates, *watched]))
    operations = {
        candidate: candidate.operations(depth, halves_are_all) for candidate in everything
    }
    streams, levels = [everything] if everything else [], []
    for layer in range(depth + 1):
        running: list[tuple[Branch, list[Candidate]]] = []
        forked: list[tuple[Branch, list[Candidate]]] = []
        passing: list[tuple[Branch, list[Candidate]]] = []
        for source, members in enumerate(streams):
            groups: dict[Operation, list[Candidate]] = {}
            for candidate in members:
                groups.setdefault(operations[candidate][layer], []).append(candidate)
            there = False
            for operation, group in groups.items():
                branch = (Branch(source, operation), group)
                # The first branch that runs keeps the place of its stream, so that nothing is copied without need.
                (passing if not operation.runs else forked if there else running).append(branch)
                there |= operation.runs
        # Streams that end with the layer stand last, so that they can be cut off.
        forked.sort(
            key=lambda branch: (
                all(candidate.until == layer + 1 for candidate in branch[1]),
                branch[0].operation.other,  # streams through one module stand together
            )
        )
        ordered = running + forked + passing
        place = {
            candidate: number for number, (_, group) in enumerate(ordered) for candidate in group
        }
        views = [
            View(number, place[seen.before or seen.after], seen.before is None, place[seen.after])
            for number, seen in enumerate(observations)
            if seen.layer == layer
        ]
        streams = [
            [candidate for candidate in group if candidate.until != layer + 1]
            for _, group in ordered
        ]
        kept = tuple(number for number, members in enumerate(streams) if members)
        streams = [streams[number] for number in kept]
        branches = tuple(branch for branch, _ in ordered)
        levels.append(Level(branches, len(running) + len(forked), tuple(views), kept))
    leaf = {candidate: number for number, members in enumerate(streams) for candidate in members}
    return Tree(tuple(levels), tuple(leaf[candidate] for candidate in candidates))
