# Needs: all plans of one selector, its calibration and those that the repair adds to it, the base
# model. Gives: results/patches/{model}/{calibration}/{selector}/{repair}.safetensors (the patches,
# fitted for each run of removed layers and size) and the table of fits. One job fits all sizes,
# because they share its passes.
from lamina_workflow.stages import repair


include: "inputs/repair.smk"


rule fit_patch:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        data=lambda w: calibrations_for(w, w.repair),
        plans=plans_to_repair,
    output:
        output="results/patches/{model}/{calibration}/{selector}/{repair}.safetensors",
        table="results/patches/{model}/{calibration}/{selector}/{repair}.parquet",
    log:
        "logs/fit_patch/{model}/{calibration}/{selector}/{repair}.log",
    benchmark:
        "results/jobs/fit_patch/{model}/{calibration}/{selector}/{repair}.jsonl"
    wildcard_constraints:
        repair=any_of(CONFIG.repairs),
    priority: REPAIRING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(repair.FitPatch),
    params:
        **params_of(repair.FitPatch),
    script:
        "../workflow/scripts/fit_patch.py"
