# Needs: all plans of one selector, its calibration and those that the repair adds to it, the unpruned model. Gives:
# results/patches/{key}/{repair}.safetensors (what was fitted for each run of removed layers and size) and the table of
# fits. One job fits one repair for all sizes, which share its passes.
from lamina.stages.fit_patch import FitPatch

fit = described(FitPatch, CONFIG)


rule fit_patch:
    input:
        unpack(fit.inputs),
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
