# What the jobs of ../repair.smk read, where the file's name follows from the configuration.


def plans_to_repair(w):
    """The plans of all sizes for which a study asks for {repair}."""
    folder = f"results/plans/{w.model}/{w.calibration}/{w.selector}"
    sizes = requests.sizes_of_patches(CONFIG, w.model, w.calibration, w.selector, w.repair)
    return [f"{folder}/removed={size}.json" for size in sizes]
