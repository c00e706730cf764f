# What the jobs of ../export.smk read, where the file's name follows from the configuration.


def adapter_of(w):
    """What the healing of a variant trained; nothing without one."""
    if w.healing == "none":
        return []
    plan = f"{w.model}/{w.calibration}/{w.selector}/removed={w.removed}"
    return paths.adapter_weights(f"results/adapters/{plan}/{w.repair}/{w.healing}")


def existing_benchmarks(w):
    """The existing benchmarks of the variant and of the base model: the export starts none."""
    files = []
    for model, calibration, task, block in requests.benchmark_blocks(CONFIG):
        file = paths.benchmark(model, calibration, task, block)
        if model == w.model and calibration in (w.calibration, "none") and Path(file).exists():
            files.append(file)
    return files


def gguf_file(w):
    """The GGUF file of the base model, or its shards, that FORM=gguf takes layers out of."""
    return prepare.gguf_files(CONFIG.models[w.model]) if FORM["form"] == "gguf" else []
