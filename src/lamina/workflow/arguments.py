"""What rules hand to scripts: options as JSON, command lines of stages, and the modules that a script imports by name.

`w` is a job's wildcards. Everything follows from the configuration and the wildcards alone, so that it can be a param
and a change of it makes stale what read it, and only that.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from lamina.config.configuration import Configuration
from lamina.config.glossary import glossary
from lamina.config.metrics import METRICS, MODULES, Metric
from lamina.workflow import inputs, studies

# The selector's options that a budget reads.
_BUDGET = ("budget", "metric", "protect", "confidence", "tolerance", "seed")


def as_json(value: Mapping[str, Any]) -> str:
    """The text of a param, the same however its keys were ordered."""
    return json.dumps(value, sort_keys=True)


def command(**values: Any) -> str:
    """Command-line options, quoted; those without a value are left out. One string per job keeps large runs quick."""
    given = {name: str(value) for name, value in values.items() if value is not None}
    return " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())


def model(config: Configuration, w: Any) -> str:
    """What a model's manifest is made from: its entry, less how many devices its jobs ask for."""
    return as_json({name: value for name, value in config.models[w.model].options().items() if name != "devices"})


def keys(w: Any) -> str:
    """The key columns of a sweep, plan or relevance table."""
    selector = studies.planned_for(w.calibration, w.selector)[1].split("/")[0]
    removed = int(w.removed)
    return as_json({"model": w.model, "calibration": w.calibration, "selector": selector, "removed": removed})


def sweep(config: Configuration, w: Any) -> str:
    """What one block of a sweep measures."""
    pass_, units, budget = studies.sweep_settings(config, w.selector)
    early = None
    if budget != "full":
        selector = config.selectors[w.selector]
        early = {name: getattr(selector, name) for name in _BUDGET}
        early |= {"score": config.calibrations[w.calibration].score, "step": int(w.removed) + 1}
    told = command(
        **{"pass": pass_},
        plan=inputs.sweep_plan(w) or None,
        units=units,
        budget=early and as_json(early),
        drawn=drawn(config, w),
        recovery=loop(config, w),
        donors=donors(config, w),
        block=w.block,
        blocks=studies.sweep_blocks(config, w.selector),
        tokens=config.sweep.tokens,
        keys=keys(w),
    )
    return told + data(config, w, studies.looped(config, w.selector))


def drawn(config: Configuration, w: Any) -> str | None:
    """What a pass over random cut models draws; None for other passes."""
    pass_, _, _ = studies.sweep_settings(config, w.selector)
    if pass_ not in studies.DRAWN:
        return None
    options, score = getattr(config.metrics, pass_).options(), config.calibrations[w.calibration].score
    return as_json({"options": options, "score": score, "seed": config.seed})


def donors(config: Configuration, w: Any) -> str | None:
    """Whose layers may take the places of the model's own; None for nobody's."""
    siblings = inputs.donors(config, w)
    if not siblings:
        return None
    selector = config.selectors[studies.planned_for(w.calibration, w.selector)[1]]
    merged = {name: config.donors[name].model_dump() for name in selector.donors if name not in siblings}
    names, protect = list(selector.donors), list(selector.protect)
    return as_json({"names": names, "protect": protect, "records": siblings | merged})


def loop(config: Configuration, w: Any) -> str | None:
    """The recovery that is in place in a sweep; None if nothing is repaired."""
    name = studies.looped(config, w.selector)
    if name == "none":
        return None
    own, planned = studies.planned_for(w.calibration, w.selector)
    selector, entry = config.selectors[planned], config.recoveries[name]
    # A strategy that draws nothing has no seed of its own.
    seed = selector.seed if "seed" in type(selector).model_fields else config.seed
    told = {"name": name, "options": entry.options(), "protect": selector.protect, "seed": seed}
    return as_json(told | ({} if own == w.calibration else {"own": own}))


def sweep_modules(config: Configuration, w: Any) -> list[str]:
    """What a sweep imports by name: a pass of its own, what lets units leave early, the repair in the loop."""
    pass_, _, budget = studies.sweep_settings(config, w.selector)
    if pass_ in MODULES:
        drawn = [f"lamina.relevance.{pass_}"] if pass_ in studies.DRAWN else []
        return [MODULES[pass_], *drawn]
    early = [] if budget == "full" else [f"lamina.search.{budget}"]
    early += ["lamina.search.donors", "lamina.models.donors"] if inputs.donors(config, w) else []
    name = studies.looped(config, w.selector)
    return early + (
        ["lamina.search.looped", f"lamina.recovery.{config.recoveries[name].method}"] if name != "none" else []
    )


def score(config: Configuration, w: Any) -> str:
    """How a sweep is turned into scores of every metric that it measures."""
    budget = studies.sweep_settings(config, w.selector)[2]
    return command(
        budget="exact" if budget == "exact" else None,  # elsewhere who left early saw samples like any other's
        score=config.calibrations[w.calibration].score,
        seed=config.seed,
        metrics=",".join(metric.name for metric in measured(config, w)),
        keys=keys(w),
    )


def score_modules(config: Configuration, w: Any) -> list[str]:
    """The metrics that a sweep measures, imported by name."""
    return [f"lamina.relevance.{metric.name}" for metric in measured(config, w)]


def prune(config: Configuration, w: Any) -> str:
    """How a plan is made."""
    weights = studies.beside(config, w.calibration, w.selector)
    also = {
        name: files | {"weight": weights[name], "score": config.calibrations[name].score}
        for name, files in inputs.beside(config, w).items()
    }
    return command(
        selector=as_json(config.selectors[w.selector].options()),
        keys=keys(w),
        score=config.calibrations[w.calibration].score,
        **inputs.step_evidence(config, w),
        donors=donors(config, w),
        also=as_json(also) if also else None,
    )


def prune_modules(config: Configuration, w: Any) -> list[str]:
    """A plan's strategy and its one metric, imported by name, and what puts scores of several calibrations together."""
    selector = config.selectors[w.selector]
    metric = [f"lamina.relevance.{selector.metric}"] if selector.metric else []
    mixture = ["lamina.search.mixture"] if studies.beside(config, w.calibration, w.selector) else []
    given = ["lamina.search.donors"] if inputs.donors(config, w) else []
    return [f"lamina.search.{selector.strategy}", *metric, *mixture, *given]


def search(config: Configuration, w: Any) -> str:
    """What a search looks for, and how."""
    told = command(
        selector=as_json(config.selectors[w.selector].options()),
        sizes=json.dumps(studies.searches(config).get((w.model, w.calibration, w.selector), [])),
        score=config.calibrations[w.calibration].score,
        recovery=loop(config, w),
        donors=donors(config, w),
        tokens=config.sweep.tokens,
        keys=as_json({"model": w.model, "calibration": w.calibration, "selector": w.selector}),
    )
    return told + data(config, w, studies.looped(config, w.selector))


def search_modules(config: Configuration, w: Any) -> list[str]:
    """What a search imports by name: its strategy, its metric, the repair in the loop."""
    name = studies.looped(config, w.selector)
    looped = [] if name == "none" else ["lamina.search.growing", f"lamina.recovery.{config.recoveries[name].method}"]
    given = ["lamina.models.donors"] if inputs.donors(config, w) else []
    return [*prune_modules(config, w), *looped, *given]


def recover(config: Configuration, w: Any) -> str:
    """How a recovery is fitted."""
    told = command(recovery=w.recovery, options=as_json(config.recoveries[w.recovery].options()), seed=config.seed)
    return told + data(config, w, w.recovery)


def recover_modules(config: Configuration, w: Any) -> list[str]:
    """What a recovery imports by name: its method, what chooses a weight that is left open, what fits run by run."""
    entry = config.recoveries[w.recovery]
    more = ["lamina.recovery.weighing"] if entry.automatic(w.calibration) else []
    more += ["lamina.recovery.refit"] if getattr(entry, "refit", False) else []
    return [f"lamina.recovery.{entry.method}", *more]


def data(config: Configuration, w: Any, recovery: str) -> str:
    """What a recovery reads beside the variant's own calibration, by name; empty if it reads no more."""
    return _data(inputs.added_data(config, w, recovery))


def heal(config: Configuration, w: Any) -> str:
    """What a healing reads beside the variant's own calibration, by name; empty if it reads no more."""
    return _data(inputs.healing_data(config, w))


def benchmark(config: Configuration, w: Any) -> str:
    """The options of a task or perplexity text."""
    return command(options=as_json(inputs.tested(config, w.task).options()))


def generation(config: Configuration, w: Any) -> str:
    """The same of a task to which answers are written, and how they are."""
    written = config.benchmarks.tasks[w.task].generate
    return f"{benchmark(config, w)} {command(generate=written and as_json(written.options()))}"


def drafts(config: Configuration) -> str:
    """How drafts are measured, and the text that their prompts begin; empty where none are."""
    if (asked := config.benchmarks.drafts) is None:
        return ""
    options = asked.model_copy(update={"removed": 1}).options()  # which variants there are is said beside
    return command(options=as_json(options), text=as_json(config.benchmarks.perplexity[asked.text].options()))


def _data(files: Mapping[str, str]) -> str:
    added = [f"{name}={file}" for name, file in files.items()]
    return " ".join([" --data", *map(shlex.quote, added)]) if added else ""


def parts(config: Configuration, calibration: str) -> str:
    """The entries that a mixture is made of; empty for other calibrations."""
    mixture = getattr(config.calibrations[calibration], "mixture", {})
    return command(parts=as_json({name: config.calibrations[name].options() for name in mixture}) if mixture else None)


def gather(config: Configuration, table: str) -> str:
    """What a table says of the configuration itself: which of its rows are replicates."""
    sections: dict[str, Mapping[str, Any]] = {"calibrations": config.calibrations, "plans": config.selectors}
    labels = {name: entry.group for name, entry in sections.get(table, {}).items() if entry.group}
    return command(groups=as_json(labels) if labels else None)


def table_modules(tables: Iterable[str]) -> list[str]:
    """Where tables are described, and what they are written with."""
    return ["lamina.tables.columns", "lamina.tables.store", *(f"lamina.tables.{table}" for table in sorted(tables))]


def measured(config: Configuration, w: Any) -> list[Metric]:
    """The metrics that a sweep measures."""
    pass_, _, _ = studies.sweep_settings(config, w.selector)
    return [metric for metric in METRICS.values() if metric.pass_ in studies.carried(pass_)]


def own_metric(config: Configuration, w: Any) -> Metric | None:
    """The metric that a selector decides by, if it looks at one."""
    name = config.selectors[w.selector].metric
    return METRICS[name] if name else None


def early_metric(config: Configuration, w: Any) -> Metric | None:
    """The metric by which units leave a sweep early, if they may, or by which drawn models are valued."""
    pass_, _, budget = studies.sweep_settings(config, w.selector)
    if pass_ in studies.DRAWN:
        return METRICS[getattr(config.metrics, pass_).value]
    return None if budget == "full" else own_metric(config, w)


def report(config: Configuration) -> str:
    """What a model must keep to be recommended in the report, and what the names in it mean."""
    asked = {"keep": config.report.keep, "general-text": config.report.general_text}
    return command(**asked, names=as_json(glossary(config)))
