"""One step of a selector: the evidence about the current model, from one calibration or several, and the plan."""

import json
from collections.abc import Mapping
from typing import Any

from lamina.config.selectors import Selector
from lamina.data.calibrations import METADATA_KEY
from lamina.modules import load
from lamina.relevance.columns import Context
from lamina.selection.evidence import read_angles, read_step
from lamina.selection.options import Given, Scored
from lamina.selection.plans import Plan, Request, Step, protected_layers
from lamina.store import parquet as store


def empty(selector: Selector, keys: Mapping[str, Any], refused: str | None = None) -> Plan:
    """A plan without units: the one before a selector's first step, or one that is `refused` for this reason.

    `keys` are model, calibration, selector and removed.
    """
    metric, strategy, kind = selector.metric, selector.strategy, selector.units
    return Plan(**keys, metric=metric, strategy=strategy, kind=kind, refused=refused)


def evidence(
    selector: Selector,
    scored: Mapping[str, Scored],
    activations: str | None = None,
    previous: Plan | None = None,
) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and the evidence about the model that `previous` leaves.

    Parameters
    ----------
    scored
        The sweeps that are read, by the names of their calibrations, the variant's own first; none for a strategy that
        reads no sweep.
    activations
        The captured activations of the unpruned model, for a strategy that compares runs of layers.
    previous
        The plan with one unit less that an iterative step goes on from; None for a step from the unpruned model.
    """
    refused, step = previous.refused if previous else None, Step()
    if refused is None and scored:
        gone, steps = previous.removed if previous else 0, []
        for name, each in scored.items():
            facts = json.loads(store.read(each.calibration, ["sample"]).schema.metadata[METADATA_KEY])
            context = Context(facts["chance_accuracy"], each.score, gone, selector.seed)
            reason, seen = read_step(each.sweep, selector.metric or "", context, name)
            refused = refused or reason
            steps.append(seen)
        step = steps[0]
        if len(steps) > 1 and refused is None:
            weights = [each.weight for each in scored.values()]
            step = load("lamina.selection.combined").mixed(steps, weights, selector.combine)
    if activations:
        step = Step(angles=read_angles(activations, selector.metric or ""))
    return refused, step


def choose(
    selector: Selector,
    keys: Mapping[str, Any],
    n_layers: int,
    step: Step,
    previous: Plan | None = None,
    replacements: Given | None = None,
) -> Plan:
    """The plan of the size `keys["removed"]` for a model of `n_layers` layers."""
    protected = protected_layers(selector.protect, n_layers)
    request = Request(keys["removed"], selector.units, n_layers, protected, selector.seed)
    before = previous or empty(selector, keys)
    if replacements:
        steps = load("lamina.selection.strategies.replacements")
        plan: Plan = steps.with_records(steps.choose(request, step, before), replacements.records)
    else:
        plan = load(f"lamina.selection.strategies.{selector.strategy}").choose(request, step, before)
    return plan
