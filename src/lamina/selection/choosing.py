"""One step of a selector: the evidence about the current model, from one calibration or several, and the plan."""

import json

from lamina.data.calibrations import METADATA_KEY
from lamina.modules import load
from lamina.relevance.columns import Context
from lamina.selection.evidence import read_angles, read_step
from lamina.selection.plans import Plan, Request, Step, protected_layers
from lamina.stages.prune_step import Beside, PruneStep
from lamina.store import parquet as store


def empty(job: PruneStep, refused: str | None = None) -> Plan:
    """A plan without units: the one before a selector's first step, or one that is `refused` for this reason."""
    selector = job.selector
    metric, strategy, kind = selector.metric, selector.strategy, selector.units
    return Plan(**job.keys, metric=metric, strategy=strategy, kind=kind, refused=refused)


def evidence(job: PruneStep, previous: Plan) -> tuple[str | None, Step]:
    """Why no plan can be made (None if one can), and the evidence about the model that `previous` leaves."""
    refused, step = previous.refused, Step()
    if refused is None and job.sweep:
        own = Beside(calibration=job.calibration, sweep=job.sweep, weight=1.0, score=job.score)
        scored = {job.keys["calibration"]: own} | job.also
        # An iterative plan is made on a model that lacks what the previous one removed, any other on the base.
        gone, steps = previous.removed if job.previous else 0, []
        for name, each in scored.items():
            facts = json.loads(store.read(each.calibration, ["sample"]).schema.metadata[METADATA_KEY])
            context = Context(facts["chance_accuracy"], each.score, gone, job.selector.seed)
            reason, seen = read_step(each.sweep, job.selector.metric or "", context, name)
            refused = refused or reason
            steps.append(seen)
        step = steps[0]
        if job.also and refused is None:
            weights = [each.weight for each in scored.values()]
            step = load("lamina.selection.combined").mixed(steps, weights, job.selector.combine)
    if job.activations:
        step = Step(angles=read_angles(job.activations, job.selector.metric or ""))
    return refused, step


def choose(job: PruneStep, n_layers: int, previous: Plan, refused: str | None, step: Step) -> Plan:
    """The plan of the job's size for a model of `n_layers` layers; an empty plan if it is `refused`."""
    if refused:
        return empty(job, refused)
    selector = job.selector
    protected = protected_layers(selector.protect, n_layers)
    request = Request(job.keys["removed"], selector.units, n_layers, protected, selector.seed)
    if not job.donors:
        plan: Plan = load(f"lamina.selection.strategies.{selector.strategy}").choose(request, step, previous)
        return plan
    donors = load("lamina.selection.strategies.replacements")
    chosen: Plan = donors.with_records(donors.choose(request, step, previous), donors.read(job.donors.records))
    return chosen
