# Needs: a model and a calibration. Gives: results/activations/{model}/{calibration}.parquet, the similarity of every
# pair of layer boundaries.
from lamina.stages.capture_activations import CaptureActivations

capture = described(CaptureActivations, CONFIG)


rule capture_activations:
    input:
        unpack(capture.inputs),
    output:
        CaptureActivations.OUTPUTS["output"],
    log:
        "logs/capture_activations/{model}/{calibration}.log",
    benchmark:
        "results/jobs/capture_activations/{model}/{calibration}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=capture.memory,
        runtime=capture.minutes,
    params:
        job=capture.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
