# Needs: the manifest and the calibration, and a sweep, the captured activations for runs of layers,
# or a model to search with. Gives: results/plans/{model}/{calibration}/{selector}/removed={n}.json,
# the units that a selector removes at size n, and
# results/searches/{model}/{calibration}/{selector}.parquet, every set of units that a search tried.
# An iterative plan of size n is made from the plan of size n - 1 and a sweep of the model pruned by
# that plan. A search finds the plans of all sizes in one job. A killed search keeps its
# measurements in a log in its output folder, and resumes from there.
from lamina_workflow.stages import prune


include: "inputs/prune.smk"


localrules:
    prune_step,
    pick_plan,


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
        check="results/models/{model}/check.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        data=calibrations_of_search,
        manifests=manifests_of_donors,
        files=files_of_judge,
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
    threads: cores_of_search
    resources:
        **resources_of(prune.SearchPlans),
    params:
        **params_of(prune.SearchPlans),
        content=content(files_of_judge),
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
