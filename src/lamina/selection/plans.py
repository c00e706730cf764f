"""What a strategy is asked for, the evidence on which it decides, and the plan that it returns.

A plan lists the edits of one selector at one size; for most selectors, these are the units to
remove. It is a JSON file of a few kB.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import ceil, floor, inf
from pathlib import Path
from typing import Any, NamedTuple

from lamina.models.units import Removal, Repetition, parse_edit, parse_unit
from lamina.store import checksum, parquet

ROUNDING = 1e-9  # prices are sums of shares, which are rounded


class ScoredUnit(NamedTuple):
    """A unit and its relevance score; None where the metric is undefined."""

    unit: str
    score: float | None


@dataclass(frozen=True)
class Plan:
    """The edits of a selector at one size, in their order.

    The field names are the keys of the JSON file.
    """

    model: str
    calibration: str
    selector: str
    removed: int
    """The size: what the removed units count, minus the layers that run again (`UnitPrices`)."""
    metric: str | None
    strategy: str
    kind: str
    """`layer`, `attention`, `mlp` or `both`."""
    units: list[str] = field(default_factory=list)
    """Edits, numbered as in the base model (`lamina.models.units`)."""
    scores: list[float | None] = field(default_factory=list)
    """Score of each unit when it was removed."""
    accuracy_before: list[float | None] = field(default_factory=list)
    """Accuracy on the calibration before each removal; None where it was not measured."""
    accuracy_after: list[float | None] = field(default_factory=list)
    refused: str | None = None
    """Why there is no plan of this size, and what to do. Such a plan has no units."""
    replacements: dict[str, Any] = field(default_factory=dict)
    """Records of the donor models, by name."""
    choice: dict[str, Any] = field(default_factory=dict)
    """What a portfolio chose: the winner's `member` and `repair`, and the losses of the others."""


@dataclass(frozen=True)
class StepEvidence:
    """What is known of the current model when a strategy decides."""

    ranked: Sequence[ScoredUnit] = ()
    """The units of the current model, least relevant first."""
    current_accuracy: float | None = None
    """Accuracy of the current model on the calibration."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """Accuracy on the calibration after the removal of each unit."""
    distances: dict[tuple[int, int], float] = field(default_factory=dict)
    """Distance between boundaries `start` and `start + span` of the base model, by (start, span)."""


@dataclass(frozen=True)
class UnitPrices:
    """What units count towards a size, in layers.

    If all units are of one kind, each counts 1. With `units: both`, a sub-layer counts its share of
    a layer's cost.
    """

    kind: str = "layer"
    attention_share: float = 0.0
    """The attention's share of a layer's cost. The rest is the MLP's."""

    @property
    def share_by_component(self) -> dict[str, float]:
        """The price of each sub-layer with `units: both`; empty for units of one kind."""
        if self.kind != "both":
            return {}
        return {"attention": self.attention_share, "mlp": 1 - self.attention_share}

    def sum_prices(self, units: Iterable[str]) -> float:
        """What units count together. Layers that run again are subtracted."""
        component_shares = self.share_by_component
        total_price = 0.0
        for edit in map(parse_edit, units):
            if isinstance(edit, Removal):
                total_price += component_shares.get(edit.component, 1.0)
            elif isinstance(edit, Repetition):
                total_price -= edit.n_extra
        return total_price

    def size_of(self, units: Iterable[str]) -> int:
        """The largest size that the units reach."""
        return floor(self.sum_prices(units) + ROUNDING)

    def take_enough(self, ordered_units: Iterable[str], size: float) -> list[str]:
        """The first units of an order that count at least `size`, without superfluous ones.

        The last units are the first to be tested for being superfluous.
        """
        taken_units: list[str] = []
        for unit in ordered_units:
            if self._is_enough(taken_units, size):
                break
            taken_units.append(unit)
        for unit in reversed(taken_units):
            other_units = [other for other in taken_units if other != unit]
            if self._is_enough(other_units, size):
                taken_units = other_units
        return taken_units

    def _is_enough(self, units: Iterable[str], size: float) -> bool:
        return self.sum_prices(units) > size - ROUNDING


@dataclass(frozen=True)
class PlanRequest:
    """The request to a strategy: one size of one selector."""

    removed: int
    """The size to reach, counted as in `UnitPrices`."""
    kind: str
    n_layers: int
    protected: frozenset[int]
    """Indices of the layers that must not be removed."""
    seed: int
    layer_kinds: Sequence[int] = ()
    """Kind of each layer (`lamina.models.cutting.kinds_by_layer`), if kinds must not shift."""
    attention_share: float = 0.0
    """The attention's share of a layer's cost."""
    given_layers: Sequence[int] = ()
    """The layers that the configuration names. Negative ones are counted from the end."""
    given_edits: Sequence[str] = ()
    """The edits that the configuration names."""

    @property
    def prices(self) -> UnitPrices:
        return UnitPrices(self.kind, self.attention_share)

    def is_removable(self, unit: str) -> bool:
        return parse_unit(unit)[0] not in self.protected

    def select_lowest_units(
        self, ranked_units: Sequence[ScoredUnit], removed: Sequence[str] = ()
    ) -> list[ScoredUnit]:
        """The least relevant units that bring those already `removed` to the requested size.

        With `units: both` these are the lowest attentions and the lowest MLPs. Their numbers
        minimise the sum of scores at this price, and no unit is superfluous.
        """
        candidates = [
            entry
            for entry in ranked_units
            if self.is_removable(entry.unit) and entry.unit not in removed
        ]
        missing_price = self.removed - self.prices.sum_prices(removed)
        if self.kind != "both":
            return candidates[: round(missing_price)]
        best_set = min(self._sets_of_sub_layers(candidates, missing_price), key=_sum_of_scores)
        return [entry for entry in candidates if entry in best_set]

    def _sets_of_sub_layers(
        self, candidates: Sequence[ScoredUnit], missing_price: float
    ) -> list[list[ScoredUnit]]:
        """For every n: the lowest n attentions, and as many of the lowest MLPs as the size needs.

        missing_price: The price that is still missing to reach the size.

        An n that needs no fewer MLPs than a smaller one is left out: its last attention would be
        superfluous.
        """
        attentions = [entry for entry in candidates if parse_unit(entry.unit)[1] == "attention"]
        mlps = [entry for entry in candidates if parse_unit(entry.unit)[1] == "mlp"]
        component_shares = self.prices.share_by_component
        sublayer_sets: list[list[ScoredUnit]] = []
        fewest_mlps = inf
        for n_attentions in range(len(attentions) + 1):
            price_of_mlps = missing_price - n_attentions * component_shares["attention"]
            n_mlps = max(0, ceil(price_of_mlps / component_shares["mlp"] - ROUNDING))
            if n_mlps <= len(mlps) and n_mlps < fewest_mlps:
                sublayer_sets.append([*attentions[:n_attentions], *mlps[:n_mlps]])
            fewest_mlps = min(fewest_mlps, n_mlps)
        return sublayer_sets


def _sum_of_scores(entries: Iterable[ScoredUnit]) -> float:
    return sum(inf if entry.score is None else entry.score for entry in entries)


def protected_layers(protect: Sequence[int], n_layers: int) -> frozenset[int]:
    """Indices of the protected layers; negative numbers count from the end."""
    return frozenset(layer_index % n_layers for layer_index in protect)


def write_plan(path: str | Path, plan: Plan, job_description: str = "") -> None:
    """Write a plan as JSON. `job_description`, if given, records which job wrote the file."""
    parquet.write_json(path, asdict(plan), job_description)


def read_plan(path: str | Path) -> Plan:
    """Read a plan that `write_plan` wrote.

    Raises LaminaError if the file is damaged.
    """
    plan_fields = checksum.read_json(path)
    if wrong_keys := {field.name for field in fields(Plan)} ^ plan_fields.keys():
        raise checksum.damaged_file(
            path, f"key '{min(wrong_keys)}' of a plan is missing or unknown"
        )
    return Plan(**plan_fields)
