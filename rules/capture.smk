# Needs: a model and a calibration. Gives: results/activations/{model}/{calibration}.parquet, the similarity of every
# pair of layer boundaries.


rule capture_activations:
    input:
        manifest="results/models/{model}/manifest.json",
        calibration="results/calibrations/{model}/{calibration}.parquet",
    output:
        "results/activations/{model}/{calibration}.parquet",
    log:
        "logs/capture_activations/{model}/{calibration}.log",
    benchmark:
        "results/jobs/capture_activations/{model}/{calibration}.jsonl"
    threads: threads_each
    resources:
        gpu=1,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=digest("capture_activations"),
        packages=packages,
        tokens=CONFIG["sweep"]["tokens"],
    shell:
        "{ON_GPU} python {SCRIPTS}/capture_activations.py --manifest {input.manifest}"
        " --calibration {input.calibration} --tokens {params.tokens} --code {params.code} --output {output} 2> {log}"
