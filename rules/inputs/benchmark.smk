# What the jobs of ../benchmark.smk read, where the file's name follows from the configuration.


def files_of_variants(variants):
    """Plan, patch and adapter of each variant, as far as it has them, variant by variant."""
    return [file for variant in variants for file in paths.variant_files(variant).listed()]


def variants_of_block(w):
    """The variants that {block} measures."""
    return requests.block_variants(CONFIG, w.model, w.calibration, w.task, int(w.block))


def files_of_block(w):
    """The files that make the variants of {block}."""
    return files_of_variants(variants_of_block(w))


def overlap_checks(w):
    """The checks against {task} of all calibrations that the variants of {block} were made from."""
    # The base model has no calibration. It only waits for the task's documents.
    if w.calibration == "none":
        return f"results/tasks/{w.task}.parquet"
    names = {w.calibration}
    for variant in variants_of_block(w):
        names.update(requests.read_by(CONFIG, variant))
    return [f"results/overlap/{w.model}/{name}/{w.task}.json" for name in sorted(names)]
