# Needs: a model and a calibration. Gives: results/activations/{model}/{calibration}.parquet, the similarity of every
# pair of layer boundaries.


rule capture_activations:
    input:
        manifest=paths.manifest("{model}"),
        calibration=paths.calibration("{model}", "{calibration}"),
    output:
        paths.activations("{model}", "{calibration}"),
    log:
        "logs/capture_activations/{model}/{calibration}.log",
    benchmark:
        "results/jobs/capture_activations/{model}/{calibration}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=code_digest("capture_activations"),
        packages=package_digest("capture_activations"),
        family=family,
        tokens=CONFIG.sweep.tokens,
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/capture_activations.py"'
        " --manifest {input.manifest} --calibration {input.calibration}"
        " --tokens {params.tokens} --code {params.code} --output {output} 2> {log}"
