# Needs: a plan, its patch (unless the repair is none), the calibration and those that the healing
# adds to it. Gives:
# results/adapters/{model}/{calibration}/{selector}/removed={n}/{repair}/{healing}/ with the trained
# weights and the training curve.
# While a job trains, it keeps .progress.safetensors in its output folder. Snakemake does not know
# this file and leaves it there, so a killed job resumes from it.
from lamina_workflow.stages import heal


include: "inputs/heal.smk"


rule heal_variant:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        data=calibrations_of_healing,
        plan="results/plans/{model}/{calibration}/{selector}/removed={removed}.json",
        patch=patch_of,
    output:
        adapter="results/adapters/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}/adapter_model.safetensors",
        settings="results/adapters/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}/adapter_config.json",
        output="results/adapters/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}/training.parquet",
    log:
        "logs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.log",
    benchmark:
        "results/jobs/heal_variant/{model}/{calibration}/{selector}/removed={removed}/{repair}/{healing}.jsonl"
    priority: REPAIRING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(heal.HealVariant),
    params:
        **params_of(heal.HealVariant),
    script:
        "../workflow/scripts/heal_variant.py"
