# Needs: a model, and a calibration or a file of the user's. Gives what the layers of the base model
# do: results/activations/{model}/{calibration}.parquet, the similarity of every pair of layer
# boundaries, and results/diagnoses/{model}/{calibration}/{diagnosis}.parquet, the diagnoses that
# studies list.
from lamina_workflow.stages import capture


include: "inputs/capture.smk"


rule capture_activations:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
    output:
        output="results/activations/{model}/{calibration}.parquet",
    log:
        "logs/capture_activations/{model}/{calibration}.log",
    benchmark:
        "results/jobs/capture_activations/{model}/{calibration}.jsonl"
    priority: CHOOSING
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(capture.CaptureActivations),
    params:
        **params_of(capture.CaptureActivations),
    script:
        "../workflow/scripts/capture_activations.py"


rule diagnose_layers:
    input:
        manifest="results/models/{model}/manifest.json",
        check="results/models/{model}/check.json",
        samples=samples_of_diagnosis,
    output:
        output="results/diagnoses/{model}/{calibration}/{diagnosis}.parquet",
    log:
        "logs/diagnose_layers/{model}/{calibration}/{diagnosis}.log",
    benchmark:
        "results/jobs/diagnose_layers/{model}/{calibration}/{diagnosis}.jsonl"
    conda:
        ENVIRONMENT
    threads: share_of_cores
    resources:
        **resources_of(capture.DiagnoseLayers),
    params:
        **params_of(capture.DiagnoseLayers),
        content=content(file_of_diagnosis),
    script:
        "../workflow/scripts/diagnose_layers.py"
