"""`lamina.select`: choose what is removed, step by step or by a search."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.api.inputs import NamedEntries, PreparedCalibration, PreparedModel
from lamina.api.variants import PrunedModel, find_calibrations
from lamina.engine import memory
from lamina.engine.capture import capture_similarities
from lamina.errors import LaminaError
from lamina.options.metrics import METRICS, MODULES
from lamina.options.repairs import IN_LOOP, Repair
from lamina.options.selectors import Selector, check_share, share_of_layers
from lamina.selection.choosing import choose_plan, collect_evidence, empty_plan
from lamina.selection.named_layers import check_named_layers
from lamina.selection.options import CalibrationSweep, Loop
from lamina.selection.plans import Plan
from lamina.selection.removals import removal_rows, share_units
from lamina.selection.sets import SearchRequest
from lamina.store import parquet
from lamina.variant import Variant


def select(
    base: PreparedModel,
    calibrations: PreparedCalibration | Sequence[PreparedCalibration],
    removed: int | str | Sequence[int | str],
    *,
    name: str | None = None,
    repairs: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> list[PrunedModel]:
    """Choose what is removed from a model, at one size or several.

    Args:
        base: The model.
        calibrations: The samples on which the choice is made. Others may follow, for options that
            name them: `also`, `judge`, and `data` of a repair.
        removed: A size or several: a number of layers, or a share of them such as `"25%"`. Layers
            that run again count against those removed: 0 is the same number of layers, repeated or
            reordered. All sizes share passes, so ask for them together.
        name: What tables and exports call this selector; by default its `strategy`.
        repairs: Repairs by name, with the keys of `repairs` in a configuration. A portfolio judges
            every set of layers bare and with each of them; option `repair` of other strategies
            names one.
        **options: Keys of `selectors` in a configuration, such as `strategy="portfolio"` or
            `metric="perplexity"`. docs/choose.md says what is good for what.

    Returns:
        The pruned models in the order of `removed`, none of them repaired.

    Raises LaminaError if an option or a size is not allowed, or nothing can be chosen (a
    model at chance has no accuracy to lose).
    """
    if isinstance(calibrations, PreparedCalibration):
        calibrations = [calibrations]
    if isinstance(removed, int | str):
        removed = [removed]
    given = {calibration.name: calibration for calibration in calibrations}
    if len(given) < len(calibrations):
        raise LaminaError(
            "calibrations: two have one name. Prepare one of them under another name."
        )
    name = name or str(options.get("strategy", Selector.USUAL))
    entries = _read_options(name, repairs or {}, options)
    selection = _Selection(base, given, name, entries.selectors[name], entries.repairs)
    sizes = [_count_removed(entry, selection.selector, base.n_layers) for entry in removed]
    plan_by_size = selection.make_plans(sorted(set(sizes)))
    return [selection.prune(plan_by_size[size]) for size in sizes]


def _read_options(
    name: str, repairs: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> NamedEntries:
    """The selector and the repairs of a selection.

    A strategy that tries several repairs tries all that are given.
    """
    kind = Selector.kind_of(Selector.tag(options) or "")
    selector = dict(options)
    if kind is not None and "repairs" in kind.model_fields:
        selector["repairs"] = list(repairs)
    entries = NamedEntries.from_options({"selectors": {name: selector}, "repairs": dict(repairs)})
    entry = entries.selectors[name]
    if entry.donors:
        raise LaminaError(
            f"selectors.{name}.donors: layers of other models can only be tried by the workflow. "
            "Write a configuration and run it (lamina run), or leave `donors` out."
        )
    if entry.repair is not None and entry.repair not in entries.repairs:
        raise LaminaError(
            f"selectors.{name}.repair: '{entry.repair}' is not defined. Give its options, such as "
            f'repairs={{"{entry.repair}": {{"method": "ghost"}}}}.'
        )
    return entries


def _count_removed(entry: int | str, selector: Selector, n_layers: int) -> int:
    """Convert a size to a number of layers.

    Raises LaminaError if it is not a size, or not one that plans of the selector can have.
    """
    sizes = selector.allowed_sizes(n_layers)
    try:
        size = share_of_layers(check_share(entry), n_layers) if isinstance(entry, str) else entry
    except ValueError:
        size = None
    if size is None or size not in sizes:
        raise LaminaError(
            f"removed: {entry!r} is not a size for strategy '{selector.strategy}'. Write a number "
            f"from {sizes.start} to {sizes.stop - 1}, or a share of the {n_layers} layers such as "
            '"25%".'
        )
    return size


class _Selection:
    """One selector on one model and its calibrations, as the jobs of rules/prune.smk apply it."""

    def __init__(
        self,
        base: PreparedModel,
        given: Mapping[str, PreparedCalibration],
        name: str,
        selector: Selector,
        repairs: Mapping[str, Repair],
    ) -> None:
        self.base = base
        self.given = given
        self.selector = selector
        self.repairs = repairs
        self.own = next(iter(given))
        self.keys = {"model": base.name, "calibration": self.own, "selector": name}
        self.loop: Loop | None = None
        if selector.repair is not None:
            self.loop = self._put_in_place(repairs[selector.repair])
        check_named_layers(name, selector, base.name, base.n_layers)

    def make_plans(self, sizes: Sequence[int]) -> dict[int, Plan]:
        """The plans of these sizes, in increasing order.

        Raises LaminaError if one is refused.
        """
        if self.selector.SEARCHES:
            plans = self._search(sizes)
        elif self.selector.STEPS:
            plans = self._go_on(sizes[-1])
        else:
            activations = self._capture() if self.selector.CAPTURED else None
            plans = self._choose(sizes, activations)
        for plan in plans:
            if plan.refused:
                raise LaminaError(f"{plan.selector}, removed={plan.removed}: {plan.refused}")
        return {plan.removed: plan for plan in plans}

    def prune(self, plan: Plan) -> PrunedModel:
        """The model of a plan."""
        variant = Variant(**self.keys, removed=plan.removed)
        chosen_repair = plan.choice.get("repair") or self.selector.repair
        return PrunedModel(self.base, self.given, variant, plan, self.repairs, chosen_repair)

    def _search(self, sizes: Sequence[int]) -> list[Plan]:
        """The plans of all sizes from one search."""
        questions = None
        if self.selector.judge_by == "written":
            judge = find_calibrations(self.given, self.selector.judge or self.own, [])
            questions = self._draw_questions(next(iter(judge.values())), "judge_by: written")
        request = SearchRequest(
            model=self.base.model,
            calibrations={
                name: calibration.content for name, calibration in self._find_read().items()
            },
            selector=self.selector,
            sizes=sizes,
            keys=self.keys,
            score=self.given[self.own].entry.score,
            loops={name: self._put_in_place(self.repairs[name]) for name in self.selector.repairs},
            manifest=self.base.manifest,
            questions=questions,
        )
        plans, _ = import_module(self.selector.SEARCH).search_plans(request)
        return list(plans)

    def _go_on(self, largest: int) -> list[Plan]:
        """The plans of all sizes up to the largest, each made from the plan before it."""
        plans: list[Plan] = []
        for size in range(1, largest + 1):
            plans += self._choose([size], previous=plans[-1] if plans else None)
        return plans

    def _choose(
        self,
        sizes: Sequence[int],
        activations: pa.Table | None = None,
        previous: Plan | None = None,
    ) -> list[Plan]:
        """The plans of some sizes, given the evidence about the model that `previous` leaves."""
        selector = self.selector
        sweeps: dict[str, CalibrationSweep] = {}
        if selector.SWEEPS and not (previous and previous.refused):
            sweeps = self._sweep(previous)
        refused, evidence = collect_evidence(selector, sweeps, activations, previous)
        layer_kinds: Sequence[int] = ()
        if selector.periods == "whole":
            layer_kinds = import_module("lamina.models.cutting").kinds_of(self.base.manifest)
        plans: list[Plan] = []
        for size in sizes:
            keys = {**self.keys, "removed": size}
            if refused:
                plans.append(empty_plan(selector, keys, refused))
                continue
            plan = choose_plan(
                selector,
                keys,
                self.base.n_layers,
                evidence,
                previous,
                layer_kinds=layer_kinds,
                attention_share=selector.attention(self.base.manifest["attention_share"]),
            )
            plans.append(plan)
        return plans

    def _sweep(self, previous: Plan | None) -> dict[str, CalibrationSweep]:
        """The sweeps of the model that `previous` leaves, by calibration, its own first."""
        removed_units = previous.units if previous else []
        units = share_units(self.base.n_layers, self.selector.units, removed_units)
        sweeps: dict[str, CalibrationSweep] = {}
        for name in (self.own, *sorted(set(self.selector.also) - {self.own})):
            fitted_on = [calibration for calibration, _ in self.loop.weights] if self.loop else []
            read = find_calibrations(self.given, name, fitted_on)
            metric = METRICS[self.selector.metric or ""]
            questions = None
            if metric.writes:
                questions = self._draw_questions(read[name], f"metric: {metric.name}")
            rows = removal_rows(
                self.base.model,
                {read_name: calibration.content for read_name, calibration in read.items()},
                units,
                removed_units,
                metric.pass_,
                loop=self.loop,
                questions=questions,
            )
            n_removed = previous.removed if previous else 0
            keys = {**self.keys, "calibration": name, "removed": n_removed}
            sweeps[name] = CalibrationSweep(
                parquet.from_rows("sweeps", rows, **keys),
                read[name].content.facts["chance_accuracy"],
                read[name].entry.score,
                self.selector.also.get(name, 1.0) if name != self.own else 1.0,
            )
        return sweeps

    def _draw_questions(self, calibration: PreparedCalibration, option: str) -> Any:
        """The questions of a calibration for models to answer in writing, as `option` asks."""
        module = import_module(MODULES["generate"])
        return module.draw_questions(
            calibration.name,
            calibration.entry,
            calibration.content.samples,
            self.base.model,
            self.base.manifest,
            Path.cwd(),
            option,
        )

    def _capture(self) -> pa.Table:
        """Table `activations` of the selector's own calibration."""
        calibration = self.given[self.own].content
        model = self.base.model
        token_budget = memory.choose_token_budget("auto", model, calibration.samples)
        rows = capture_similarities(model, calibration.sequences(), token_budget)
        return parquet.from_rows("activations", rows, model=self.base.name, calibration=self.own)

    def _put_in_place(self, repair: Repair) -> Loop:
        """A repair that is in place while candidates are scored."""
        return Loop(
            repair=repair,
            weights=repair.ordered_weights(self.own, IN_LOOP),
            protect=list(self.selector.protect),
            seed=self.selector.seed,
        )

    def _find_read(self) -> dict[str, PreparedCalibration]:
        """The calibrations that a search reads, its own first."""
        names: set[str] = set(self.selector.also)
        if self.selector.judge:
            names.add(self.selector.judge)
        for repair in self.repairs.values():
            names.update(repair.weights(self.own, auto=0.0))
        return find_calibrations(self.given, self.own, names)
