"""Pretrained models: what a folder holds, where a model keeps its layers, and how units are removed.

Without weights, and mostly without torch:

    units, families       names of what can be removed; facts that modules do not show
    checkpoint, digests   what a folder holds; hashes of its files
    gguf, gguf_tokenizer, dequantise    GGUF files and quantised folders, made into checkpoints
    manifest, sizes       what all later jobs know of a model; what its layers cost

With weights:

    load, tokenizer, devices, workload  a model on its devices, which counts what its layers run
    structure             the layers and their sub-layers, found by what modules do
    surgery, cutting      removal of units; the configuration of a cut model
    boundary, replacements, adapters    patches, layers of donors, trained weights
    repaired              a cut model with its patches
    materialise           all of these together: a variant in memory
    check                 whether cutting does to a model what bypassing its layers does
    export                checkpoints and GGUF files of variants
"""
