# reference: train the embedded reference model anew. On demand only: no other rule needs it, no target asks for it.
# needs: config/reference.yaml
# gives: results/reference/ - weights, tokenizer, configuration, training record, and data/ with the microworld's documents
# To adopt a new model, copy these files over resources/reference/ and rewrite the tables of its README.md.
# An interrupted training resumes from results/reference/checkpoint/ with the settings it was started with.


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
    threads: 2
    shell:
        # a training loop is several times slower where glibc hands its buffers back to the system at every step
        "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 "
        "python {input.script} --settings {input.settings} --output results/reference > {log} 2>&1"
