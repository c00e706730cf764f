# Needs: a model, and a calibration or a file of one's own. Gives: what layers of the unpruned model do, for the
# diagnoses that studies list, in results/diagnoses/{model}/{calibration}/{diagnosis}.parquet.
from lamina.stages.diagnose_layers import DiagnoseLayers

diagnosed = described(DiagnoseLayers, CONFIG)


rule diagnose_layers:
    input:
        unpack(diagnosed.inputs),
    output:
        DiagnoseLayers.OUTPUTS["output"],
    log:
        "logs/diagnose_layers/{model}/{calibration}/{diagnosis}.log",
    benchmark:
        "results/jobs/diagnose_layers/{model}/{calibration}/{diagnosis}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=diagnosed.memory,
        runtime=diagnosed.minutes,
    params:
        job=diagnosed.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
