"""Candidates: models that are evaluated without building them, and the tree of their streams.

A candidate is a sequence of operations, one per layer. An edit of layer l changes nothing before l.
So all streams start as one, and split at the first layer where the operations of their candidates
differ: the streams of a pass form a prefix tree. A tree says what a pass will do, and so what it
will cost. Nothing here computes with tensors or imports torch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lamina.models.units import Step, list_steps, parse_edit, parse_unit

if TYPE_CHECKING:
    from lamina.models.boundary import Boundary, Patch

CURRENT = "none"
"""Name of the current model, before a removal, in scores and tables."""


class Operation(NamedTuple):
    """What happens to a stream at one depth.

    First layers may run again, then a patch repairs the stream, then it runs through a layer or
    skips it.
    """

    step: Step
    patch: "Patch | None" = None

    @property
    def runs(self) -> bool:
        """Whether a layer runs after the patch."""
        return self.step.visit is not None


@dataclass(frozen=True)
class Candidate:
    """The base model with `edits`, and with a patch at the boundary of each removed run.

    Two candidates are equal if they have the same edits and the same patch objects. A copy of a
    patch counts as another patch.
    """

    edits: frozenset[str] = frozenset()
    patches: "Mapping[Boundary, Patch]" = field(default_factory=dict, hash=False)
    until: int | None = None
    """Last boundary at which the stream is needed (2: after layer 1); None to score the logits."""

    def without(self, *units: str) -> "Candidate":
        """This candidate with additional edits, such as removed units."""
        return replace(self, edits=self.edits.union(units))

    def has_room_for(self, edit: str) -> bool:
        """Whether an edit changes only layers that this candidate leaves unchanged."""
        changed_layers = set(parse_edit(edit).layers)
        return all(changed_layers.isdisjoint(parse_edit(other).layers) for other in self.edits)

    def list_operations(self, depth: int, empty_is_identity: bool) -> list[Operation]:
        """One operation per layer, and one for the boundary after the last layer.

        empty_is_identity: Whether a layer that has lost both sub-layers is the identity, and is
            skipped.
        """
        patches = {int(end): patch for (_, end), patch in self.patches.items()}
        steps = list_steps(self.edits, depth, empty_is_identity)
        return [Operation(step, patches.get(index)) for index, step in enumerate(steps)]


@dataclass(frozen=True)
class Observation:
    """What a unit does to a model's stream: two streams, compared after the unit's layer."""

    model: Candidate
    layer: int
    before: Candidate | None
    """The candidate whose stream is the unit's input; None if the unit reads the layer's input."""
    after: Candidate
    """The candidate whose stream is the unit's output."""


def observe_unit(model: Candidate, unit: str, is_parallel: bool) -> Observation:
    """The two streams that show what a unit does.

    Attention is observed in a layer without its MLP, a parallel MLP in a layer without its
    attention. A sequential MLP is the step from the layer without it to the complete layer.

    is_parallel: Whether both sub-layers read the layer's input; otherwise the MLP reads the output
        of attention.
    """
    layer, component = parse_unit(unit)
    complete = replace(model, until=layer + 1)
    without_attention = complete.without(f"{layer}.attention")
    without_mlp = complete.without(f"{layer}.mlp")
    if component == "attention":
        return Observation(model, layer, None, without_mlp)
    if component == "mlp" and is_parallel:
        return Observation(model, layer, None, without_attention)
    if component == "mlp":
        return Observation(model, layer, without_mlp, complete)
    return Observation(model, layer, None, complete)


def plan_sweep(
    current: Candidate,
    units: Sequence[str],
    parallel_layers: Collection[int] = (),
    is_removing: bool = True,
) -> tuple[dict[str, Candidate], dict[str, Observation]]:
    """What a sweep measures: its candidates and its observations, by unit.

    The candidates are `current` after the removal of each unit, and `current` itself under the name
    CURRENT.

    parallel_layers: Indices of the layers whose sub-layers both read the layer's input.
    is_removing: Whether to remove the units, too, instead of only observing them.

    Raises LaminaError if one of `units` is not a unit.
    """
    candidates = {CURRENT: current}
    observations: dict[str, Observation] = {}
    for unit in units:
        layer, _ = parse_unit(unit)
        if is_removing:
            candidates[unit] = current.without(unit)
        observations[unit] = observe_unit(current, unit, layer in parallel_layers)
    return candidates, observations


def carried_models(candidates: Iterable[Candidate], outputs: bool) -> list[Candidate]:
    """The models of a pass: candidates, and the base model if `outputs` are compared with it."""
    models = list(candidates)
    if outputs:
        models.append(Candidate())
    return models


class Branch(NamedTuple):
    """A stream at a layer: the index of the stream that it comes from, and its operation."""

    source: int
    operation: Operation


class View(NamedTuple):
    """An observation at the layer where it is made."""

    observation_number: int
    before: int
    """Index of the branch that is the unit's input."""
    reads_input: bool
    """Whether that branch is compared as it entered the layer."""
    after: int
    """Index of the branch that is the unit's output."""


@dataclass(frozen=True)
class Level:
    """One layer of a tree."""

    branches: tuple[Branch, ...]
    """The streams after the layer. Those that run through it come first."""
    n_running: int
    views: tuple[View, ...]
    kept: tuple[int, ...]
    """Indices of the branches that the next level needs, in the order of its streams."""


@dataclass(frozen=True)
class Tree:
    """The streams of a pass."""

    levels: tuple[Level, ...]
    """One level for each layer, and one for the boundary after the last layer."""
    leaves: tuple[int, ...]
    """Index of the final stream of each candidate."""

    @property
    def width(self) -> int:
        """The largest number of streams at a time."""
        return max(max(level.n_running, len(level.kept)) for level in self.levels)

    @property
    def layers(self) -> int:
        """The number of layers that run, over all streams: the cost of one token."""
        steps = [branch.operation.step for level in self.levels for branch in level.branches]
        n_again = sum(len(step.again) * step.damping for step in steps)
        return n_again + sum(level.n_running for level in self.levels)

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether a layer runs before its own depth, as in an exchange."""
        for depth, level in enumerate(self.levels):
            for branch in level.branches[: level.n_running]:
                visit = branch.operation.step.visit
                if visit is not None and visit.layer > depth:
                    return True
        return False


def grow_tree(
    candidates: Sequence[Candidate],
    observations: Sequence[Observation],
    depth: int,
    empty_is_identity: bool,
) -> Tree:
    """The tree that carries the candidates through all layers and makes the observations.

    empty_is_identity: See `Candidate.list_operations`.
    """
    carried_candidates: dict[Candidate, None] = dict.fromkeys(candidates)
    for observation in observations:
        if observation.before is not None:
            carried_candidates[observation.before] = None
        carried_candidates[observation.after] = None

    trunk = _Trunk(list(carried_candidates), depth, empty_is_identity)
    levels = [trunk.grow_level(layer, observations) for layer in range(depth + 1)]
    stream_of: dict[Candidate, int] = {}
    for stream, stream_members in enumerate(trunk.streams):
        for candidate in stream_members:
            stream_of[candidate] = stream
    return Tree(tuple(levels), tuple(stream_of[candidate] for candidate in candidates))


class _Fork(NamedTuple):
    """A branch, and the candidates that share its stream."""

    branch: Branch
    members: list[Candidate]


class _Trunk:
    """Grows a tree layer by layer. `streams` holds the candidates of each current stream."""

    def __init__(self, candidates: list[Candidate], depth: int, empty_is_identity: bool) -> None:
        self.streams = [candidates] if candidates else []
        self._operations = {
            candidate: candidate.list_operations(depth, empty_is_identity)
            for candidate in candidates
        }

    def grow_level(self, layer: int, observations: Sequence[Observation]) -> Level:
        """Split the streams at a layer, and drop those that end after it."""
        forks, n_running = self._split_streams(layer)
        branch_of: dict[Candidate, int] = {}
        for branch_number, fork in enumerate(forks):
            for candidate in fork.members:
                branch_of[candidate] = branch_number

        views: list[View] = []
        for observation_number, observation in enumerate(observations):
            if observation.layer == layer:
                before = branch_of[observation.before or observation.after]
                reads_input = observation.before is None
                after = branch_of[observation.after]
                views.append(View(observation_number, before, reads_input, after))

        kept_branches: list[int] = []
        self.streams = []
        for branch_number, fork in enumerate(forks):
            members = [candidate for candidate in fork.members if candidate.until != layer + 1]
            if members:
                kept_branches.append(branch_number)
                self.streams.append(members)
        branches = tuple(fork.branch for fork in forks)
        return Level(branches, n_running, tuple(views), tuple(kept_branches))

    def _split_streams(self, layer: int) -> tuple[list[_Fork], int]:
        """The branches of all streams, and how many run through the layer; these come first."""
        running_forks: list[_Fork] = []
        split_off: list[_Fork] = []
        skipping_forks: list[_Fork] = []
        for source_stream, members in enumerate(self.streams):
            has_heir = False
            for operation, group in self._group_by_operation(members, layer).items():
                fork = _Fork(Branch(source_stream, operation), group)
                if not operation.runs:
                    skipping_forks.append(fork)
                elif has_heir:
                    split_off.append(fork)
                else:
                    # The first branch that runs keeps the index of its stream, to avoid a copy.
                    running_forks.append(fork)
                    has_heir = True

        def sort_key(fork: _Fork) -> tuple[bool, str, int]:
            # Streams that end after this layer come last, so that they can be cut off. Streams
            # through the same module are neighbours.
            ends_here = all(candidate.until == layer + 1 for candidate in fork.members)
            visit = fork.branch.operation.step.visit
            assert visit is not None
            return ends_here, visit.donor, visit.layer

        split_off.sort(key=sort_key)
        return running_forks + split_off + skipping_forks, len(running_forks) + len(split_off)

    def _group_by_operation(
        self, members: Iterable[Candidate], layer: int
    ) -> dict[Operation, list[Candidate]]:
        groups: dict[Operation, list[Candidate]] = {}
        for candidate in members:
            groups.setdefault(self._operations[candidate][layer], []).append(candidate)
        return groups
