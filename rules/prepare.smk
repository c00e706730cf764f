# Needs: the config, model folders or files or the hub, task files. Gives: results/models/{model}/manifest.json,
# results/models/{model}/checkpoint of a model that is a GGUF file,
# results/calibrations/{model}/{calibration}.parquet, results/tasks/{task}.parquet and the overlap checks.
# results/models/{model}/check.json: what the check of a model found. Only these rules may use the network.
from lamina.stages.check_model import CheckModel
from lamina.stages.check_overlap import CheckOverlap
from lamina.stages.prepare_calibration import PrepareCalibration
from lamina.stages.dequantise_model import DequantiseModel
from lamina.stages.prepare_model import PrepareModel
from lamina.stages.prepare_task import PrepareTask


localrules:
    dequantise_model,
    prepare_model,
    prepare_calibration,
    prepare_task,
    check_overlap,


dequantised = described(DequantiseModel, CONFIG)


rule dequantise_model:
    input:
        unpack(dequantised.inputs),
    output:
        directory(DequantiseModel.OUTPUTS["output"]),
    log:
        "logs/dequantise_model/{model}.log",
    benchmark:
        "results/jobs/dequantise_model/{model}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=dequantised.told,
    message:
        "models.{wildcards.model}: dequantising {input} into {output}, once."
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


model_described = described(PrepareModel, CONFIG)


rule prepare_model:
    input:
        unpack(model_described.inputs),
    output:
        PrepareModel.OUTPUTS["output"],
    log:
        "logs/prepare_model/{model}.log",
    benchmark:
        "results/jobs/prepare_model/{model}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=model_described.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


model_check = described(CheckModel, CONFIG)


rule check_model:
    input:
        unpack(model_check.inputs),
    output:
        CheckModel.OUTPUTS["output"],
    log:
        "logs/check_model/{model}.log",
    benchmark:
        "results/jobs/check_model/{model}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=model_check.memory,
        runtime=model_check.minutes,
    params:
        job=model_check.told,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


calibration_described = described(PrepareCalibration, CONFIG)


rule prepare_calibration:
    input:
        unpack(calibration_described.inputs),
    output:
        PrepareCalibration.OUTPUTS["output"],
    log:
        "logs/prepare_calibration/{model}/{calibration}.log",
    benchmark:
        "results/jobs/prepare_calibration/{model}/{calibration}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=calibration_described.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


task_described = described(PrepareTask, CONFIG)


rule prepare_task:
    input:
        unpack(task_described.inputs),
    output:
        PrepareTask.OUTPUTS["output"],
    log:
        "logs/prepare_task/{task}.log",
    benchmark:
        "results/jobs/prepare_task/{task}.jsonl"
    priority: CHOOSING
    conda:
        "../envs/lamina.yaml"
    params:
        job=task_described.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'


overlap_described = described(CheckOverlap, CONFIG)


rule check_overlap:
    input:
        unpack(overlap_described.inputs),
    output:
        CheckOverlap.OUTPUTS["output"],
    log:
        "logs/check_overlap/{model}/{calibration}/{task}.log",
    conda:
        "../envs/lamina.yaml"
    params:
        job=overlap_described.told,
    shell:
        'python "$SCRIPTS/{rule}.py" <<< {params.job:q} 2> {log}'
