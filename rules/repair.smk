# Needs: all plans of one selector, its calibration and those that the repair adds to it, the unpruned model. Gives:
# results/patches/{key}/{repair}.safetensors (what was fitted for each run of removed layers and size) and the table of
# fits. One job fits all sizes: they share its passes. Repairs in closed form also share one pass with each other, in
# `fit_runs`, whose file results/fits/{key}.safetensors is `ancient`: it makes no patch stale. A job that does not find
# its fit in there makes it itself, so that another repair reruns the fit of no other.
from lamina.stages.fit_patch import FitPatch
from lamina.stages.fit_runs import FitRuns

runs_fit = described(FitRuns, CONFIG)


rule fit_runs:
    input:
        unpack(runs_fit.inputs),
    output:
        FitRuns.OUTPUTS["output"],
    log:
        "logs/fit_runs/{model}/{calibration}/{selector}.log",
    benchmark:
        "results/jobs/fit_runs/{model}/{calibration}/{selector}.jsonl"
    priority: REPAIRING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=runs_fit.memory,
        runtime=runs_fit.minutes,
    params:
        followed=lambda w: runs_fit.of(w).followed(),
        # Snakemake does not compare a param that depends on `input` with that of the last run.
        job=lambda w, input: runs_fit.told(w),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


fit = described(FitPatch, CONFIG)


rule fit_patch:
    input:
        unpack(fit.inputs),
        fits=ancient(lambda w: fit.of(w).fits or []),
    output:
        patch=FitPatch.OUTPUTS["output"],
        table=FitPatch.OUTPUTS["table"],
    log:
        "logs/fit_patch/{model}/{calibration}/{selector}/{repair}.log",
    benchmark:
        "results/jobs/fit_patch/{model}/{calibration}/{selector}/{repair}.jsonl"
    priority: REPAIRING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=fit.memory,
        runtime=fit.minutes,
    params:
        job=fit.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
