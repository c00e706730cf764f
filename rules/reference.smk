# Needs: config/reference.yaml. Gives: results/reference/, the embedded reference model trained anew: weights,
# tokenizer, configuration, training record, data/ with the microworld's documents, and the model at six steps of its
# training in checkpoints/ (no output: Snakemake would delete those of an interrupted training), of which
# docs/studies.md makes a study. On demand only: no rule and no target asks for it. To adopt it, copy these files over resources/reference/ and renew the tables of its README.md.
# An interrupted training resumes from results/reference/checkpoint/, which only fits the settings it began with.


rule train_reference:
    input:
        script="workflow/scripts/train_reference.py",
        settings="config/reference.yaml",
    output:
        weights="results/reference/model.safetensors",
        config="results/reference/config.json",
        generation="results/reference/generation_config.json",
        tokenizer="results/reference/tokenizer.json",
        tokenizer_config="results/reference/tokenizer_config.json",
        training="results/reference/training.json",
        data=expand(
            "results/reference/data/{task}_{split}.jsonl",
            task=["recall", "facts", "hops", "addition", "comparison", "boolean", "sorting", "corpus"],
            split=["train", "validation", "test"],
        ),
    log:
        "logs/train_reference.log",
    conda:
        "../envs/lamina.yaml"
    shell:
        # A training loop is several times slower where glibc hands its buffers back to the system at every step.
        "export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1;"
        " python {input.script} --settings {input.settings} --output results/reference > {log} 2>&1"
