# What the jobs of ../capture.smk read, where the file's name follows from the configuration.


def samples_of_diagnosis(w):
    """The user's file that a diagnosis names, or the calibration."""
    file = getattr(CONFIG.diagnoses[w.diagnosis], "file", None)
    return file or f"results/calibrations/{w.model}/{w.calibration}.parquet"


def file_of_diagnosis(w):
    """The user's file that a diagnosis names, if it names one."""
    file = getattr(CONFIG.diagnoses[w.diagnosis], "file", None)
    return [file] if file else []
