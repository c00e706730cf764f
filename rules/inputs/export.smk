# What the jobs of ../export.smk read, where the file's name follows from the configuration.


def adapter_of(w):
    """What the healing of a variant trained; nothing without one."""
    if w.healing == "none":
        return []
    plan = f"{w.model}/{w.calibration}/{w.selector}/removed={w.removed}"
    return paths.adapter_weights(f"results/adapters/{plan}/{w.repair}/{w.healing}")


def existing_benchmarks(w):
    """The existing benchmarks of the variant and of the base model; the export starts none."""
    files = []
    for model, calibration, task, block in requests.benchmark_blocks(CONFIG):
        file = paths.benchmark(model, calibration, task, block)
        if model == w.model and calibration in (w.calibration, "none") and Path(file).exists():
            files.append(file)
    return files


def gguf_file(w):
    """The base model's GGUF file or its shards, from which FORM=gguf removes layers."""
    return prepare.gguf_files(CONFIG.models[w.model]) if FORM["form"] == "gguf" else []


def variant_of(w):
    """The variant that the wildcards name."""
    return Variant.of(w)


def files_of_variant(w):
    """Plan, patch and adapter of a variant, as far as it has them."""
    return paths.variant_files(variant_of(w)).listed()


def overlap_checks_of_variant(w):
    """The checks of all calibrations that a variant was made from, against each of its tasks."""
    tasks = requests.list_tasks(CONFIG, variant_of(w))
    if w.calibration == "none":
        return [f"results/tasks/{task}.parquet" for task in tasks]
    names = sorted(requests.read_by(CONFIG, variant_of(w)))
    return [f"results/overlap/{w.model}/{name}/{task}.json" for name in names for task in tasks]


def task_files_of_variant(w):
    """The user's files that the tasks of a variant are made of."""
    files = []
    for task in requests.list_tasks(CONFIG, variant_of(w)):
        files += prepare.data_files(task, CONFIG.benchmarks.tasks[task])
    return files
