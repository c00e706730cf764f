# Needs: a model, and a calibration or a file of one's own. Gives: results/diagnoses/{model}/{calibration}/{diagnosis}.parquet, what layers of the
# unpruned model do, for the diagnoses that studies list.


rule diagnose_layers:
    input:
        manifest=paths.manifest("{model}"),
        given=lambda w: inputs.diagnosed(CONFIG, w),
    output:
        paths.diagnosis("{model}", "{calibration}", "{diagnosis}"),
    log:
        "logs/diagnose_layers/{model}/{calibration}/{diagnosis}.log",
    benchmark:
        "results/jobs/diagnose_layers/{model}/{calibration}/{diagnosis}.jsonl"
    conda:
        "../envs/lamina.yaml"
    threads: lambda _: threads(cores())
    resources:
        gpu=gpus,
        mem_mb=memory,
        runtime=minutes,
    params:
        code=lambda w: code_digest("diagnose_layers", f"lamina.diagnosis.{CONFIG.diagnoses[w.diagnosis].kind}"),
        packages=lambda w: package_digest("diagnose_layers", f"lamina.diagnosis.{CONFIG.diagnoses[w.diagnosis].kind}"),
        family=family,
        options=lambda w: arguments.as_json(CONFIG.diagnoses[w.diagnosis].options()),
        tokens=CONFIG.sweep.tokens,
        names=lambda w: arguments.as_json({"model": w.model, "calibration": w.calibration}),
    shell:
        'on_gpu {resources.gpu} python "$SCRIPTS/diagnose_layers.py" --manifest {input.manifest} --given {input.given}'
        " --diagnosis {wildcards.diagnosis} --options {params.options:q} --tokens {params.tokens} --keys {params.names:q}"
        " --code {params.code} --output {output} 2> {log}"
