# Needs: a model, a calibration, and the plan that says what is already removed. Gives:
# results/sweeps/{key}/removed={n}.parquet (every remaining unit's removal, sample by sample) and the relevance scores.
# Sweeps of the unpruned model have the selector base/{pass}/{units} and are shared by all selectors and maps.


localrules:
    gather_sweep,
    score_relevance,


rule sweep_units:
    input:
        manifest="results/models/{model}/manifest.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
        plan=sweep_plan,
    output:
        temp("results/sweeps/{model}/{calibration}/{selector}/removed={removed}/block={block}.parquet"),
    log:
        "logs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.log",
    benchmark:
        "results/jobs/sweep_units/{model}/{calibration}/{selector}/removed={removed}/block={block}.jsonl"
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=sweep_code,
        packages=packages,
        arguments=sweep_arguments,
    shell:
        "{ON_GPU} python {SCRIPTS}/sweep_units.py --manifest {input.manifest}"
        " --calibration {input.calibration} {params.arguments} --code {params.code} --output {output} 2> {log}"


rule gather_sweep:
    input:
        sweep_blocks,
    output:
        "results/sweeps/{model}/{calibration}/{selector}/removed={removed}.parquet",
    log:
        "logs/gather_sweep/{model}/{calibration}/{selector}/removed={removed}.log",
    params:
        code=digest("gather_sweep"),
    shell:
        "python {SCRIPTS}/gather_sweep.py --blocks {input} --output {output} 2> {log}"


rule score_relevance:
    input:
        sweep="results/sweeps/{model}/{calibration}/{selector}/removed={removed}.parquet",
        calibration="results/calibrations/{model}/{calibration}.parquet",
    output:
        "results/relevance/{model}/{calibration}/{selector}/removed={removed}.parquet",
    log:
        "logs/score_relevance/{model}/{calibration}/{selector}/removed={removed}.log",
    params:
        code=digest("score_relevance"),
        arguments=score_arguments,
    shell:
        "python {SCRIPTS}/score_relevance.py --sweep {input.sweep} --calibration {input.calibration}"
        " {params.arguments} --code {params.code} --output {output} 2> {log}"
