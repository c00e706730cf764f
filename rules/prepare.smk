# Needs: the configuration, model folders or files or the hub, task files. Gives, under results/:
# the manifest and the check of each model, the checkpoint of a GGUF file, tokenised calibrations,
# the model's own answers to the questions of a calibration (results/questions/, results/answers/),
# documents of perplexities, hashes of benchmark documents, the checks that no calibration contains
# one of them, and on demand cost.json (the forecast for the study: make plan). Only these rules may
# use the network, except check_model and generate_answers.
from lamina_workflow.stages import prepare


include: "inputs/prepare.smk"


localrules:
    dequantise_model,
    prepare_model,
    prepare_calibration,
    prepare_questions,
    prepare_task,
    check_overlap,
    estimate_cost,


rule dequantise_model:
    input:
        files=quantised_files,
    output:
        output=directory("results/checkpoints/{checkpoint}"),
    log:
        "logs/dequantise_model/{checkpoint}.log",
    benchmark:
        "results/jobs/dequantise_model/{checkpoint}.jsonl"
    wildcard_constraints:
        checkpoint="[^/]+",
    priority: PREPARING
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.DequantiseModel),
    message:
        "dequantising {input.files[0]} into {output}, once."
    script:
        "../workflow/scripts/dequantise_model.py"


rule prepare_model:
    input:
        checkpoint=checkpoint_of_quantised,
        files=lambda w: prepare.model_files(CONFIG, w.model),
    output:
        output="results/models/{model}/manifest.json",
    log:
        "logs/prepare_model/{model}.log",
    benchmark:
        "results/jobs/prepare_model/{model}.jsonl"
    priority: PREPARING
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.PrepareModel),
    script:
        "../workflow/scripts/prepare_model.py"


rule check_model:
    input:
        manifest="results/models/{model}/manifest.json",
    output:
        output="results/models/{model}/check.json",
    log:
        "logs/check_model/{model}.log",
    benchmark:
        "results/jobs/check_model/{model}.jsonl"
    priority: CHOOSING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(prepare.CheckModel),
    params:
        **params_of(prepare.CheckModel),
    message:
        "comparing the engine with the plain model of {wildcards.model}, on a few texts."
    script:
        "../workflow/scripts/check_model.py"


rule prepare_calibration:
    input:
        manifest="results/models/{model}/manifest.json",
        files=calibration_files,
        answers=own_answers,
    output:
        output="results/calibrations/{model}/{calibration}.parquet",
    log:
        "logs/prepare_calibration/{model}/{calibration}.log",
    benchmark:
        "results/jobs/prepare_calibration/{model}/{calibration}.jsonl"
    priority: PREPARING
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.PrepareCalibration),
        content=content(calibration_files),
    script:
        "../workflow/scripts/prepare_calibration.py"


# The questions of a calibration that the model answers itself, with the answers of the data.
use rule prepare_calibration as prepare_questions with:
    input:
        manifest="results/models/{model}/manifest.json",
        files=calibration_files,
    output:
        output="results/questions/{model}/{calibration}.parquet",
    log:
        "logs/prepare_questions/{model}/{calibration}.log",
    benchmark:
        "results/jobs/prepare_questions/{model}/{calibration}.jsonl"


rule generate_answers:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        questions="results/questions/{model}/{calibration}.parquet",
        files=calibration_files,
    output:
        output="results/answers/{model}/{calibration}.parquet",
    log:
        "logs/generate_answers/{model}/{calibration}.log",
    benchmark:
        "results/jobs/generate_answers/{model}/{calibration}.jsonl"
    priority: PREPARING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(prepare.GenerateAnswers),
    params:
        **params_of(prepare.GenerateAnswers),
        content=content(calibration_files),
    script:
        "../workflow/scripts/generate_answers.py"


rule prepare_task:
    input:
        files=task_files,
    output:
        output="results/tasks/{task}.parquet",
    log:
        "logs/prepare_task/{task}.log",
    benchmark:
        "results/jobs/prepare_task/{task}.jsonl"
    priority: PREPARING
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.PrepareTask),
        content=content(task_files),
    script:
        "../workflow/scripts/prepare_task.py"


rule check_overlap:
    input:
        samples="results/calibrations/{model}/{calibration}.parquet",
        documents="results/tasks/{task}.parquet",
    output:
        output="results/overlap/{model}/{calibration}/{task}.json",
    log:
        "logs/check_overlap/{model}/{calibration}/{task}.log",
    priority: PREPARING
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.CheckOverlap),
    script:
        "../workflow/scripts/check_overlap.py"


rule estimate_cost:
    input:
        manifests=expand("results/models/{model}/manifest.json", model=CONFIG.models),
        calibrations=[
            f"results/calibrations/{model}/{name}.parquet"
            for model, name in requests.list_calibrations(CONFIG)
        ],
        tasks=expand(
            "results/tasks/{task}.parquet",
            task=[*CONFIG.benchmarks.tasks, *CONFIG.benchmarks.perplexity],
        ),
    output:
        output="results/cost.json",
    log:
        "logs/estimate_cost.log",
    # The forecast of the time left needs it.
    priority: 100
    conda:
        ENVIRONMENT
    params:
        **params_of(prepare.EstimateCost),
    script:
        "../workflow/scripts/estimate_cost.py"
