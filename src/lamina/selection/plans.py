"""The request that every strategy gets, the plan that it returns, and the plan as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import ceil, inf
from pathlib import Path
from typing import Any

from lamina.models.units import parse, replacement
from lamina.store import checksum as seal
from lamina.store import parquet as store

SLACK = 1e-9  # sums of shares are rounded


@dataclass(frozen=True)
class Plan:
    """The units that a selector removes at one size, in order of removal, base numbering.

    `accuracy_before[i]` and `accuracy_after[i]` are the calibration accuracies around the i-th removal where they were
    measured. A unit such as `7.@math` is not removed: another layer takes its place, and `replacements` says whose. A
    refused plan has no units; `refused` says why, and what to do. `choice` says what a portfolio found: the `member`
    and the `repair` of the winner, and the losses of the others.
    """

    model: str
    calibration: str
    selector: str
    removed: int
    metric: str | None
    strategy: str
    kind: str
    units: list[str] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    accuracy_before: list[float | None] = field(default_factory=list)
    accuracy_after: list[float | None] = field(default_factory=list)
    refused: str | None = None
    replacements: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """The evidence about the current model when a strategy decides."""

    ranked: Sequence[
        tuple[str, float | None]
    ] = ()  # the present units with their scores, least relevant first
    current_accuracy: float | None = None  # on the calibration
    accuracies: dict[str, float] = field(default_factory=dict)  # after each unit's removal
    angles: dict[tuple[int, int], float] = field(
        default_factory=dict
    )  # by start and span, of the base model


@dataclass(frozen=True)
class Prices:
    """What units count in a size: one each, and halves of both kinds the share of a layer's price that they have."""

    kind: str = "layer"
    attention: float = 0.0  # the share of attention; the MLP has the rest

    @property
    def shares(self) -> dict[str, float]:
        """The price of a half by its component, if there are halves of both kinds."""
        return (
            {"attention": self.attention, "mlp": 1 - self.attention} if self.kind == "both" else {}
        )

    def of(self, units: Iterable[str]) -> float:
        """What units count together; a replacement counts nothing."""
        shares = self.shares
        return sum(shares.get(parse(unit)[1], 1.0) for unit in units if not replacement(unit))

    def size(self, units: Iterable[str]) -> int:
        """The largest size that units are enough for."""
        return int(self.of(units) + SLACK)

    def enough(self, order: Iterable[str], size: float) -> list[str]:
        """The first units of an order that count at least `size`, without those, from the last on, that could stay."""
        taken: list[str] = []
        for unit in order:
            if self.of(taken) > size - SLACK:
                break
            taken.append(unit)
        for unit in reversed(taken):
            rest = [other for other in taken if other != unit]
            taken = rest if self.of(rest) > size - SLACK else taken
        return taken


@dataclass(frozen=True)
class Request:
    """One size of one selector: `removed` units of `kind` outside the `protected` layers, of a model of `n_layers`."""

    removed: int
    kind: str
    n_layers: int
    protected: frozenset[int]
    seed: int
    kinds: Sequence[
        int
    ] = ()  # of its layers if the cut must not shift them, see `lamina.models.cutting.kinds`
    attention: float = 0.0  # the share of a layer's cost that its attention has

    @property
    def prices(self) -> Prices:
        return Prices(self.kind, self.attention)

    def may_go(self, unit: str) -> bool:
        return int(unit.split(".")[0]) not in self.protected

    def lowest(
        self, ranked: Sequence[tuple[str, float | None]], gone: Sequence[str] = ()
    ) -> list[tuple[str, float | None]]:
        """The lowest units that make up for what is to be removed beside those that are `gone`.

        Of halves of both kinds, those with the least sum of scores that have the price of so many layers, none more
        than it takes: the lowest of each kind, in the best of all numbers of attentions and MLPs.
        """
        free = [entry for entry in ranked if self.may_go(entry[0]) and entry[0] not in gone]
        needed, shares = self.removed - self.prices.of(gone), self.prices.shares
        if not shares:
            return free[: round(needed)]
        attentions, mlps = (
            [entry for entry in free if parse(entry[0])[1] == part] for part in shares
        )
        lacking = [needed - count * shares["attention"] for count in range(len(attentions) + 1)]
        counts = [max(0, ceil(share / shares["mlp"] - SLACK)) for share in lacking]
        # An attention more that saves no MLP could stay.
        numbers = [
            (n, count)
            for n, count in enumerate(counts)
            if count <= len(mlps) and count not in counts[:n]
        ]
        sets = [[*attentions[:n], *mlps[:count]] for n, count in numbers]
        best = min(sets, key=lambda each: sum(inf if score is None else score for _, score in each))
        return [entry for entry in free if entry in best]


def protected_layers(protect: Sequence[int], n_layers: int) -> frozenset[int]:
    """Layers that stay; negative numbers count from the end."""
    return frozenset(layer % n_layers for layer in protect)


def write(path: str | Path, plan: Plan) -> None:
    """Write a plan as JSON."""
    store.write_json(path, asdict(plan))


def read(path: str | Path) -> Plan:
    """Read a plan that `write` wrote.

    Raises LaminaError if the file is damaged.
    """
    written = seal.read_json(path)
    if stray := {field.name for field in fields(Plan)} ^ written.keys():
        raise seal.damaged(path, f"a plan has no '{min(stray)}', or lacks it")
    return Plan(**written)
