# Needs: a model, a calibration, the plan of what is already removed, and the calibrations that a
# repair in the loop adds. Gives:
# results/sweeps/{model}/{calibration}/{selector}/removed={n}.parquet, the removal of every
# remaining unit, sample by sample, and results/relevance/ of the same form, the scores by every
# metric.
# Sweeps of the base model have the selector base/{pass}/{units}. All selectors and maps share them.
# If a sweep uses another calibration than the plans do, its selector is
# for/{calibration of the plans}/{selector}.
from lamina_workflow.stages import sweep


include: "inputs/sweep.smk"


localrules:
    gather_sweep,
    score_relevance,


rule sweep_units:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        plan=plan_before,
        data=calibrations_in_loop,
        files=files_of_questions,
    output:
        output=temp(
            "results/sweeps/{model}/{calibration}/{selector}/removed={removed}/block={block}.parquet"
        ),
    log:
        "logs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.log",
    benchmark:
        "results/jobs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.jsonl"
    priority: CHOOSING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(sweep.SweepUnits),
    params:
        **params_of(sweep.SweepUnits),
        content=content(files_of_questions),
    script:
        "../workflow/scripts/sweep_units.py"


rule gather_sweep:
    input:
        blocks=blocks_of_sweep,
    output:
        output="results/sweeps/{model}/{calibration}/{selector}/removed={removed}.parquet",
    log:
        "logs/gather_sweep/{model}/{calibration}/{selector}/removed={removed}.log",
    priority: CHOOSING
    conda:
        ENVIRONMENT
    params:
        **params_of(sweep.GatherSweep),
    script:
        "../workflow/scripts/gather_sweep.py"


rule score_relevance:
    input:
        sweep="results/sweeps/{model}/{calibration}/{selector}/removed={removed}.parquet",
        calibration="results/calibrations/{model}/{calibration}.parquet",
    output:
        output="results/relevance/{model}/{calibration}/{selector}/removed={removed}.parquet",
    log:
        "logs/score_relevance/{model}/{calibration}/{selector}/removed={removed}.log",
    conda:
        ENVIRONMENT
    params:
        **params_of(sweep.ScoreRelevance),
    script:
        "../workflow/scripts/score_relevance.py"
