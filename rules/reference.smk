# Needs: config/reference.yaml. Gives: results/reference/, the embedded reference model trained
# again: weights, tokenizer, configuration, training record, data/ with the microworld's documents,
# and the model at six steps of its training in checkpoints/. The checkpoints are not outputs,
# because Snakemake would delete them after an interrupted training; docs/start.md makes a study of
# them.
# No rule and no target asks for the model: it is trained on demand only. To adopt it, copy these
# files over resources/reference/ and renew the tables of its README.md.
# An interrupted training resumes from results/reference/checkpoint/, which is valid only for the
# settings it began with.


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
            task=[
                "recall",
                "facts",
                "hops",
                "addition",
                "comparison",
                "boolean",
                "sorting",
                "corpus",
            ],
            split=["train", "validation", "test"],
        ),
    log:
        "logs/train_reference.log",
    conda:
        ENVIRONMENT
    shell:
        # A training loop is several times slower if glibc returns its buffers to the system at
        # every step.
        "export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1;"
        " python {input.script} --settings {input.settings} --output results/reference > {log} 2>&1"


# The siblings of the embedded model that config/siblings.yaml describes, as donors of layers. Each
# takes about a minute.
rule train_sibling:
    input:
        script="workflow/scripts/train_sibling.py",
        settings="config/reference.yaml",
        siblings="config/siblings.yaml",
        start=ancient("resources/reference/model.safetensors"),
    output:
        weights="results/reference/siblings/{sibling}/model.safetensors",
        config="results/reference/siblings/{sibling}/config.json",
        generation="results/reference/siblings/{sibling}/generation_config.json",
        tokenizer="results/reference/siblings/{sibling}/tokenizer.json",
        tokenizer_config="results/reference/siblings/{sibling}/tokenizer_config.json",
        training="results/reference/siblings/{sibling}/training.json",
    log:
        "logs/train_sibling/{sibling}.log",
    wildcard_constraints:
        sibling=r"[A-Za-z0-9_]+",
    conda:
        ENVIRONMENT
    shell:
        "export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1;"
        " python {input.script} --settings {input.settings} --siblings {input.siblings} --name {wildcards.sibling}"
        " --output results/reference/siblings/{wildcards.sibling} > {log} 2>&1"
