# What the jobs of ../heal.smk read, where the file's name follows from the configuration.


def patch_of(w):
    """The patch of a variant; none without a repair."""
    if w.repair == "none":
        return []
    return f"results/patches/{w.model}/{w.calibration}/{w.selector}/{w.repair}.safetensors"


def calibrations_of_healing(w):
    """The calibrations that a healing trains on, without the variant's own."""
    names = set(requests.trained_on(CONFIG, w.calibration, w.healing)) - {w.calibration}
    return [f"results/calibrations/{w.model}/{name}.parquet" for name in sorted(names)]
