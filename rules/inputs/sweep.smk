# What the jobs of ../sweep.smk read, where the file's name follows from the configuration.


def plan_before(w):
    """The plan of the units that are removed before the sweep; none if nothing is removed."""
    if w.removed == "0":
        return []
    selector = sweeps.SweepSelector.parse(w.selector)
    calibration = selector.planned_on(w.calibration)
    return f"results/plans/{w.model}/{calibration}/{selector.name}/removed={w.removed}.json"


def blocks_of_sweep(w):
    """The outputs of the jobs that share a sweep."""
    folder = f"results/sweeps/{w.model}/{w.calibration}/{w.selector}/removed={w.removed}"
    n_blocks = sweeps.sweep_blocks(CONFIG, w.model, w.selector)
    return [f"{folder}/block={block}.parquet" for block in range(n_blocks)]


def files_of_questions(w):
    """The user's files with the questions to be answered in writing; none for other passes."""
    pass_, _ = sweeps.SweepSelector.parse(w.selector).settings(CONFIG)
    return calibration_files(w) if pass_ == "generate" else []
