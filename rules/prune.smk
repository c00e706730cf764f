# Needs: the manifest and the calibration, and a sweep, the captured activations for runs of layers,
# or a model to search with. Gives: results/plans/{model}/{calibration}/{selector}/removed={n}.json,
# the units that a selector removes at size n, and
# results/searches/{model}/{calibration}/{selector}.parquet, every set of units that a search tried.
# An iterative plan of size n is made from the plan of size n - 1 and a sweep of the model that this
# plan leaves. A search finds the plans of all sizes in one job; a killed one leaves what it
# measured in a log in the folder of its output, and goes on from there.
from lamina_workflow.stages import prune


localrules:
    prune_step,
    pick_plan,


def removed_before(w):
    """The number of units that are removed before a step."""
    return int(w.removed) - 1 if CONFIG.selectors[w.selector].STEPS else 0


def previous_plan(w):
    """The plan with one unit less, from which an iterative selector goes on."""
    n_removed = removed_before(w)
    if n_removed == 0:
        return []
    return f"results/plans/{w.model}/{w.calibration}/{w.selector}/removed={n_removed}.json"


def sweep_of(w, calibration):
    """The sweep of a calibration that a step reads, if it reads one."""
    if not sweeps.step_pass(CONFIG, w.selector):
        return []
    n_removed = removed_before(w)
    selector = sweeps.sweep_of_step(CONFIG, w.selector, n_removed, w.calibration, calibration)
    return f"results/sweeps/{w.model}/{calibration}/{selector}/removed={n_removed}.parquet"


def activations_of(w):
    """The captured activations, which a selector of runs reads."""
    if not CONFIG.selectors[w.selector].CAPTURED:
        return []
    return f"results/activations/{w.model}/{w.calibration}.parquet"


def calibrations_of_search(w):
    """Other calibrations that a search reads: they judge, or the repairs are fitted on them."""
    names = sorted(requests.chosen_on(CONFIG, w.calibration, w.selector))
    return [f"results/calibrations/{w.model}/{name}.parquet" for name in names]


def other_calibrations(w):
    """The names of other calibrations that a selector scores removals on."""
    if not sweeps.step_pass(CONFIG, w.selector):
        return []
    return sorted(requests.further_calibrations(CONFIG, w.calibration, w.selector))


rule prune_step:
    input:
        manifest="results/models/{model}/manifest.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        previous=previous_plan,
        sweep=lambda w: sweep_of(w, w.calibration),
        activations=activations_of,
        beside_samples=lambda w: [
            f"results/calibrations/{w.model}/{name}.parquet" for name in other_calibrations(w)
        ],
        beside_sweeps=lambda w: [sweep_of(w, name) for name in other_calibrations(w)],
        manifests=manifests_of_replacements,
    output:
        output="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
    log:
        "logs/prune_step/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        selector=any_of(CONFIG.selectors.keys() - set(requests.searching_selectors(CONFIG))),
    priority: CHOOSING
    conda:
        ENVIRONMENT
    params:
        **params_of(prune.PruneStep),
    script:
        "../workflow/scripts/prune_step.py"


rule search_plans:
    input:
        manifest="results/models/{model}/manifest.json",
        check=ancient("results/models/{model}/check.json"),
        calibration="results/calibrations/{model}/{calibration}.parquet",
        data=calibrations_of_search,
        manifests=manifests_of_replacements,
    output:
        plans="results/searches/{model}/{calibration}/{selector}.json",
        output="results/searches/{model}/{calibration}/{selector}.parquet",
    log:
        "logs/search_plans/{model}/{calibration}/{selector}.log",
    benchmark:
        "results/jobs/search_plans/{model}/{calibration}/{selector}.jsonl"
    wildcard_constraints:
        selector=any_of(requests.searching_selectors(CONFIG)),
    priority: CHOOSING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(prune.SearchPlans),
    params:
        **params_of(prune.SearchPlans),
    script:
        "../workflow/scripts/search_plans.py"


rule pick_plan:
    input:
        plans="results/searches/{model}/{calibration}/{selector}.json",
    output:
        output="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
    log:
        "logs/pick_plan/{model}/{calibration}/{selector}/removed={removed}.log",
    wildcard_constraints:
        selector=any_of(requests.searching_selectors(CONFIG)),
    priority: CHOOSING
    conda:
        ENVIRONMENT
    params:
        **params_of(prune.PickPlan),
    script:
        "../workflow/scripts/pick_plan.py"
